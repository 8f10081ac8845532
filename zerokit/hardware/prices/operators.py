"""What an operator of torch is to the prices, by its name and the sizes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.hardware.prices.attention import Attention

Sizes = Sequence[Sequence[int]]

_BITS = {
    **dict.fromkeys(("float64", "double", "int64", "long", "complex64"), 64),
    **dict.fromkeys(("float32", "float", "int32", "int", "tf32", "fp32"), 32),
    **dict.fromkeys(("float16", "half", "bfloat16", "int16", "short", "bf16", "fp16"), 16),
    **dict.fromkeys(("float4_e2m1fn_x2", "int4", "uint4"), 4),
    "complex128": 128,
}
_OTHER_BITS = 8  # bool, int8, uint8 and the kinds of float8


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VIEWS = _names(
    """view _unsafe_view reshape _reshape_alias t transpose permute expand alias detach slice select narrow
    squeeze unsqueeze as_strided split split_with_sizes chunk unbind unflatten flatten view_as
    movedim swapaxes mT diagonal lift lift_fresh empty empty_like empty_strided new_empty
    new_empty_strided resize_ set_ record_stream is_pinned is_same_size size stride numel dim
    sym_size sym_stride sym_numel unfold sym_storage_offset detach_ squeeze_ unsqueeze_ t_
    transpose_ as_strided_ view_as_real view_as_complex real imag _local_scalar_dense item
    _nested_view_from_buffer"""
)
"""Nothing runs on the device for these; that `item` waits is no price."""

_WRITES_ONLY = _names("zero_ fill_ normal_ uniform_ random_ bernoulli_ exponential_ trunc_normal_")
_REDUCTIONS = _names(
    """sum mean norm linalg_vector_norm amax amin max min any all argmax argmin prod var std logsumexp nansum
    nll_loss_forward nll_loss_nd cross_entropy_loss count_nonzero equal"""
)
_GATHERS = _names("embedding index_select gather index take_along_dim take")
_PRODUCTS = _names("mm addmm bmm baddbmm linear matmul mv addmv dot _scaled_mm _int_mm")
_CONVOLUTIONS = _names("convolution _convolution cudnn_convolution conv1d conv2d conv3d")


@dataclass(frozen=True)
class Product:
    """A matrix product, or a batch of them: (m, k) by (k, n)."""

    m: int
    n: int
    k: int
    batch: int = 1


@dataclass(frozen=True)
class AttentionCall:
    """A fused attention."""

    kernel: str
    backward: bool
    call: Attention


def short_name(name: str) -> str:
    """`mm` of "aten::mm.out" and of "aten.mm.default"."""
    return (
        name.replace("::", ".").removeprefix("torch.ops.").split(".")[1 if "." in name or "::" in name else 0]
    )


def dtype_name(dtype: str) -> str:
    """`bfloat16` of "torch.bfloat16", "BFloat16" and "c10::BFloat16"."""
    return dtype.rpartition(".")[2].rpartition(":")[2].lower()


def tensor_bytes(sizes: Sequence[int], dtype: str) -> int:
    """Of a tensor without gaps."""
    return math.prod(sizes) * _BITS.get(dtype_name(dtype), _OTHER_BITS) // 8


def is_view(name: str) -> bool:
    """Whether the operator starts nothing on the device."""
    return short_name(name) in _VIEWS


def product_of(name: str, sizes: Sizes) -> Product | None:
    """What an operator multiplies; None if that is none of its work."""
    short = short_name(name)
    if short in _CONVOLUTIONS and len(sizes) > 1 and len(sizes[0]) > 2 and len(sizes[1]) > 2:
        # Every place of the input starts a filter: an upper bound where a stride leaves some out.
        image, weight = sizes[0], sizes[1]
        return Product(image[0] * math.prod(image[2:]), weight[0], math.prod(weight[1:]))
    if short not in _PRODUCTS:
        return None
    factors = [one for one in sizes if one]
    if short in ("addmm", "baddbmm", "addmv"):
        factors = factors[1:]
    if len(factors) < 2:
        return None
    left, right = factors[0], factors[1]
    if short == "linear":
        return Product(math.prod(left[:-1]), right[0], left[-1])
    k = left[-1]
    columns = right[-1] if len(right) > 1 else 1
    if len(right) > 2:
        rows = left[-2] if len(left) > 1 else 1
        return Product(rows, columns, k, max(math.prod(left[:-2]), math.prod(right[:-2])))
    return Product(math.prod(left[:-1]), columns, k)


def attention_of(name: str, sizes: Sizes, scalars: Sequence[Any]) -> AttentionCall | None:
    """The attention that an operator is; None if it is none. Sizes are (batch, heads, length, head_dim), and
    (batch, length, heads, head_dim) for operators of flash-attn's own packages."""
    space = name.replace("::", ".").split(".")[0]
    short = short_name(name)
    backward = "backward" in short or "bwd" in short
    if short.startswith("_scaled_dot_product_"):
        kernel = next((one for word, one in _KERNELS if word in short), None)
        heads_first = True
    elif short in ("_flash_attention_forward", "_flash_attention_backward"):
        kernel, heads_first = "flash_attention_2", False
    elif short in ("_efficient_attention_forward", "_efficient_attention_backward"):
        kernel, heads_first = "efficient", False
    elif "flash_attn" in space:
        kernel = "flash_attention_3" if "3" in space else "flash_attention_2"
        heads_first = False
    else:
        return None
    tensors = [one for one in sizes if len(one) == 4]
    if kernel is None or len(tensors) < 3 + backward:
        return None
    query, key = (tensors[backward], tensors[backward + 1])
    order = (0, 1, 2, 3) if heads_first else (0, 2, 1, 3)
    batch, heads, q_len, head_dim = (query[at] for at in order)
    kv_heads, k_len = key[order[1]], key[order[2]]
    flags = [one for one in scalars if isinstance(one, bool)]
    if short.startswith("_scaled") and kernel != "flash_attention_2" and not backward:
        flags = flags[1:]  # the first one asks for the sums of the exponentials
    causal = bool(flags and flags[0])
    return AttentionCall(kernel, backward, Attention(batch, heads, kv_heads, q_len, k_len, head_dim, causal))


_KERNELS = (("flash", "flash_attention_2"), ("cudnn", "cudnn"), ("efficient", "efficient"))


def moved_bytes(name: str, sizes: Sizes, dtypes: Sequence[str], written_bytes: int | None = None) -> int:
    """Bytes that an operator reads and writes.

    Args:
        name: of the operator.
        sizes: of the tensors that it is given.
        dtypes: theirs.
        written_bytes: of its results; None: guessed by its name.
    """
    short = short_name(name)
    given = [tensor_bytes(size, dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    if not given:
        return written_bytes or 0
    whole = sum(given)
    if short in _WRITES_ONLY:
        return given[0]
    if short in _GATHERS:
        # The rows that are asked for are read, not the whole table.
        rows = math.prod(max(sizes[1:], key=math.prod)) if len(sizes) > 1 else 1
        width = sizes[0][-1] if sizes[0] and short in ("embedding", "index_select", "index") else 1
        gathered = min(tensor_bytes([rows, width], dtypes[0]), 2**62)
        written = gathered if written_bytes is None else written_bytes
        return whole - given[0] + 2 * written
    if written_bytes is not None:
        return whole + written_bytes
    if short in _REDUCTIONS:
        return whole
    if short == "cat" or short == "stack":
        return 2 * whole
    if short == "copy_":
        return given[0] + (given[1] if len(given) > 1 else 0)
    if short.startswith(("_foreach_", "_fused_", "_amp_foreach")):
        # Lists of tensors: an update reads all and writes about a half of them.
        return whole + whole // 2
    if short.endswith("_") and not short.startswith("_"):
        return whole + given[0]
    return whole + max(given)


def passes_of(name: str) -> str | None:
    """The kind of reduction along rows, which needs the bandwidth longer than one pass does."""
    short = short_name(name)
    if "softmax" in short:
        return "softmax"
    return "layer_norm" if "layer_norm" in short or "rms_norm" in short else None
