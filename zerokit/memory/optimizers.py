"""What an optimizer keeps per parameter, and what its step allocates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

from zerokit.choices import OptimizerKind
from zerokit.config import DeepSpeedConfig
from zerokit.config.conditions import ConfigView
from zerokit.config.optimizers import optimizer_spec
from zerokit.errors import ZerokitError
from zerokit.memory.term import TERM_KINDS, Certainty, TermKind
from zerokit.tables import table_of


@dataclass(frozen=True)
class OptimizerFacts:
    """A row of `optimizers.json`: numbers per element of the parameters that one rank updates."""

    kind: OptimizerKind
    name: str
    """The class."""
    states: int
    """Tensors of the parameters' size that exist from the first step on."""
    temporaries: int = 0
    """Tensors of the parameters' size that exist only during the step."""
    state_bytes: int | None = None
    """Bytes per element of a state; None: the type of the master weights."""
    at_construction: bool = False
    """The states exist before the first step."""
    quantized: bool = False
    """States in 8 bits, except for small tensors."""
    paged: bool = False
    """States in unified memory, except for small tensors."""
    _: KW_ONLY
    source: str
    certainty: Certainty
    trainer_names: Sequence[str] = field(default=(), hash=False)
    """`optim` of transformers' TrainingArguments."""

    def kind_of(self, name: Literal["MOMENTS", "TEMPORARY"], count: str) -> TermKind:
        """The kind of its states, or of its step's temporary tensors."""
        kind = TERM_KINDS[f"optimizers.{name}"]
        return replace(kind, count=count, source=self.source, certainty=self.certainty)


_ROWS: Mapping[OptimizerKind, dict[str, Any]] = table_of(__file__)


def optimizer_facts(kind: OptimizerKind) -> OptimizerFacts:
    return OptimizerFacts(kind, **_ROWS[kind])


def optimizer_kind(config: DeepSpeedConfig) -> OptimizerKind:
    """The optimizer that DeepSpeed builds from a ds_config; ``adamw`` if it has no `optimizer`.

    Source: `DeepSpeedEngine._configure_basic_optimizer` and `get_optimizer_configuration`, runtime/engine.py.

    Raises:
        ZerokitError: the memory of the optimizer is not known.
    """
    if config.optimizer is None:
        return "adamw"
    offloaded = ConfigView(config).device("offload_optimizer") != "none"
    params = config.optimizer.params
    settings = {} if params is None else params.model_dump(exclude_unset=True)
    spec = optimizer_spec(config.optimizer.type)
    kind = None if spec is None else (offloaded and spec.offloaded_memory_kind) or spec.memory_kind
    if kind in ("fused_adam", "cpu_adam") and settings.get("torch_adam"):
        return "adamw_fused" if settings.get("fused") else "adamw"
    if kind == "sgd" and settings.get("momentum"):
        return "sgd_momentum"
    if kind is not None:
        return kind
    raise ZerokitError(
        f"the memory of the optimizer '{config.optimizer.type}' is not known",
        where="optimizer.type",
        hint="Rehearse the run, or estimate with a known optimizer such as AdamW",
    )


def optimizer_made(config: DeepSpeedConfig, optim: str) -> OptimizerKind:
    """The optimizer that runs if the script makes one and the ds_config has none.

    With offload, accelerate replaces it by DeepSpeedCPUAdam (accelerator.py _prepare_deepspeed,
    utils/deepspeed.py map_pytorch_optim_to_deepspeed).

    Args:
        config: without an `optimizer`.
        optim: its name in transformers' TrainingArguments.

    Raises:
        ZerokitError: the memory of the optimizer is not known.
    """
    if ConfigView(config).device("offload_optimizer") != "none":
        return "cpu_adam"
    for kind, row in _ROWS.items():
        if optim in row.get("trainer_names", ()):
            return kind
    raise ZerokitError(f"the memory of the optimizer '{optim}' is not known", where="optim")
