"""AT_DISPATCH of torch (ATen/Dispatch.h): for which scalar types what it is given is run."""

from __future__ import annotations

import re
from typing import Any

import torch

from zerokit.rehearsal.stand_ins.cuda_sources.conversions import dtype_name
from zerokit.rehearsal.stand_ins.cuda_sources.objects import TensorType, Thrown
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

_FLOATING = (torch.float64, torch.float32)
_INTEGRAL = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.int16)
_COMPLEX = (torch.complex128, torch.complex64)
_TYPES: dict[str, tuple[torch.dtype, ...]] = {
    "FLOATING_TYPES": _FLOATING,
    "FLOATING_TYPES_AND_HALF": (*_FLOATING, torch.float16),
    "REDUCED_FLOATING_TYPES": (torch.float16, torch.bfloat16),
    "COMPLEX_TYPES": _COMPLEX,
    "FLOATING_AND_COMPLEX_TYPES": (*_FLOATING, *_COMPLEX),
    "INTEGRAL_TYPES": _INTEGRAL,
    "ALL_TYPES": (*_INTEGRAL, *_FLOATING),
    "ALL_TYPES_AND_COMPLEX": (*_INTEGRAL, *_FLOATING, *_COMPLEX),
    "INDEX_TYPES": (torch.int32, torch.int64),
}
_NAME = re.compile(rf"AT_DISPATCH_({'|'.join(sorted(_TYPES, key=len, reverse=True))})(?:_AND(\d?))?")
_IN_C = {
    **{torch.float32: "float", torch.float64: "double", torch.float16: "at::Half"},
    **{torch.bfloat16: "at::BFloat16", torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t"},
    **{torch.int32: "int", torch.int64: "int64_t", torch.bool: "bool"},
}


def dispatch(name: str, arguments: list[Any]) -> Any:
    """Run what AT_DISPATCH is given last, if it is for the scalar type that it is given.

    Args:
        name: of the macro.
        arguments: of it: more types, the scalar type, what to call it, and what to run.

    Raises:
        Thrown: it is not for that type.
        UnreadError: such a macro is not known.
    """
    found = _NAME.fullmatch(name)
    more = 0 if found is None or found[2] is None else int(found[2] or 1)
    if found is None or len(arguments) != more + 3 or not callable(arguments[-1]):
        raise UnreadError(f"the macro {name}")
    *types, given, said, run = arguments
    dtype = given.dtype if isinstance(given, TensorType) else given
    if not all(isinstance(one, torch.dtype) for one in (*types, dtype)) or not isinstance(said, str):
        raise UnreadError(f"the macro {name}")
    if dtype not in (*_TYPES[found[1]], *types):
        raise Thrown(NotImplementedError(f"\"{said}\" not implemented for '{dtype_name(dtype)}'"))
    kind = _IN_C.get(dtype, f"at::{dtype_name(dtype)}")
    return run(scalar_t=kind, **({"index_t": kind} if found[1] == "INDEX_TYPES" else {}))
