"""Samples of Python's frames: how long each took by itself, and how many frames and operators it called."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch

from zerokit.rehearsal.native.build import SOURCES

SAMPLED = ("code", "frames", "operators", "nodes", "distance", "ns")
SAMPLE = np.dtype([(name, "i8") for name in SAMPLED])
"""A frame: its code, what it called itself (frames, operators, nodes of autograd), how many other functions ran since
the last call of its code, and its own nanoseconds.

Operators and nodes are samples, too, with :data:`OPERATOR` or :data:`NODE` in place of a code.
"""
OPERATOR, NODE = -1, -2
_SOURCE = Path(__file__).with_suffix(".cpp")
_CALLS, _REPEATED = 1000, 15


class Overhead(NamedTuple):
    """Nanoseconds that a frame's sample has beyond its own time, for each of what it called."""

    frame: float
    """The profiler's work around a callee."""
    operator: float
    """The same, and :attr:`binding`."""
    binding: float
    """The operator's own time outside torch's dispatcher: arguments and result."""


class Profiler:
    """Samples all frames of the thread that makes it, while it is on; when off, it changes nothing."""

    def __init__(self) -> None:
        torch_folder = Path(torch.__file__).parent
        ctypes.CDLL(str(torch_folder / "lib" / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
        self._library = ctypes.PyDLL(str(_build(torch_folder)))
        self._library.host_costs_count.restype = ctypes.c_int64
        self._library.host_costs_code_count.restype = ctypes.c_int64
        self._library.host_costs_code.restype = ctypes.py_object
        self._library.host_costs_code.argtypes = [ctypes.c_int64]
        self._library.host_costs_take.argtypes = [ctypes.c_void_p]
        if not self._library.host_costs_start():
            raise SystemExit("this Python does not report its frames")

    def samples(self, work: Callable[[], Any]) -> Any:
        """The samples of a call, an array of :data:`SAMPLE`."""
        self._library.host_costs_turn(1)
        try:
            work()
        finally:
            self._library.host_costs_turn(0)
        found = np.empty(self._library.host_costs_count(), SAMPLE)
        self._library.host_costs_take(found.ctypes.data)
        return found

    def codes(self) -> list[CodeType]:
        """Those that samples name by their place."""
        count = int(self._library.host_costs_code_count())
        return [self._library.host_costs_code(place) for place in range(count)]

    def overhead(self) -> Overhead:
        """Measure it with loops of empty functions and of views, with the profiler on and off."""

        def nothing() -> None:
            pass

        def calls() -> None:
            for _ in range(_CALLS):
                nothing()

        def views() -> None:
            result = tensor
            for _ in range(_CALLS):
                result = result.t()

        tensor = torch.ones(2, 2)

        def loop() -> None:
            for _ in range(_CALLS):
                pass

        def least(measure: Callable[[], float]) -> float:
            return min(measure() for _ in range(_REPEATED)) / _CALLS

        of_calls = least(lambda: self.samples(calls)["ns"].sum()) - least(lambda: _ns(calls))
        # The loop itself is the function's own.
        of_views = least(lambda: self.samples(views)["ns"][-1]) - least(lambda: _ns(loop))
        inside = least(lambda: self.samples(views)["ns"][:-1].sum())
        return Overhead(of_calls, of_views, max(least(lambda: _ns(views)) - inside, 0.0))


def _ns(work: Callable[[], Any]) -> int:
    begin = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - begin


def _build(torch_folder: Path) -> Path:
    """The library, compiled with torch's headers."""
    folder = Path(tempfile.mkdtemp())
    library = folder / "profiler.so"
    includes = [torch_folder / "include", torch_folder / "include" / "torch" / "csrc" / "api" / "include", SOURCES]
    strings = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    compiler = shutil.which("g++") or sysconfig.get_config_var("CXX")
    words = [compiler, "-O2", "-std=c++20", "-fPIC", "-Wall", strings, "-shared", str(_SOURCE), "-o", str(library)]
    subprocess.run([*words, *(f"-isystem{one}" for one in includes)], check=True)
    return library
