"""What C++ of wrappers calls of libraries, and what its values are in Python."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import (
    DOUBLE,
    FLOAT,
    INT,
    Single,
    Whole,
    chosen,
    combined,
    is_number,
    kind_named,
    negative,
    to_kind,
)
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import (
    SCALAR_TYPES,
    bare,
    named,
    of_type,
    template_of,
    text,
    truth,
)
from zerokit.rehearsal.stand_ins.cuda_sources.members import tried
from zerokit.rehearsal.stand_ins.cuda_sources.objects import (
    Address,
    Guard,
    Opaque,
    Options,
    Pointer,
    Present,
    Vector,
    check,
)
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

CHECKS = {
    **dict.fromkeys(("TORCH_CHECK", "AT_ASSERTM", "TORCH_INTERNAL_ASSERT", "AT_ASSERT"), RuntimeError),
    "TORCH_CHECK_VALUE": ValueError,
    "TORCH_CHECK_TYPE": TypeError,
    "TORCH_CHECK_INDEX": IndexError,
    "TORCH_CHECK_NOT_IMPLEMENTED": NotImplementedError,
}
"""And what Python is told where they fail (c10/util/Exception.h)."""

_DTYPES = SCALAR_TYPES | {
    "Float32": torch.float32,
    "Float64": torch.float64,
    "Float16": torch.float16,
    "UInt8": torch.uint8,
    "Int8": torch.int8,
    "Int16": torch.int16,
    "Int32": torch.int32,
    "Int64": torch.int64,
}
CONSTANTS: dict[str, Any] = {
    **{f"k{name}": dtype for name, dtype in _DTYPES.items()},
    **{f"ScalarType::{name}": dtype for name, dtype in _DTYPES.items()},
    **{"kCUDA": "cuda", "kCPU": "cpu", "DeviceType::CUDA": "cuda", "DeviceType::CPU": "cpu"},
    **{
        "true": True,
        "false": False,
        "nullptr": None,
        "nullopt": None,
        "None": None,
        "kStrided": torch.strided,
    },
    "M_PI": math.pi,
    "cudaSuccess": 0,
}
SIZES = dict.fromkeys(("half", "Half", "BFloat16", "__half", "__nv_bfloat16", "nv_bfloat16"), 2)
"""In bytes, of types that are no numbers of C++."""
_IGNORED = {
    *("C10_CUDA_KERNEL_LAUNCH_CHECK", "C10_CUDA_CHECK", "AT_CUDA_CHECK", "CUDA_CHECK"),
    *("CUDAGuard", "OptionalCUDAGuard", "DeviceGuard", "OptionalDeviceGuard", "device_of"),
    *("getCurrentCUDAStream", "getDefaultCUDAStream", "dim3", "printf", "fprintf"),
    *("TORCH_WARN", "TORCH_WARN_ONCE", "cudaGetErrorString", "getCurrentDeviceProperties"),
}
"""What allocates nothing, and has no value that sizes may rest on."""
_SUCCEEDING = {
    *("cudaGetLastError", "cudaPeekAtLastError", "cudaFuncSetAttribute", "cudaSetDevice", "cudaGetDevice"),
    *("cudaStreamSynchronize", "cudaDeviceSynchronize"),
}
"""What allocates nothing, and gives `cudaSuccess`."""
_GUARDS: dict[str, Callable[..., Any]] = {
    "NoGradGuard": torch.no_grad,
    "AutoGradMode": torch.set_grad_enabled,
    "InferenceMode": torch.inference_mode,
    "AutoDispatchBelowAutograd": torch._C._AutoDispatchBelowAutograd,
    "AutoDispatchBelowADInplaceOrView": torch._C._AutoDispatchBelowADInplaceOrView,
}
_FACTORIES = {"empty", "zeros", "ones", "full", "empty_strided", "arange", "rand", "randn"}


def _most(first: Any, second: Any, is_second: Callable[[Any, Any], Any]) -> Any:
    return chosen(second, first) if is_second(first, second) else chosen(first, second)


def _maximum(*given: Any) -> Any:
    parts = given[0] if len(given) == 1 else given
    return reduce(partial(_most, is_second=partial(combined, "<")), parts)


def _minimum(*given: Any) -> Any:
    parts = given[0] if len(given) == 1 else given
    return reduce(partial(_most, is_second=partial(combined, ">")), parts)


def _absolute(value: Any) -> Any:
    if isinstance(value, float):
        return type(value)(abs(value))
    return negative(value) if value < 0 else value


def _rounded(value: float) -> float:
    whole = math.trunc(value)
    return float(whole + math.copysign(1, value) if abs(value - whole) >= 0.5 else whole)


def _of_fractions(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of double, or of float where it is given nothing else."""

    def run(*given: Any) -> Any:
        made = function(*map(float, given))
        return to_kind(made, FLOAT if all(isinstance(one, Single) for one in given) else DOUBLE)

    return run


_OF_FRACTIONS: dict[str, Callable[..., Any]] = {
    "ceil": lambda value: float(math.ceil(value)),
    "floor": lambda value: float(math.floor(value)),
    "trunc": lambda value: float(math.trunc(value)),
    "round": _rounded,
    "fabs": abs,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "pow": math.pow,
    "fmod": math.fmod,
}
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "max": _maximum,
    "min": _minimum,
    "abs": _absolute,
    **{
        name + mark: _of_fractions(function) for mark in ("", "f") for name, function in _OF_FRACTIONS.items()
    },
}
"""Of numbers; torch has functions of these names for tensors."""


def _whole(text: str) -> Any:
    found = re.match(r"\s*[+-]?\d+$", text)
    if found is None:
        raise UnreadError(f"a number in '{text}'")
    return Whole(int(text), INT)


def _string(value: Any = "") -> Any:
    if not isinstance(value, str):
        raise UnreadError(f"a string of {named(value)}")
    return value


def _in_words(value: Any) -> Any:
    return f"{value:f}" if isinstance(value, float) else text(value)


def _options(given: Any = None) -> Options:
    return Options(device=given) if isinstance(given, str | torch.device) else Options(dtype=given)


def _view(value: Any) -> Any:
    if not isinstance(value, list | torch.Size):
        raise UnreadError(f"a view of {named(value)}")
    return value


def _asserted(holds: Any) -> None:
    if not isinstance(holds, Opaque) and not truth(holds):
        raise UnreadError("an assert that fails, which ends the program")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **ARITHMETIC,
    "getenv": os.environ.get,
    "atoi": _whole,
    "stoi": _whole,
    "move": lambda value: value,
    "forward": lambda value: value,
    "make_tuple": lambda *parts: parts,
    "tuple": lambda *parts: parts,
    "make_pair": lambda *parts: parts,
    "string": _string,
    "none": lambda: None,
    "Tensor": lambda value=None: value,
    "to_string": _in_words,
    "runtime_error": RuntimeError,
    "logic_error": RuntimeError,
    "invalid_argument": ValueError,
    "domain_error": ValueError,
    "length_error": ValueError,
    "range_error": ValueError,
    "out_of_range": IndexError,
    "TensorOptions": _options,
    "dtype": lambda dtype: Options(dtype=dtype),
    "optional": lambda value=None: value if value is None else Present(value),
    "make_optional": Present,
    "device": lambda device, index=None: Options(
        device=device if index is None else torch.device(device, index)
    ),
    "Device": lambda device, index=None: torch.device(device, index),
    "IntArrayRef": _view,
    "ArrayRef": _view,
}


def called(name: str, arguments: list[Any]) -> Any:
    """What a function of torch's, CUDA's or C++'s library gives.

    Args:
        name: as the sources have it, its namespaces too.
        arguments: their values.

    Raises:
        UnreadError: it is not known what it does.
    """
    last = name.rpartition("::")[2]
    if last in _IGNORED:
        return Opaque(last)
    if last in _GUARDS:
        check(*arguments)
        return Guard(partial(_GUARDS[last], *arguments))
    if last in _SUCCEEDING:
        for one in arguments:
            if isinstance(one, Address):
                one.of.value = Opaque(f"what {last} writes")
        return CONSTANTS["cudaSuccess"]
    if last in ("assert", "static_assert"):
        return _asserted(*arguments[:1])
    if last in ARITHMETIC and any(isinstance(one, Tensor) for one in arguments):
        check(*arguments)
        return _of_torch(last, arguments)
    if last in _FUNCTIONS:
        unknown = [one for one in arguments if isinstance(one, Opaque)]
        if unknown:
            return unknown[0]
        if last in ARITHMETIC:
            return ARITHMETIC[last](*map(_number, arguments))
        return _FUNCTIONS[last](*arguments)
    space = bare(name).rpartition("::")[0]
    if not name.startswith(("torch::", "at::", "c10::")) or space not in ("", "native", "nn::functional"):
        raise UnreadError(f"the function {name}")
    check(*arguments)
    return _of_torchs_own(last, arguments)


def _of_torchs_own(name: str, arguments: list[Any]) -> Any:
    if name in _FACTORIES:
        return _made(name, arguments)
    if name.endswith("_like") and arguments[1:] and isinstance(arguments[1], Options):
        return tried(f"at::{name}", getattr(torch, name), arguments[:1], arguments[1].given)
    if name.endswith("_out"):
        return _of_torch(name.removesuffix("_out"), arguments[1:], out=arguments[0])
    return _of_torch(name, arguments)


def _number(value: Any) -> Any:
    if not is_number(value) and not (isinstance(value, list) and all(map(is_number, value))):
        raise UnreadError(f"arithmetic of {named(value)}")
    return value


_ELEMENTS: dict[str, Any] = {"string": "", "Tensor": None}


def vector(element: str, arguments: list[Any]) -> Vector:
    """What a constructor of `std::vector` makes: of nothing, a count, a count and a value, or another one.

    Raises:
        UnreadError: it is not known what its elements begin as.
    """
    check(*arguments)
    if not arguments:
        return Vector(element)
    if len(arguments) == 1 and isinstance(arguments[0], list | torch.Size):
        return Vector(element, [of_type(one, element) for one in arguments[0]])
    if not isinstance(arguments[0], int) or len(arguments) > 2:
        raise UnreadError(f"a vector of {element} that is made so")
    if len(arguments) == 2:
        return Vector(element, [of_type(arguments[1], element) for _ in range(arguments[0])])
    kind, (template, inner) = kind_named(bare(element)), template_of(bare(element))
    if template == "vector" and inner:
        return Vector(element, [Vector(inner[0]) for _ in range(arguments[0])])
    if kind is None and bare(element) not in _ELEMENTS:
        raise UnreadError(f"a vector of {element} that is given no values")
    begun = to_kind(0, kind) if kind is not None else _ELEMENTS[bare(element)]
    return Vector(element, [begun] * arguments[0])


def _of_torch(name: str, arguments: list[Any], **given: Any) -> Any:
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
    if function is None or any(isinstance(one, Options | Pointer) for one in arguments):
        raise UnreadError(f"the function at::{name}")
    return tried(f"at::{name}", function, arguments, given)


def _made(name: str, arguments: list[Any]) -> Any:
    given: dict[str, Any] = {}
    shape = []
    for one in arguments:
        if isinstance(one, Options):
            given |= one.given
        elif isinstance(one, torch.dtype):
            given["dtype"] = one
        elif isinstance(one, str | torch.device):
            given["device"] = one
        else:
            shape.append(one)
    return tried(f"torch::{name}", getattr(torch, name), shape, given)
