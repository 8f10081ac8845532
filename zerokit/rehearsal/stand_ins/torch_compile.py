"""torch.compile in a rehearsal: the function as it is written.

Inductor writes Triton kernels, and needs Triton and a GPU for it. What it would fuse away is counted here
as eager code makes it, and the report says so. Other backends, such as "eager" and "aot_eager", are torch's
own affair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.errors import RehearsalGap, calling_line

_COMPILE = Patch("torch", "compile", "run functions as they are written")
_NEEDS_INDUCTOR = "torch.nn.attention.flex_attention"
"""A module whose functions make the whole matrix of scores unless they are compiled."""

_ran_as_written: dict[str, str] = {}


def ran_as_written() -> list[str]:
    """A warning for each function or model that ran as written though it was to be compiled."""
    return [
        f"torch.compile was left out for {name} ({line}): its memory is that of the code as it is written"
        for name, line in _ran_as_written.items()
    ]


def install() -> None:
    """Make `torch.compile` with Inductor leave functions and models as they are."""
    wrap(_COMPILE, _compiled)


def _compiled(compile_with: Any, model: Any = None, **given: Any) -> Any:
    if given.get("disable") or given.get("backend", "inductor") != "inductor":
        return compile_with(model, **given)
    return as_written if model is None else as_written(model)


def as_written(model: Any) -> Any:
    """`model` itself, noted now if it is a module, else when it is first called."""
    import torch

    if isinstance(model, torch.nn.Module):
        _ran_as_written.setdefault(type(model).__qualname__, calling_line())
        return model
    return _noting(model)


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if owner is not None:  # a model's own compile() hands its call over
        name = type(owner).__qualname__

    @functools.wraps(function)
    def noted(*arguments: Any, **given: Any) -> Any:
        if getattr(function, "__module__", None) == _NEEDS_INDUCTOR:
            raise RehearsalGap(f"torch.compile of {name}")
        if name not in _ran_as_written:
            _ran_as_written[name] = calling_line()
        return function(*arguments, **given)

    return noted
