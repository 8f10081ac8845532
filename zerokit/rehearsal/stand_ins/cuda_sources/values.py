"""What C++ of wrappers calls of libraries, and what its values are in Python."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError
from zerokit.rehearsal.stand_ins.cuda_sources.words import NUMBERS


class Opaque(NamedTuple):
    """A value that is not followed, such as a stream. Nothing may rest on it."""

    what: str


class Pointer(NamedTuple):
    """To what a tensor holds."""

    tensor: Tensor
    is_read: bool = False
    """To const."""


class Guard(NamedTuple):
    """What an object sets for as long as it lives."""

    begin: Callable[[], AbstractContextManager[Any]]


class Options:
    """`torch::TensorOptions`."""

    def __init__(self, dtype: Any = None, device: Any = None) -> None:
        self.given = {"dtype": dtype, "device": device}

    def dtype(self, dtype: Any = None) -> Any:
        return self.given["dtype"] if dtype is None else Options(dtype, self.given["device"])

    def device(self, device: Any = None, index: int | None = None) -> Any:
        if device is None:
            return self.given["device"]
        return Options(self.given["dtype"], device if index is None else torch.device(device, index))

    def same(self, *_: Any) -> Options:
        return self

    layout = requires_grad = memory_format = same


_DTYPES = {
    "Float": torch.float32,
    "Float32": torch.float32,
    "Double": torch.float64,
    "Float64": torch.float64,
    "Half": torch.float16,
    "Float16": torch.float16,
    "BFloat16": torch.bfloat16,
    "Byte": torch.uint8,
    "UInt8": torch.uint8,
    "Char": torch.int8,
    "Int8": torch.int8,
    "Short": torch.int16,
    "Int16": torch.int16,
    "Int": torch.int32,
    "Int32": torch.int32,
    "Long": torch.int64,
    "Int64": torch.int64,
    "Bool": torch.bool,
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
SIZES = {
    **{"char": 1, "uint8_t": 1, "int8_t": 1, "bool": 1, "half": 2, "Half": 2, "BFloat16": 2, "short": 2},
    **{"__half": 2, "__nv_bfloat16": 2, "int": 4, "float": 4, "int32_t": 4, "uint32_t": 4, "unsigned": 4},
    **{"double": 8, "int64_t": 8, "uint64_t": 8, "size_t": 8, "long": 8},
}
_IGNORED = {
    *("C10_CUDA_KERNEL_LAUNCH_CHECK", "C10_CUDA_CHECK", "AT_CUDA_CHECK", "CUDA_CHECK", "assert"),
    *("CUDAGuard", "OptionalCUDAGuard", "DeviceGuard", "OptionalDeviceGuard", "device_of", "static_assert"),
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
_STREAMED = {"stream", "x", "y", "z", "multiProcessorCount"}


def _maximum(first: Any, *others: Any) -> Any:
    return max(first, *others) if others else max(first)


def _minimum(first: Any, *others: Any) -> Any:
    return min(first, *others) if others else min(first)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "max": _maximum,
    "min": _minimum,
    "abs": abs,
    "ceil": lambda value: float(math.ceil(value)),
    "floor": lambda value: float(math.floor(value)),
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "pow": math.pow,
}
"""Of numbers; torch has functions of these names for tensors."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_ARITHMETIC,
    "getenv": os.environ.get,
    "atoi": int,
    "stoi": int,
    "move": lambda value: value,
    "forward": lambda value: value,
    "make_tuple": lambda *parts: list(parts),
    "tuple": lambda *parts: list(parts),
    "make_pair": lambda *parts: list(parts),
    "string": str,
    "none": lambda: None,
    "Tensor": lambda value=None: value,
    "to_string": str,
    "runtime_error": RuntimeError,
    "logic_error": RuntimeError,
    "invalid_argument": ValueError,
    "domain_error": ValueError,
    "length_error": ValueError,
    "range_error": ValueError,
    "out_of_range": IndexError,
    "TensorOptions": Options,
    "dtype": Options,
    "optional": lambda value=None: value,
    "make_optional": lambda value: value,
    "device": lambda device, index=None: Options(
        None, device if index is None else torch.device(device, index)
    ),
    "Device": lambda device, index=0: torch.device(device, index),
    "IntArrayRef": list,
    "ArrayRef": list,
}


def check(*values: Any) -> None:
    """Raises:
    UnreadError: a value among them is not followed.
    """
    for value in values:
        if isinstance(value, Opaque):
            raise UnreadError(f"what rests on {value.what}")
        if isinstance(value, list):
            check(*value)


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
        return CONSTANTS["cudaSuccess"]
    if last in _ARITHMETIC and any(isinstance(one, Tensor) for one in arguments):
        check(*arguments)
        return _of_torch(last, arguments)
    is_of_torch = name.startswith(("torch::", "at::", "c10::"))
    if is_of_torch and last not in _FUNCTIONS:
        check(*arguments)
    if is_of_torch and last in _FACTORIES:
        return _made(last, arguments)
    if is_of_torch and last.endswith("_like") and arguments[1:] and isinstance(arguments[1], Options):
        given = {key: value for key, value in arguments[1].given.items() if value is not None}
        return getattr(torch, last)(arguments[0], **given)
    if last in _FUNCTIONS:
        unknown = [one for one in arguments if isinstance(one, Opaque)]
        return unknown[0] if unknown else _FUNCTIONS[last](*arguments)
    if not is_of_torch:
        raise UnreadError(f"the function {name}")
    if last.endswith("_out"):
        return _of_torch(last.removesuffix("_out"), arguments[1:], out=arguments[0])
    return _of_torch(last, arguments)


_ELEMENTS: dict[str, Any] = {"float": 0.0, "double": 0.0, "bool": False, "string": "", "Tensor": None}


def vector(element: str, arguments: list[Any]) -> list[Any]:
    """What a constructor of `std::vector` makes: of nothing, a count, a count and a value, or another one.

    Raises:
        UnreadError: it is not known what its elements begin as.
    """
    check(*arguments)
    if not arguments:
        return []
    if len(arguments) == 1 and isinstance(arguments[0], list | tuple):
        return list(arguments[0])
    if not isinstance(arguments[0], int) or len(arguments) > 2:
        raise UnreadError(f"a vector of {element} that is made so")
    if len(arguments) == 2:
        return [arguments[1]] * arguments[0]
    bare = element.rpartition("::")[2]
    if bare not in _ELEMENTS and bare not in NUMBERS:
        raise UnreadError(f"a vector of {element} that is given no values")
    return [_ELEMENTS.get(bare, 0)] * arguments[0]


def _of_torch(name: str, arguments: list[Any], **given: Any) -> Any:
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name, None)
    if function is None or any(isinstance(one, Options | Pointer) for one in arguments):
        raise UnreadError(f"the function at::{name}")
    return _tried(f"at::{name}", function, arguments, given)


def _tried(name: str, function: Any, arguments: list[Any], given: dict[str, Any]) -> Any:
    try:
        result = function(*arguments, **given)
    except TypeError:
        raise UnreadError(f"the arguments of {name}") from None
    return list(result) if isinstance(result, tuple) and not isinstance(result, torch.Size) else result


def _made(name: str, arguments: list[Any]) -> Any:
    given: dict[str, Any] = {}
    shape = []
    for one in arguments:
        if isinstance(one, Options):
            given |= {key: value for key, value in one.given.items() if value is not None}
        elif isinstance(one, torch.dtype):
            given["dtype"] = one
        else:
            shape.append(one)
    return _tried(f"torch::{name}", getattr(torch, name), shape, given)


def member(value: Any, name: str, arguments: list[Any] | None) -> Any:
    """What a member of `value` gives; a data member where `arguments` is None.

    Raises:
        UnreadError: it is not known what it does.
    """
    if isinstance(value, Opaque):
        if name in _STREAMED:
            return Opaque(f"{value.what}.{name}")
        raise UnreadError(f"what rests on {value.what}")
    if name in ("has_value", "defined"):
        return value is not None
    if name == "value":
        return value
    check(*(arguments or ()))
    if isinstance(value, Tensor):
        return _of_tensor(value, name, arguments or [])
    if isinstance(value, Options) and hasattr(value, name):
        return getattr(value, name)(*(arguments or []))
    if isinstance(value, list | torch.Size):
        return _of_list(value, name, arguments or [])
    if isinstance(value, torch.device) and name in ("index", "is_cuda", "is_cpu", "type"):
        return {"index": value.index, "is_cuda": value.type == "cuda", "is_cpu": value.type == "cpu"}.get(
            name, value.type
        )
    if isinstance(value, str) and name == "c_str":
        return value
    raise UnreadError(f"the member {name}")


def _of_list(value: Any, name: str, arguments: list[Any]) -> Any:
    if name in ("size", "empty", "vec"):
        return {"size": len(value), "empty": not value, "vec": list(value)}[name]
    if name in ("push_back", "emplace_back") and isinstance(value, list):
        return value.append(arguments[0])
    if name in ("back", "front", "at", "slice"):
        place = {"back": -1, "front": 0}.get(name, arguments[0] if arguments else 0)
        return value[place] if name != "slice" else value[place:]
    if name == "reserve":
        return None
    raise UnreadError(f"the member {name}")


_PROPERTIES = {
    **{
        "scalar_type": "dtype",
        "dtype": "dtype",
        "device": "device",
        "sizes": "shape",
        "itemsize": "itemsize",
    },
    **{"is_cuda": "is_cuda", "ndimension": "ndim", "nbytes": "nbytes", "requires_grad": "requires_grad"},
}


def _of_tensor(tensor: Tensor, name: str, arguments: list[Any]) -> Any:
    if name in ("data_ptr", "mutable_data_ptr", "data", "const_data_ptr", "unsafeGetTensorImpl"):
        return Pointer(tensor, is_read=name == "const_data_ptr")
    if name.startswith(("packed_accessor", "accessor")):
        return Pointer(tensor)
    if name in _PROPERTIES and not arguments:
        value = getattr(tensor, _PROPERTIES[name])
        return list(value) if name == "sizes" else value
    if name == "options":
        return Options(tensor.dtype, tensor.device)
    if name in ("strides", "stride"):
        return list(tensor.stride()) if not arguments else tensor.stride(*arguments)
    if name in ("toType", "to") and arguments and isinstance(arguments[0], Options):
        return tensor.to(**{key: one for key, one in arguments[0].given.items() if one is not None})
    name = "to" if name == "toType" else name
    if not hasattr(tensor, name) or any(isinstance(one, Options | Pointer) for one in arguments):
        raise UnreadError(f"the member {name} of a tensor")
    return _tried(name, getattr(tensor, name), arguments, {})
