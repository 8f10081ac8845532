"""The table of optimizers that a ds_config can name: what DeepSpeed, ZeRO and zerokit know of each.

The arguments of their constructors are models made of `params.json`. What their
states take on a GPU is in ``memory/optimizers.py``, by `memory_kind`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zerokit.choices import OptimizerKind
from zerokit.tables import table_of


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    name: str
    """As its library spells it. DeepSpeed ignores the case of its own, but not of PyTorch's."""
    library: Literal["deepspeed", "mup", "torch"] = "deepspeed"
    zero_supports: bool = True
    """Whether ZeRO accepts it without `zero_allow_untested_optimizer`; `ZERO_SUPPORTED_OPTIMIZERS` in
    `deepspeed/runtime/zero/utils.py`."""
    has_cpu_code: bool = False
    """Whether DeepSpeed has vectorised code for its step on the host."""
    host_states: int = 0
    """fp32 states per parameter on the host under offload, where that is known."""
    memory_kind: OptimizerKind | None = None
    """The kind whose memory is known."""
    offloaded_memory_kind: OptimizerKind | None = None
    """The same under offload, where that is another class."""
    largest_rate: float = 1.0
    """A larger learning rate cannot be meant."""
    needs_whole_tensors: str = ""
    """Why it does not suit the flat partitions of ZeRO."""
    step_fails: str = ""
    """Why DeepSpeed cannot call its step."""
    starting_point: Mapping[str, Any] | None = None
    """Arguments to fine-tune a language model with; None: `zerokit config` does not write it."""
    starting_point_reason: str = ""
    """Why these arguments, where they are unlike Adam's."""


OPTIMIZERS = tuple(OptimizerSpec(**row) for row in table_of(__file__))
"""In the order in which they are listed. Classes of `torch.optim` are those of PyTorch 2.13."""

DEEPSPEED_OPTIMIZERS = tuple(spec.name for spec in OPTIMIZERS if spec.library != "torch")
"""The names that DeepSpeed itself knows (`deepspeed/runtime/config.py`)."""
TORCH_OPTIMIZERS = tuple(spec.name for spec in OPTIMIZERS if spec.library == "torch")

REMOVED_OPTIMIZERS = {"onebitadam": "Adam", "zerooneadam": "Adam", "onebitlamb": "Lamb"}
"""In lower case, with what comes nearest. Known to older versions; DeepSpeed 0.19.8 refuses them,
although its pages still describe them."""

_BY_NAME = {spec.name if spec.library == "torch" else spec.name.lower(): spec for spec in OPTIMIZERS}


def optimizer_spec(name: object) -> OptimizerSpec | None:
    """The optimizer that DeepSpeed takes a `type` for, or None if there is none of that name."""
    if not isinstance(name, str):
        return None
    return _BY_NAME.get(name.lower() if name.lower() in _BY_NAME else name)
