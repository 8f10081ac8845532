"""The streams of a rank and its host, as clocks that wait for each other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from operator import add

from zerokit.hardware.costs.known import Class


@dataclass(slots=True)  # and not frozen, as thousands are made
class Work:
    """Kernels that the host launches in a row. None is changed once it is made: others hold it, too."""

    host: float = 0.0
    """CPU seconds: launches, Python, autograd."""
    kernels: float = 0.0
    """Number of kernels."""
    matmul: float = 0.0
    """Seconds on the device, as the next two."""
    attention: float = 0.0
    memory_bound: float = 0.0
    device: float = field(init=False)
    """Seconds on the device."""

    def __post_init__(self) -> None:
        self.device = self.matmul + self.attention + self.memory_bound

    def __add__(self, other: Work) -> Work:
        return Work(*map(add, self._all, other._all))

    def __mul__(self, times: float) -> Work:
        return Work(*(a * times for a in self._all))

    @property
    def _all(self) -> tuple[float, ...]:
        return self.host, self.kernels, self.matmul, self.attention, self.memory_bound


@dataclass
class Streams:
    """Clocks in seconds since the start of a step."""

    slowdown: float
    """Factor of kernel times while a collective runs."""
    host: float = 0.0
    device: float = 0.0
    """When the compute stream is done."""
    gathering: float = 0.0
    """When the stream of parameter gathering is done."""
    prefetching: float = 0.0
    """From when on the next layer's parameters may be gathered."""
    reducing: float = 0.0
    """When the stream of gradient reduction is done."""
    copying: float = 0.0
    """When the inputs of checkpointed layers are in host memory."""
    busy: defaultdict[Class, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds on the compute stream, or for which it waited, by kind of work."""

    @property
    def now(self) -> Streams:
        """A copy."""
        return replace(self, busy=self.busy.copy())

    def repeat(self, before: Streams, times: int) -> None:
        """Go on `times` as long as since `before`."""
        self.host += times * (self.host - before.host)
        self.device += times * (self.device - before.device)
        self.gathering += times * (self.gathering - before.gathering)
        self.prefetching += times * (self.prefetching - before.prefetching)
        self.reducing += times * (self.reducing - before.reducing)
        self.copying += times * (self.copying - before.copying)
        for kind, seconds in self.busy.items():
            self.busy[kind] += times * (seconds - before.busy[kind])

    def run(self, work: Work, *, beside: float = 0.0) -> None:
        """Run kernels; `beside`: seconds of collectives on other streams meanwhile."""
        device = work.device
        slower = min(self.slowdown - 1, beside * (1 - 1 / self.slowdown) / device) if device else 0.0
        factor = 1 + slower
        device *= factor
        kernels, busy = max(work.kernels, 1.0), self.busy
        launched = self.host + work.host / kernels
        self.host += work.host
        self.device = max(self.device + device, launched + device, self.host + device / kernels)
        busy["matmul"] += work.matmul * factor
        busy["attention"] += work.attention * factor
        busy["memory_bound"] += work.memory_bound * factor

    def wait(self) -> None:
        """The host waits for the compute stream."""
        self.host = max(self.host, self.device)

    def host_until(self, time: float, kind: Class) -> None:
        """The host waits for work of another stream, and so does the compute stream if it has no other work."""
        if time > self.host:
            self.until(time, kind)
            self.host = time

    def until(self, time: float, kind: Class) -> None:
        """The compute stream waits for work of another stream."""
        waited = time - max(self.device, self.host)
        if waited > 0:
            self.busy[kind] += waited
        self.device = max(self.device, time)

    def exposed(self, kind: Class, seconds: float, host: float = 0.0) -> None:
        """Work on the compute stream that is no kernel: a collective or a copy."""
        self.host += host
        self.device = max(self.device, self.host) + seconds
        self.busy[kind] += seconds

    def on_host(self, seconds: float) -> None:
        """CPU work on tensors, such as the optimizer's."""
        self.host += seconds
        self.busy["host_optimizer"] += seconds
