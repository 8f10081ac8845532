"""What a device takes for matrix products, attention, memory, copies and Adam, measured with torch."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from zerokit.calibration.fits import fitted_costs
from zerokit.calibration.seconds import chosen, seconds_at_once, seconds_of
from zerokit.hardware.prices.attention import Attention, AttentionCurve, attention_work
from zerokit.hardware.prices.matmul import LAYOUTS

_LONGEST = 0.1
"""Seconds that one product may take: larger ones are left out."""
_LAUNCHES = 200


class Sizes(NamedTuple):
    """Of what is measured."""

    sides: tuple[int, ...] = (64, 128, 512, 1024, 4096)
    """Of the matrices of products."""
    heads: int = 4
    """Of attention: as many as keep the device busy."""
    lengths: tuple[int, ...] = (128, 512, 2048)
    """Tokens of its sequences."""
    moved: int = 2**26
    """Bytes of a tensor that is larger than the caches of most devices."""
    collective: int = 2**24
    """Bytes of the largest buffer of a rank."""


class Product(NamedTuple):
    """A measured product (m, k) by (k, n)."""

    layout: str
    m: int
    n: int
    k: int
    seconds: float

    @property
    def rate(self) -> float:
        """Floating-point operations per second."""
        return 2 * self.m * self.n * self.k / self.seconds


class Kernels:
    """A device of torch's.

    Args:
        device: "cpu" or "cuda".
        ranks: which measure at once, each on a device of its own.
        sizes: of what is measured.
    """

    def __init__(self, device: str, ranks: int, sizes: Sizes) -> None:
        self.device, self.ranks, self.sizes = device, ranks, sizes

    def seconds(self, work: Callable[[], Any]) -> float:
        """Of one call on the device, while the other ranks do the same."""
        return seconds_at_once(lambda: self._own_seconds(work), self.ranks, self.device)

    def _own_seconds(self, work: Callable[[], Any]) -> float:
        import torch

        if self.device == "cpu":
            return seconds_of(work, of=chosen(self.ranks))
        cuda: Any = torch.cuda
        taken: list[float] = []
        for _ in range(6):
            # The device is kept busy until all is submitted, so that what the host takes is not measured.
            cuda._sleep(2_000_000)
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            cuda.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        return chosen(self.ranks)(taken)

    # ---- products and attention
    def products(self, dtype: str) -> list[Product]:
        """Of many shapes, and of squares in all layouts."""
        found: list[Product] = []
        for m, n, k in sorted(itertools.product(self.sizes.sides, repeat=3), key=math.prod):
            fastest = max((one.rate for one in found), default=math.inf)
            if 2 * m * n * k <= fastest * _LONGEST:
                found += self._of_shape(m, n, k, dtype, LAYOUTS if m == n == k else LAYOUTS[:1])
        return found

    def _of_shape(self, m: int, n: int, k: int, dtype: str, layouts: tuple[str, ...]) -> Iterator[Product]:
        import torch

        for layout in layouts:
            a = self._matrix(m, k, dtype, transposed=layout == "NT")
            b = self._matrix(k, n, dtype, transposed=layout == "TN")
            yield Product(layout, m, n, k, self.seconds(lambda a=a, b=b: torch.mm(a, b)))  # type: ignore[misc]

    def _matrix(self, rows: int, columns: int, dtype: str, *, transposed: bool) -> Any:
        import torch

        shape = (columns, rows) if transposed else (rows, columns)
        made = torch.randn(shape, device=self.device).to(getattr(torch, dtype))
        return made.t() if transposed else made

    def attention(self, dtype: str, peak: float, multiprocessors: int | None) -> AttentionCurve:
        """torch's fused attention: what each kind of its work costs in multiples of its time at `peak`.

        Args:
            dtype: of queries, keys and values.
            peak: floating-point operations per second.
            multiprocessors: of the device, if it is known.
        """
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        works: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
        measured: dict[bool, list[float]] = {False: [], True: []}
        heads, lengths = self.sizes.heads, self.sizes.lengths
        for length, head_dim, causal in itertools.product(lengths, (64, 128), (False, True)):
            call = Attention(1, heads, heads, length, length, head_dim, causal)
            # As a projection leaves them: a token's heads lie side by side.
            q, k, v = (
                torch.randn(1, length, heads, head_dim, device=self.device)
                .to(getattr(torch, dtype))
                .transpose(1, 2)
                .requires_grad_()
                for _ in range(3)
            )

            def attend(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Any:
                return scaled_dot_product_attention(q, k, v, is_causal=causal)

            out = attend()
            grad = torch.ones_like(out)

            def gradients(out: Any = out, inputs: Any = (q, k, v), grad: Any = grad) -> Any:
                return torch.autograd.grad(out, inputs, grad, retain_graph=True)

            for backward, work in ((False, attend), (True, gradients)):
                works[backward].append(attention_work(call, backward, multiprocessors))
                measured[backward].append(self.seconds(work) * peak)
        return AttentionCurve(*(fitted_costs(works[passes], measured[passes]) for passes in (False, True)))

    # ---- memory
    def bandwidth(self) -> float:
        """Bytes per second, read and written, of a large elementwise kernel with a result of its own."""
        import torch

        large, other = (torch.ones(self.sizes.moved // 4, device=self.device) for _ in range(2))
        return 2 * self.sizes.moved / self.seconds(lambda: torch.mul(large, 1.0, out=other))

    def smallest(self) -> float:
        """Seconds of a kernel that does next to nothing."""
        import torch

        one = torch.ones(1, device=self.device)
        return self.seconds(lambda: one.mul_(1.0))

    def passes(self) -> Mapping[str, float]:
        """Seconds of other kernels, by those of one that writes elsewhere what it makes of as many bytes.

        "layer_norm" and "softmax" go along rows. "in_place" writes what it has read: a processor, which first
        reads whatever it overwrites, has less to do for it.
        """
        import torch

        rows = torch.randn(self.sizes.moved // 4 // 2048, 2048, device=self.device)
        result = torch.empty_like(rows)
        plain = self.seconds(lambda: torch.mul(rows, 1.0, out=result))
        softmax = self.seconds(lambda: torch.softmax(rows, -1, out=result))
        norm = self.seconds(lambda: torch.nn.functional.layer_norm(rows, (2048,)))
        in_place = self.seconds(lambda: rows.mul_(1.0))
        return {
            "layer_norm": max(norm / plain, 1.0),
            "softmax": max(softmax / plain, 1.0),
            "in_place": min(in_place / plain, 1.0),
        }

    # ---- the host
    def launch(self) -> float:
        """Seconds of the host for an operator that starts a kernel, without autograd."""
        import torch

        one, other = (torch.ones(1, device=self.device) for _ in range(2))

        def launches() -> None:
            for _ in range(_LAUNCHES):
                torch.add(one, other)

        seconds = seconds_of(launches, time.thread_time) / _LAUNCHES
        if self.device == "cuda":
            torch.cuda.synchronize()
        return seconds

    def copies(self) -> Mapping[str, float]:
        """Bytes per second from and to the host, by direction, and through pageable memory."""
        import torch

        count = self.sizes.moved // 4
        pinned = torch.empty(count, pin_memory=self.device == "cuda")
        pageable, there = torch.empty(count), torch.empty(count, device=self.device)
        works = {
            "h2d": lambda: there.copy_(pinned, non_blocking=True),
            "d2h": lambda: pinned.copy_(there, non_blocking=True),
            "pageable": lambda: there.copy_(pageable),
        }
        return {name: self.sizes.moved / self.seconds(work) for name, work in works.items()}


def adam_bytes_per_second(device: str, ranks: int) -> float:
    """Of all ranks together, which share the host's memory, by torch's fused Adam on the host.

    Its updates move the bytes that DeepSpeedCPUAdam's do: 28 for each parameter.

    Args:
        device: torch's, on which the ranks exchange numbers.
        ranks: which measure at once.
    """
    import torch

    parameter = torch.nn.Parameter(torch.zeros(2**23))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter], fused=True)

    def update() -> float:
        return seconds_of(optimizer.step, of=chosen(ranks))

    return 28 * 2**23 * ranks / seconds_at_once(update, ranks, device)


def adam_bytes_per_thread(device: str, ranks: int) -> float:
    """Bytes per second of one thread of each rank; arguments as of :func:`adam_bytes_per_second`."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return adam_bytes_per_second(device, ranks) / ranks
    finally:
        torch.set_num_threads(usual)
