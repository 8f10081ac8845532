"""The table of optimizers that a ds_config can name: what DeepSpeed, ZeRO and zerokit know of each.

The arguments of their constructors are models made of `params.json`. What their
states take on a GPU is in ``memory/optimizers.py``, by `memory_kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zerokit.choices import OptimizerKind

if TYPE_CHECKING:
    from zerokit.config.params import OptimizerParams


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimizer."""

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

    def params_model(self) -> type[OptimizerParams]:
        """The model of its constructor's arguments."""
        from zerokit.config.params import params_of

        return params_of(self.name)


OPTIMIZERS = (
    *(
        OptimizerSpec(
            name=name,
            has_cpu_code=True,
            host_states=2,
            memory_kind="fused_adam",
            offloaded_memory_kind="cpu_adam",
            starting_point={"lr": 2e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": decay},
        )
        for name, decay in (("Adam", 0.0), ("AdamW", 0.01))
    ),
    OptimizerSpec(
        name="Adagrad",
        has_cpu_code=True,
        host_states=1,
        memory_kind="adagrad",
        starting_point={"lr": 1e-3, "eps": 1e-10, "weight_decay": 0.0},
    ),
    OptimizerSpec(
        name="Lamb",
        zero_supports=False,
        memory_kind="lamb",
        needs_whole_tensors="computes one trust ratio per layer",
        # LAMB scales each step by the norm of the weights, so that rates are far larger than Adam's.
        starting_point={"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01},
    ),
    OptimizerSpec(
        name="Lion",
        has_cpu_code=True,
        host_states=1,
        memory_kind="lion",
        # Lion's paper (arXiv 2302.06675): a rate 3 to 10 times smaller than AdamW's, a decay as much larger.
        starting_point={"lr": 4e-6, "betas": [0.9, 0.99], "weight_decay": 0.05},
    ),
    OptimizerSpec(
        name="Muon",
        has_cpu_code=True,
        memory_kind="muon",
        # `lr` is for what Muon does not handle (embeddings, norms, the head), which Adam does.
        starting_point={"lr": 2e-5, "muon_lr": 2e-4, "momentum": 0.95, "weight_decay": 0.01},
    ),
    OptimizerSpec(name="MuAdam", library="mup"),
    OptimizerSpec(name="MuAdamW", library="mup"),
    OptimizerSpec(name="MuSGD", library="mup", zero_supports=False, largest_rate=10.0),
    # Classes of `torch.optim` beyond those, as of PyTorch 2.13.
    OptimizerSpec(name="ASGD", library="torch", zero_supports=False, largest_rate=10.0),
    OptimizerSpec(name="Adadelta", library="torch", zero_supports=False, largest_rate=10.0),
    OptimizerSpec(
        name="Adafactor",
        library="torch",
        zero_supports=False,
        memory_kind="adafactor",
        needs_whole_tensors="saves memory by rows and columns of a matrix",
    ),
    OptimizerSpec(name="Adamax", library="torch", zero_supports=False),
    OptimizerSpec(
        name="LBFGS",
        library="torch",
        zero_supports=False,
        largest_rate=10.0,
        step_fails="its step needs a function that computes the loss again, and DeepSpeed passes none",
    ),
    OptimizerSpec(name="NAdam", library="torch", zero_supports=False),
    OptimizerSpec(name="RAdam", library="torch", zero_supports=False),
    OptimizerSpec(name="RMSprop", library="torch", zero_supports=False),
    OptimizerSpec(name="Rprop", library="torch", zero_supports=False, largest_rate=10.0),
    OptimizerSpec(
        name="SGD",
        library="torch",
        zero_supports=False,
        memory_kind="sgd",
        largest_rate=10.0,
        starting_point={"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.0},
    ),
    OptimizerSpec(
        name="SparseAdam",
        library="torch",
        zero_supports=False,
        step_fails="it refuses dense gradients, and DeepSpeed hands it no other",
    ),
)
"""In the order in which they are listed."""

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
