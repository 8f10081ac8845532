"""What the Trainer has DeepSpeed's engine do at every step, without a walk through all modules each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerokit.patches import Patch, replace

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_TRAIN = Patch(_ENGINE, "train", "leave a model in its mode that is in it")
_ZERO_GRAD = Patch(_ENGINE, "zero_grad", "find parameters once a run, not once a step")


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
