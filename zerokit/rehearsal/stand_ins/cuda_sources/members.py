"""Members of values that C++ of wrappers calls: of tensors, their options, vectors and optionals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import UNSIGNED_LONG, Whole
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import of_type, plain
from zerokit.rehearsal.stand_ins.cuda_sources.objects import (
    Address,
    Opaque,
    Options,
    Pointer,
    Present,
    TensorType,
    Thrown,
    Vector,
    check,
)
from zerokit.rehearsal.stand_ins.cuda_sources.operators import of_torch
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

_STREAMED = {"stream", "x", "y", "z", "multiProcessorCount"}
_VECTORS = {"split", "split_with_sizes", "chunk", "unbind", "tensor_split", "meshgrid", "broadcast_tensors"}
"""What Python gives in a tuple, and C++ in a vector."""


def tried(name: str, function: Any, arguments: list[Any], given: dict[str, Any]) -> Any:
    """What a function of torch's gives.

    Raises:
        Thrown: it fails.
        UnreadError: it does not take these arguments.
    """
    try:
        result = of_torch(function, *map(plain, arguments), **given)
    except Thrown as thrown:
        if isinstance(thrown.error, TypeError):
            raise UnreadError(f"the arguments of {name}") from None
        raise
    if not isinstance(result, tuple) or isinstance(result, torch.Size):
        return result
    return Vector("Tensor", result) if name.rpartition(":")[2] in _VECTORS else tuple(result)


def member(value: Any, name: str, arguments: list[Any] | None) -> Any:
    """What a member of `value` gives; a data member where `arguments` is None.

    Raises:
        UnreadError: it is not known what it does.
    """
    if isinstance(value, Opaque):
        if name in _STREAMED:
            return Opaque(f"{value.what}.{name}")
        raise UnreadError(f"what rests on {value.what}")
    if name in ("has_value", "defined") and (value is None or isinstance(value, Present | Tensor)):
        return value is not None
    if value is None or isinstance(value, Present):
        return _of_optional(value, name, arguments or [])
    check(*(arguments or ()))
    given = arguments or []
    if isinstance(value, Tensor):
        return _of_tensor(value, name, given)
    if isinstance(value, Options) and hasattr(value, name):
        return getattr(value, name)(*given)
    if isinstance(value, list | tuple) and not isinstance(value, TensorType | Pointer | Address):
        return _of_list(value, name, given)
    if isinstance(value, torch.device) and name in ("index", "is_cuda", "is_cpu", "type"):
        return {"index": value.index, "is_cuda": value.type == "cuda", "is_cpu": value.type == "cpu"}.get(
            name, value.type
        )
    if isinstance(value, TensorType) and name in ("is_cuda", "scalarType"):
        return value.is_cuda if name == "is_cuda" else value.dtype
    if isinstance(value, str) and name in ("c_str", "empty"):
        return value if name == "c_str" else not value
    if isinstance(value, str) and name in ("size", "length"):
        return Whole(len(value.encode()), UNSIGNED_LONG)
    raise UnreadError(f"the member {name}")


def _of_optional(value: Present | None, name: str, arguments: list[Any]) -> Any:
    if name == "value" and value is None:
        raise Thrown(RuntimeError("bad optional access"))
    if name == "value_or" and value is None:
        return arguments[0]
    if name in ("value", "value_or") and value is not None:
        return value.value
    raise UnreadError(f"the member {name} of an optional or of what is not there")


def _of_list(value: Any, name: str, arguments: list[Any]) -> Any:
    if name == "size":
        return Whole(len(value), UNSIGNED_LONG)
    if name == "empty":
        return not value
    if name == "vec":
        return Vector("int64_t", value)
    if name in ("push_back", "emplace_back") and isinstance(value, Vector) and len(arguments) == 1:
        return value.append(of_type(arguments[0], value.element))
    if name in ("clear", "pop_back") and isinstance(value, Vector):
        return value.clear() if name == "clear" else value.pop() and None
    if name == "at":
        if not 0 <= arguments[0] < len(value):
            raise Thrown(IndexError(f"index {arguments[0]} of {len(value)}"))
        return value[int(arguments[0])]
    if name in ("back", "front"):
        return value[-1 if name == "back" else 0]
    if name == "slice":
        begin, length = int(arguments[0]), int(arguments[1]) if arguments[1:] else len(value)
        return list(value)[begin : begin + length]
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
        return Options(dtype=tensor.dtype, device=tensor.device, layout=tensor.layout)
    if name == "type" and not arguments:
        return TensorType(tensor.dtype, tensor.is_cuda)
    if name in ("strides", "stride"):
        return list(tensor.stride()) if not arguments else tensor.stride(*map(plain, arguments))
    if name in ("toType", "to") and arguments and isinstance(arguments[0], Options):
        return tried(name, tensor.to, arguments[1:], arguments[0].given)
    name = "to" if name == "toType" else name
    function = getattr(tensor, name, None)
    if not callable(function) or any(isinstance(one, Options | Pointer) for one in arguments):
        raise UnreadError(f"the member {name} of a tensor")
    return tried(name, function, arguments, {})
