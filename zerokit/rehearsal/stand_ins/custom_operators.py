"""Custom operators (`torch.library`) with kernels for CUDA.

Operators that are registered in Python run unchanged, with their Triton kernels. If one calls code that a
rehearsal cannot run, or has a compiled kernel as torchvision's do, its fake implementation gives the shapes:
results are allocated, values are made up, and the report names it. Without one the rehearsal ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.context import note, rank_context
from zerokit.rehearsal.native.backend import backend, is_made_up
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.rehearsal.worker.failures import limit_of

_SIZED = "size operators by their fake implementations"
_REGISTER = Patch("torch.library:Library", "impl", _SIZED)
_LOAD = Patch("torch._ops:_Ops", "load_library", _SIZED)
_TORCH = {"aten", "prim", "prims", "c10d", "_c10d_functional", "inductor", "quantized"}

_NMS = "torchvision::nms"
"""The size of its result depends on values, so its fake implementation has none."""


class CustomOperators:
    """How the operators that packages register were run."""

    def __init__(self) -> None:
        self.by_fake: set[str] = set()
        """Operators that are sized by their fake implementations."""
        self.in_python: set[str] = set()
        """Operators whose CUDA kernels are replaced already, or run unchanged."""
        self.libraries: list[Any] = []
        """Keep the replaced kernels alive."""


_SIZED_BY_FAKE = (
    "the operator {what} was sized by its fake implementation: memory that it takes while it runs is not in "
    "the figures ({why})"
)
_KEPT_ALL = "the operator {what} kept all boxes, where these have no values"


def _state() -> CustomOperators:
    return rank_context().state(CustomOperators)


@stand_in("torch.library", "torchvision")
def install(setup: RankSetup) -> None:
    """Look at the kernels that are registered from here on."""
    wrap(_REGISTER, _register)
    wrap(_LOAD, _load)


def names() -> set[str]:
    """All operators that are registered, but for torch's own."""
    known = torch._C._dispatch_get_all_op_names()
    return {name for name in known if name.partition("::")[0] not in _TORCH}


def run_as_they_are(operators: set[str]) -> None:
    """Leave the kernels for CUDA of these operators in place."""
    _state().in_python.update(operators)


def _register(register: Any, library: Any, name: Any, function: Any, dispatch_key: str = "", **given: Any) -> Any:
    key = dispatch_key or library.dispatch_key
    if library.ns in _TORCH:
        return register(library, name, function, dispatch_key, **given)
    text = name if isinstance(name, str) else name.name()
    full = f"{library.ns}::{text.rpartition('::')[2]}"
    if key == "CUDA" and not given.get("with_keyset"):
        function = _with_fallback(full, function)
        _state().in_python.add(full)
    result = register(library, name, function, dispatch_key, **given)
    if key == "Meta":
        _size_if_compiled(full)
    return result


def _load(load: Any, operators: Any, path: Any) -> Any:
    result = load(operators, path)
    for name in names():
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
            _size_if_compiled(name)
    return result


def _size_if_compiled(name: str) -> None:
    """Replace a compiled CUDA kernel of operator `name` by its fake implementation."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
    if name in _state().in_python or not (has_kernel or name == _NMS):
        return

    def run(*arguments: Any, **given: Any) -> Any:
        if name == _NMS:
            return _kept_boxes(*arguments, **given)
        note(_SIZED_BY_FAKE, name, "its kernel is compiled for CUDA")
        return _run_fake(name, arguments, given)

    make: Any = torch.library.Library  # which torch does not type
    library = make(name.partition("::")[0], "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
        library.impl(name.partition("::")[2], run, "CUDA")
    _state().libraries.append(library)


def _kept_boxes(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Which boxes torchvision's `nms` keeps: all if they have no values, which needs most memory."""
    if is_made_up(boxes) or is_made_up(scores):
        note(_KEPT_ALL, _NMS, "")
        return torch.arange(boxes.size(0), device=boxes.device)
    kept = torch.ops.torchvision.nms(boxes.cpu(), scores.cpu(), iou_threshold)
    return kept.to(boxes.device)


def _with_fallback(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, or the fake implementation of operator `name` if the kernel cannot run."""

    def run(*arguments: Any, **given: Any) -> Any:
        if name not in _state().by_fake:
            try:
                return kernel(*arguments, **given)
            except Exception as error:
                limit = limit_of(error)
                if limit is None or not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
                    raise
                note(_SIZED_BY_FAKE, name, limit.message)
            _state().by_fake.add(name)
        return _run_fake(name, arguments, given)

    return run


def _run_fake(name: str, arguments: tuple[Any, ...], given: dict[str, Any]) -> Any:
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
    if isinstance(value, torch.Tensor):
        backend().make_up(value)
