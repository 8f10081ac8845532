"""What the Trainer has DeepSpeed's engine do at every step, without what costs time or fails there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from zerokit.patches import Patch, put, replace

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_TRAIN = Patch(_ENGINE, "train", "leave a model in its mode that is in it")
_ZERO_GRAD = Patch(_ENGINE, "zero_grad", "find parameters once a run, not once a step")
_START = Patch("deepspeed.utils.timer:ThroughputTimer", "start", "keep its clock out of compiled code")
_DEFAULTS = Patch(
    "deepspeed.runtime.base_optimizer:DeepSpeedOptimizer",
    "defaults",
    "let a polynomial schedule read the optimizer's defaults",
    read_by="transformers.optimization",
)


class _Defaults(cached_property[Any]):
    """Those of the optimizer inside DeepSpeed's; a property that a later release may set."""

    def __init__(self) -> None:
        super().__init__(lambda optimizer: optimizer.optimizer.defaults)
        self.attrname = _DEFAULTS.name


put(_DEFAULTS, _Defaults())


def keep_out_of_graphs(engine: Any) -> None:
    """Have an engine whose module is compiled start its timer as it is written.

    It is started by a hook of the module. From the third step on it waits for the GPU, in a way at which
    Dynamo of torch 2.13 fails (`torch.cuda.synchronize(None)`).
    """
    import torch

    replace(engine.tput_timer, _START.name, torch.compiler.disable)


def shorten_calls(engine: Any) -> None:
    """Have an engine do what it did, in less time: its model has all parameters and modules by now."""
    module, parameters = engine.module, list(engine.module.parameters())

    def train(usual: Callable[[bool], Any]) -> Callable[..., None]:
        def set_mode(mode: bool = True) -> None:
            if module.training is not mode:
                usual(mode)

        return set_mode

    def zero_grad(_: Callable[[], Any]) -> Callable[[], None]:
        def clear() -> None:
            for parameter in parameters:
                parameter.grad = None

        return clear

    replace(engine, _TRAIN.name, train)
    replace(engine, _ZERO_GRAD.name, zero_grad)
