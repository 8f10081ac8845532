"""Peak memory of this process, measured: GPU memory on a GPU, resident memory on CPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_KIB = 1024


class PeakMemory:
    """Peak bytes since :meth:`start`, above what was in use then.

    On a GPU these are torch's allocated bytes. On CPU it is the growth of the process's resident set,
    in which libraries loaded later and the allocator's reserves count too.
    """

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._baseline = 0

    def start(self) -> None:
        """Begin a measurement: the peak is reset, what is in use now is the baseline."""
        if self._cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self._baseline = torch.cuda.memory_allocated()
        else:
            # Writing 5 resets the kernel's high-water mark of this process (proc(5)).
            # Some sandboxes forbid it: the peak is then that of the process's whole life.
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
            self._baseline = _status_bytes("VmRSS")

    def read(self) -> int:
        """Peak bytes above the baseline."""
        if self._cuda:
            import torch

            return torch.cuda.max_memory_allocated() - self._baseline
        return _status_bytes("VmHWM") - self._baseline


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * _KIB
    raise KeyError(field)
