"""Measures matmuls, attention, memory, copies and Adam on a device with torch."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from zerokit.calibration.fits import fit_attention_costs
from zerokit.calibration.seconds import mean_of_ranks, seconds_of, summary_for
from zerokit.hardware.costs.attention import Attention, AttentionCurve, attention_work
from zerokit.hardware.costs.matmul import LAYOUTS

_LONGEST = 0.1
"""Maximum seconds of a matmul; larger ones are skipped."""
_LAUNCHES = 200


class Sizes(NamedTuple):
    """Sizes of the measured work."""

    sides: tuple[int, ...] = (64, 128, 512, 1024, 4096)
    """Sides of matrices."""
    heads: int = 4
    """Attention heads; enough to keep the device busy."""
    lengths: tuple[int, ...] = (128, 512, 2048)
    """Tokens of sequences."""
    moved: int = 2**26
    """Bytes of a tensor that is larger than the caches of most devices."""
    collective: int = 2**24
    """Bytes of a rank's largest buffer."""


class Matmul(NamedTuple):
    """A measured matmul (m, k) by (k, n)."""

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
    """Measures kernels on a device."""

    def __init__(self, device: str, ranks: int, sizes: Sizes) -> None:
        self.device, self.ranks, self.sizes = device, ranks, sizes

    def seconds(self, work: Callable[[], Any]) -> float:
        """Seconds of one call on the device, while the other ranks make the same call."""
        return mean_of_ranks(lambda: self._own_seconds(work), self.ranks, self.device)

    def _own_seconds(self, work: Callable[[], Any]) -> float:
        if self.device == "cpu":
            return seconds_of(work, summary=summary_for(self.ranks))
        cuda: Any = torch.cuda
        times: list[float] = []
        for _ in range(6):
            # The device is busy until everything is submitted, so that CPU time is not measured.
            cuda._sleep(2_000_000)
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return summary_for(self.ranks)(times)

    def matmuls(self, dtype: str) -> list[Matmul]:
        """Matmuls of many shapes, and square ones in all layouts."""
        found: list[Matmul] = []
        for m, n, k in sorted(itertools.product(self.sizes.sides, repeat=3), key=math.prod):
            fastest = max((one.rate for one in found), default=math.inf)
            if 2 * m * n * k <= fastest * _LONGEST:
                found += self._measure_shape(m, n, k, dtype, LAYOUTS if m == n == k else LAYOUTS[:1])
        return found

    def _measure_shape(self, m: int, n: int, k: int, dtype: str, layouts: tuple[str, ...]) -> Iterator[Matmul]:
        for layout in layouts:
            a = self._matrix(m, k, dtype, transposed=layout == "NT")
            b = self._matrix(k, n, dtype, transposed=layout == "TN")
            yield Matmul(layout, m, n, k, self.seconds(lambda a=a, b=b: torch.mm(a, b)))  # type: ignore[misc]

    def _matrix(self, rows: int, columns: int, dtype: str, *, transposed: bool) -> Any:
        shape = (columns, rows) if transposed else (rows, columns)
        made = torch.randn(shape, device=self.device).to(getattr(torch, dtype))
        return made.t() if transposed else made

    def attention(self, dtype: str, peak: float, multiprocessors: int | None) -> AttentionCurve:
        """The cost of each kind of work of torch's fused attention, relative to its time at `peak` FLOP/s."""
        works: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
        measured: dict[bool, list[float]] = {False: [], True: []}
        heads, lengths = self.sizes.heads, self.sizes.lengths
        for length, head_dim, causal in itertools.product(lengths, (64, 128), (False, True)):
            call = Attention(1, heads, heads, length, length, head_dim, causal)
            # As a projection returns them: the heads of a token are adjacent.
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
        return AttentionCurve(*(fit_attention_costs(works[passes], measured[passes]) for passes in (False, True)))

    def bandwidth(self) -> float:
        """Bytes per second, read and written, of a large elementwise kernel that is not in place."""
        large, other = (torch.ones(self.sizes.moved // 4, device=self.device) for _ in range(2))
        return 2 * self.sizes.moved / self.seconds(lambda: torch.mul(large, 1.0, out=other))

    def smallest_kernel(self) -> float:
        """Seconds of a kernel with a single element."""
        one = torch.ones(1, device=self.device)
        return self.seconds(lambda: one.mul_(1.0))

    def passes(self) -> Mapping[str, float]:
        """Seconds of other kernels relative to an elementwise one of the same bytes that is not in place.

        "layer_norm" and "softmax" reduce rows. "in_place" is faster on a processor, which reads memory
        before it overwrites it.
        """
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

    def launch(self) -> float:
        """CPU seconds of an operator that starts a kernel, without autograd."""
        one, other = (torch.ones(1, device=self.device) for _ in range(2))

        def launches() -> None:
            for _ in range(_LAUNCHES):
                torch.add(one, other)

        seconds = seconds_of(launches, time.thread_time) / _LAUNCHES
        if self.device == "cuda":
            torch.cuda.synchronize()
        return seconds

    def copies(self) -> Mapping[str, float]:
        """Bytes per second of copies from and to the host, and from pageable memory."""
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
    """Bytes per second of torch's fused Adam on the host, of all ranks together.

    It moves as many bytes as DeepSpeedCPUAdam: 28 per parameter.
    """
    parameter = torch.nn.Parameter(torch.zeros(2**23))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter], fused=True)

    def update() -> float:
        return seconds_of(optimizer.step, summary=summary_for(ranks))

    return 28 * 2**23 * ranks / mean_of_ranks(update, ranks, device)


def adam_bytes_per_thread(device: str, ranks: int) -> float:
    """Bytes per second of Adam on one thread; see :func:`adam_bytes_per_second`."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return adam_bytes_per_second(device, ranks) / ranks
    finally:
        torch.set_num_threads(usual)
