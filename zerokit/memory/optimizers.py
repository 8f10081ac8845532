"""What an optimizer keeps per parameter, and what its step allocates."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from zerokit.choices import OptimizerKind
from zerokit.config import DeepSpeedConfig
from zerokit.config.conditions import ConfigView
from zerokit.config.optimizers import optimizer_spec
from zerokit.errors import ZerokitError
from zerokit.memory.term import Certainty, TermKind


@dataclass(frozen=True)
class OptimizerFacts:
    """Numbers per element of the parameters that one rank updates."""

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

    def moments(self, count: str) -> TermKind:
        """The kind of its states."""
        return TermKind(
            "optimizer moments",
            "optimizer_states",
            unit="k",
            count=count,
            source=self.source,
            certainty=self.certainty,
        )

    def temporary(self, count: str) -> TermKind:
        """The kind of its step's temporary tensors."""
        return TermKind(
            "temporary tensors of the optimizer",
            "buffers",
            unit="t",
            count=count,
            source=self.source,
            certainty=self.certainty,
        )


def _of_bitsandbytes(
    kind: OptimizerKind, name: str, states: int, *, quantized: bool = True, paged: bool = False
) -> OptimizerFacts:
    return OptimizerFacts(
        kind,
        f"bitsandbytes {name}",
        states,
        state_bytes=1 if quantized else 4,
        quantized=quantized,
        paged=paged,
        source="bitsandbytes optim/optimizer.py init_state",
        certainty="exact",
    )


_TORCH = "torch/optim"
_FACTS: dict[OptimizerKind, OptimizerFacts] = {
    facts.kind: facts
    for facts in (
        OptimizerFacts(
            "fused_adam", "FusedAdam", 2, source="deepspeed/ops/adam/fused_adam.py step", certainty="exact"
        ),
        OptimizerFacts(
            "cpu_adam",
            "DeepSpeedCPUAdam",
            2,
            state_bytes=4,
            source="deepspeed/ops/adam/cpu_adam.py step",
            certainty="exact",
        ),
        OptimizerFacts(
            "adamw",
            "torch AdamW",
            2,
            temporaries=1,
            source=f"{_TORCH}/adam.py _multi_tensor_adam",
            certainty="exact",
        ),
        OptimizerFacts(
            "adamw_fused", "torch AdamW (fused)", 2, source=f"{_TORCH}/adam.py _fused_adam", certainty="exact"
        ),
        _of_bitsandbytes("adamw_8bit", "AdamW8bit", 2),
        _of_bitsandbytes("paged_adamw_8bit", "PagedAdamW8bit", 2, paged=True),
        _of_bitsandbytes("paged_adamw_32bit", "PagedAdamW32bit", 2, quantized=False, paged=True),
        _of_bitsandbytes("lion_8bit", "Lion8bit", 1),
        _of_bitsandbytes("paged_lion_8bit", "PagedLion8bit", 1, paged=True),
        OptimizerFacts("lion", "Lion", 1, source="deepspeed/ops/lion", certainty="exact"),
        OptimizerFacts("sgd", "torch SGD", 0, source=f"{_TORCH}/sgd.py _multi_tensor_sgd", certainty="exact"),
        OptimizerFacts(
            "sgd_momentum", "torch SGD with momentum", 1, source=f"{_TORCH}/sgd.py", certainty="exact"
        ),
        OptimizerFacts(
            "adagrad",
            "torch Adagrad",
            1,
            temporaries=2,
            at_construction=True,
            source=f"{_TORCH}/adagrad.py _multi_tensor_adagrad",
            certainty="exact",
        ),
        OptimizerFacts(
            "adafactor",
            "torch Adafactor",
            1,
            temporaries=1,
            source=f"{_TORCH}/_adafactor.py: a flat partition has one dimension and is not factored",
            certainty="modelled",
        ),
        OptimizerFacts(
            "lamb", "FusedLamb", 2, source="deepspeed/ops/lamb/fused_lamb.py", certainty="modelled"
        ),
        OptimizerFacts(
            "muon",
            "Muon",
            1,
            temporaries=1,
            source="deepspeed/runtime/zero/muon; its Adam for other than matrices has the states of Adam",
            certainty="guess",
        ),
    )
}


def optimizer_facts(kind: OptimizerKind) -> OptimizerFacts:
    """The facts of an optimizer."""
    return _FACTS[kind]


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


_OF_TRAINER: dict[str, OptimizerKind] = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw_fused",
    "adamw_bnb_8bit": "adamw_8bit",
    "adamw_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "paged_adamw_32bit": "paged_adamw_32bit",
    "paged_adamw": "paged_adamw_32bit",
    "lion_8bit": "lion_8bit",
    "paged_lion_8bit": "paged_lion_8bit",
    "lion_32bit": "lion",
    "adafactor": "adafactor",
    "adagrad": "adagrad",
    "sgd": "sgd",
}


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
    if optim not in _OF_TRAINER:
        raise ZerokitError(f"the memory of the optimizer '{optim}' is not known", where="optim")
    return _OF_TRAINER[optim]
