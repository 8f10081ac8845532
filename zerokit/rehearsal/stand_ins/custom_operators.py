"""Custom operators (`torch.library`) whose kernels for CUDA a package registers in Python.

They run as they are: what they allocate is torch's, and Triton kernels in them are launched (triton_kernels).
One that calls code which a rehearsal cannot run, such as a CUDA library, is sized by its fake implementation:
its results are allocated, those and what it writes are made up, and the report says so. Without a fake
implementation the limit is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.limits import limit_of
from zerokit.rehearsal.native.backend import backend

_REGISTER = Patch("torch.library:Library", "impl", "size operators by their fake implementations")
_TORCH = {"aten", "prim", "prims", "c10d", "_c10d_functional", "inductor", "quantized"}

_sized: dict[str, str] = {}
"""Operators that were sized, and why."""


def install() -> None:
    """Look at the kernels that are registered from here on."""
    wrap(_REGISTER, _register)


def sized() -> list[str]:
    """A warning for each operator that was sized by its fake implementation."""
    return [
        f"the operator {name} was sized by its fake implementation: memory that it takes while it runs is "
        f"not in the figures ({why})"
        for name, why in _sized.items()
    ]


def _register(
    register: Any, library: Any, name: Any, function: Any, dispatch_key: str = "", **given: Any
) -> Any:
    key = dispatch_key or library.dispatch_key
    if key == "CUDA" and library.ns not in _TORCH and not given.get("with_keyset"):
        text = name if isinstance(name, str) else name.name()
        function = _or_sized(f"{library.ns}::{text.rpartition('::')[2]}", function)
    return register(library, name, function, dispatch_key, **given)


def _or_sized(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, or what the fake implementation of operator `name` says where that cannot run."""

    def run(*arguments: Any, **given: Any) -> Any:
        import torch

        if name not in _sized:
            try:
                return kernel(*arguments, **given)
            except Exception as error:
                limit = limit_of(error)
                if limit is None or not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
                    raise
                why = limit.message
            _sized[name] = why
        return _by_fake(name, arguments, given)

    return run


def _by_fake(name: str, arguments: tuple[Any, ...], given: dict[str, Any]) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")

    def to_meta(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        result = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cuda")
        backend().make_up(result)
        return result

    results = tree_map(made, operator(*tree_map(to_meta, arguments), **tree_map(to_meta, given)))
    schema = operator._schema.arguments
    named = dict(zip((argument.name for argument in schema), arguments, strict=False)) | given
    for argument in schema:
        if argument.alias_info is not None and argument.alias_info.is_write:
            tree_map(_make_up, named.get(argument.name))
    return results


def _make_up(value: Any) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        backend().make_up(value)
