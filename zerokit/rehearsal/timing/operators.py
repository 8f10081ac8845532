"""What an operator costs, from what the library reports of its arguments and results.

The library (`native/timing.cpp`) asks once for each operator with arguments of given sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zerokit.hardware.costs.attention import keys_in_window, packed
from zerokit.hardware.costs.card_costs import CardCosts, Copy
from zerokit.hardware.costs.kernels import KERNELS, Kernel, Layout
from zerokit.hardware.costs.known import Class
from zerokit.hardware.costs.names import OVERWRITING, element_bytes, is_view, short_name
from zerokit.rehearsal.native.clock import Cost, WorkKind
from zerokit.rehearsal.recording import DTYPES
from zerokit.tables import table_of

_ON_DEVICE, _READ, _WRITTEN, _PINNED = 1, 2, 4, 8
_TENSOR, _LIST, _INTEGER, _FLOAT, _INTEGERS = range(1, 6)


@dataclass(frozen=True)
class TensorUse:
    """A tensor, or a list of them, among an operator's arguments or results."""

    flags: int
    dtype: str
    elements: int
    """In memory: what a stride of 0 repeats counts once."""
    sizes: tuple[int, ...] = ()
    """Empty for lists."""
    strides: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return self.elements * element_bytes(self.dtype)

    @property
    def on_device(self) -> bool:
        return bool(self.flags & _ON_DEVICE)

    @property
    def is_pinned(self) -> bool:
        return bool(self.flags & _PINNED)

    @property
    def is_read(self) -> bool:
        return bool(self.flags & _READ)

    @property
    def is_written(self) -> bool:
        return bool(self.flags & _WRITTEN)


@dataclass(frozen=True)
class Call:
    """An operator, with its arguments and then its results in the order of its schema."""

    name: str
    entries: tuple[Any, ...]
    """Tensors, numbers and tuples of numbers; None for all else."""

    @property
    def base(self) -> str:
        """The name without its overload."""
        return self.name.partition(".")[0]

    @property
    def tensors(self) -> list[TensorUse]:
        """Those that are read or written: what a result is put into comes as a result."""
        used = _READ | _WRITTEN
        return [one for one in self.entries if isinstance(one, TensorUse) and one.flags & used]

    def tensor(self, place: int) -> TensorUse:
        found = self.entries[place]
        assert isinstance(found, TensorUse), f"{self.name} has no tensor in place {place}"
        return found


def entries(key: Sequence[int]) -> Iterator[Any]:
    """The arguments and results in a key of the library, after the operator's name."""
    place = 1
    while place < len(key):
        kind, *rest = key[place : place + 5]
        if kind == _TENSOR:
            flags, dtype, elements, dimensions = rest
            sizes = place + 5
            place = sizes + 2 * dimensions
            shape, strides = key[sizes : sizes + dimensions], key[sizes + dimensions : place]
            yield TensorUse(flags, DTYPES[dtype], elements, tuple(shape), tuple(strides))
        elif kind == _LIST:
            flags, dtype, elements, _ = rest
            yield TensorUse(flags, DTYPES[dtype], elements)
            place += 5
        elif kind == _INTEGERS:
            yield tuple(key[place + 2 : place + 2 + rest[0]])
            place += 2 + rest[0]
        elif kind in (_INTEGER, _FLOAT):
            yield rest[0] if kind == _INTEGER else struct.unpack("<d", struct.pack("<q", rest[0]))[0]
            place += 2
        else:
            yield None
            place += 1


class Operators:
    """Costs of operators for ranks that share a node; each has `host_threads()` threads."""

    def __init__(self, costs: CardCosts, local_ranks: int, host_threads: Callable[[], int | None]) -> None:
        self._costs = costs
        self._local_ranks = local_ranks
        self._host_threads = host_threads

    def cost(self, call: Call) -> Cost:
        """Of one call."""
        if not any(one.on_device for one in call.entries if isinstance(one, TensorUse)):
            return self._of_host(call)
        tensors = call.tensors
        launch = to_ns(self._costs.launch(call.name))
        if call.base == "aten::copy_" and tensors[0].on_device != tensors[1].on_device:
            return self._copy(call, launch)
        if call.base == "aten::_local_scalar_dense":
            seconds = self._costs.copy("d2h", _SCALAR_BYTES, True, 1)
            return Cost(to_ns(seconds), launch, WorkKind.COPY, waits=True)
        waits = self._costs.waits or _waits(call)
        # What writes nothing, as views do, launches nothing; nor does what is empty.
        if not any(one.is_written and one.bytes for one in tensors) and not _waits(call):
            return Cost(0, launch)
        return Cost(to_ns(self._kernel(call)), launch, waits=waits)

    def _of_host(self, call: Call) -> Cost:
        """On tensors of the host, by the bytes that it moves; it has ended when it returns."""
        least = self._costs.launch("aten::view")
        seconds = 0.0 if is_view(call.name) else self._on_host(bytes_moved(call))
        if seconds < least:  # too short to be written down one by one
            return Cost(0, to_ns(least + seconds), WorkKind.HOST_OPERATOR)
        return Cost(0, to_ns(least), WorkKind.HOST_OPERATOR, host=to_ns(seconds))

    def _kernel(self, call: Call) -> float:
        products = _PRODUCTS.get(call.base)
        if products is not None:
            is_convolution = "convolution" in call.base
            found = (_in_tf32(one, is_convolution=is_convolution) for one in products(call))
            return sum(self._costs.matmul(*one) for one in found)
        if call.base in _ATTENTION:
            return self._costs.attention(*attention_arguments(call))
        return self._costs.memory_bound(bytes_moved(call), call.base)

    def _copy(self, call: Call, launch: int) -> Cost:
        """Between host and device (aten/src/ATen/native/cuda/Copy.cu, `copy_kernel_cuda`).

        The GPU converts the dtype of a copy that does not block, the CPU that of others, in pageable memory.
        """
        target, source, non_blocking, *_ = call.entries
        kind: Copy = "h2d" if target.on_device else "d2h"
        host, device = (source, target) if target.on_device else (target, source)
        converts = target.dtype != source.dtype
        pinned = host.is_pinned and (not converts or bool(non_blocking))
        on_the_way = (host if converts and non_blocking else device).dtype
        num_bytes = round(target.elements * element_bytes(on_the_way))
        seconds = self._costs.copy(kind, num_bytes, pinned, self._local_ranks)
        before = 0.0
        if converts and non_blocking:
            seconds += self._costs.memory_bound(source.bytes + target.bytes)
        elif converts and target.on_device:
            before = self._on_host(source.bytes + target.bytes)
        elif converts:  # the host waits for the copy, and then works
            seconds += self._on_host(source.bytes + target.bytes)
        # cudaMemcpyAsync comes back from pageable memory only when all of it has been read, or written.
        waits = not (non_blocking and pinned)
        return Cost(to_ns(seconds), launch, WorkKind.COPY, waits, to_ns(before))

    def _on_host(self, bytes_moved: int) -> float:
        return self._costs.on_host(bytes_moved, self._host_threads())


def to_ns(seconds: float) -> int:
    """In the clock's unit."""
    return round(seconds * 1e9)


# ---- what is read and written

_SCALAR_BYTES = 8
_TABLE = table_of(__file__)
_WAITING = frozenset[str](_TABLE["waiting"])
"""Operators that wait for the device, because their CUDA kernels read a size or an answer from it."""
_SELECTING = frozenset[str](_TABLE["selecting"])
"""Operators that touch no more of their first tensor than another one, or the result, has."""


def _waits(call: Call) -> bool:
    if call.name == "aten::repeat_interleave.Tensor":  # the size of the result is given, or is on the device
        return call.entries[1] is None
    return call.base in _WAITING


def bytes_moved(call: Call) -> int:
    """What a kernel without much arithmetic reads and writes."""
    first, *rest = call.tensors
    if call.base in _SELECTING and rest:
        touched = min(first.bytes, max(one.bytes for one in rest))
        return touched * (1 + first.is_written) + sum(one.bytes for one in rest)
    overwrites = short_name(call.name) in OVERWRITING
    return sum(
        one.bytes * ((one.is_read and not (one.is_written and overwrites)) + one.is_written) for one in call.tensors
    )


# ---- matrix products

Product = tuple[int, int, int, int, str, Layout | None]
"""m, n, k, batch, dtype and layout of (m, k) by (k, n)."""
_LAYOUTS: dict[tuple[bool, bool], Layout] = {(False, True): "TN", (False, False): "NN", (True, False): "NT"}


def _in_tf32(product: Product, *, is_convolution: bool) -> Product:
    """What float32 is computed in, by torch's switches as they are now."""
    m, n, k, batch, dtype, layout = product
    if dtype == "float32" and is_tf32_on(is_convolution=is_convolution):
        dtype = "tf32"
    return m, n, k, batch, dtype, layout


def is_tf32_on(*, is_convolution: bool = False) -> bool:
    """Whether matmuls or convolutions in float32 use TF32; by default only convolutions do."""
    import torch

    switch: Any = torch.backends.cudnn if is_convolution else torch.backends.cuda.matmul
    newer = getattr(switch, "conv", None) if is_convolution else switch
    precision = getattr(newer, "fp32_precision", None)  # from torch 2.9 on
    return bool(switch.allow_tf32) if precision is None else precision == "tf32"


def _product(call: Call, first: int) -> list[Product]:
    a, b = call.tensor(first), call.tensor(first + 1)
    batch = a.sizes[0] if len(a.sizes) == 3 else 1
    m, k = a.sizes[-2:]
    layout = _LAYOUTS.get((_is_transposed(a), _is_transposed(b)))
    return [(m, b.sizes[-1], k, batch, a.dtype, layout)]


def _is_transposed(matrix: TensorUse) -> bool:
    return matrix.strides[-1] != 1 and matrix.strides[-2] == 1


def _grouped(call: Call) -> list[Product]:
    """Groups of rows as one product; groups of columns, or of what is summed over, as a batch."""
    a, b, result = call.tensor(0), call.tensor(1), call.tensors[-1]
    ((m, n, k, batch, dtype, layout),) = _product(call, 0)
    if len(a.sizes) == len(b.sizes) == 2:
        groups = result.sizes[0]
        return [(m, n, max(k // groups, 1), groups, dtype, layout)]
    return [(m, max(n // batch, 1) if len(b.sizes) == 2 else n, k, batch, dtype, layout)]


def _convolution(call: Call) -> list[Product]:
    if call.entries[6]:  # transposed: the gradient of the input of one that goes the other way
        return [_of_gradient(_of_windows(call.tensor(0), call.tensor(1)))]
    return [_of_windows(call.tensors[-1], call.tensor(1))]


def _convolution_backward(call: Call) -> list[Product]:
    is_transposed = bool(call.entries[7])
    there = _of_windows(call.tensor(1 if is_transposed else 0), call.tensor(2))
    m, n, k, batch, dtype, _ = there
    products = [there if is_transposed else _of_gradient(there), (n, k, m, batch, dtype, "NT")]
    return [one for one, wanted in zip(products, call.entries[10][:2], strict=True) if wanted]


def _of_gradient(product: Product) -> Product:
    """Of the gradient of a convolution's input."""
    m, n, k, batch, dtype, _ = product
    return m, k, n, batch, dtype, "NN"


def _of_windows(output: TensorUse, weight: TensorUse) -> Product:
    """A convolution as the matmul over the input's windows; of a transposed one, `output` is the input."""
    channels = weight.sizes[0]
    return max(output.elements // channels, 1), channels, weight.elements // channels, 1, output.dtype, "TN"


_PRODUCTS: dict[str, Callable[[Call], list[Product]]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_scaled_mm"), lambda call: _product(call, 0)),
    **dict.fromkeys(("aten::addmm", "aten::_addmm_activation", "aten::baddbmm"), lambda call: _product(call, 1)),
    "aten::_grouped_mm": _grouped,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}


# ---- attention


def class_of_kernel(name: str) -> Class:
    """Which kind of cost a kernel has, by the operator's name or the one that its stand-in gives."""
    base = name.partition(".")[0]
    if base in _PRODUCTS:
        return "matmul"
    is_attention = base in _ATTENTION or name.partition(" ")[0] in KERNELS
    return "attention" if is_attention else "memory_bound"


class _Attention(NamedTuple):
    """The positions of the arguments of one of aten's fused attention operators."""

    kernel: Kernel
    is_causal: int
    query: int = 0
    """The key follows it. Forward passes have the query at 0, backward passes the gradient before it."""
    longest: int | None = None
    """The longest sequence's queries, then its keys; for operators that accept concatenated sequences."""
    heads_first: bool = False
    window: int | None = None
    """The keys that a query sees to its left, then those to its right."""


_ATTENTION = {name: _Attention(**row) for name, row in _TABLE["attention"].items()}
"""Positions of arguments by operator (aten/src/ATen/native/native_functions.yaml)."""
AttentionArguments = tuple[Kernel, bool, float, int, int, int, int, int, bool, str, int | None]


def attention_arguments(call: Call) -> AttentionArguments:
    """Those of `CardCosts.attention` for one of aten's fused attention operators."""
    where = _ATTENTION[call.base]
    query, key = call.tensor(where.query), call.tensor(where.query + 1)
    heads, length = (-3, -2) if where.heads_first else (-2, -3)
    batch: float = query.sizes[0] if len(query.sizes) == 4 else 1
    queries, keys = query.sizes[length], key.sizes[length]
    if where.longest is not None and all(longest := call.entries[where.longest : where.longest + 2]):
        batch, queries = packed(query.sizes[0] * (queries if len(query.sizes) == 4 else 1), longest[0])
        keys = min(keys, longest[1])
    window = () if where.window is None else call.entries[where.window : where.window + 2]
    is_causal = bool(call.entries[where.is_causal])
    return (
        *(where.kernel, where.query == 1, batch, query.sizes[heads], key.sizes[heads], queries, keys),
        *(query.sizes[-1], is_causal, query.dtype, keys_in_window(is_causal, *window)),
    )
