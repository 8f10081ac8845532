"""The C++ backend, seen from Python: a thin face of `native/api.cpp`. Sizes are bytes.

Load it before torch, which then finds a CUDA device when it looks for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zerokit.errors import LaunchError
from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.native.build import NO_DRIVER, TESTED, TORCH, built_library, torch_folder
from zerokit.rehearsal.native.c_functions import declare
from zerokit.rehearsal.native.clock import Clock
from zerokit.rehearsal.recording import CATEGORY_CODES
from zerokit.reporting.categories import Category
from zerokit.reporting.phases import RUN_PHASES, RunPhase

if TYPE_CHECKING:
    import numpy
    import torch

    from zerokit.rehearsal.native.allocator_settings import AllocatorSettings


FINDER = ctypes.CFUNCTYPE(ctypes.c_int32)
"""Finds the index of the calling line."""
_BROUGHT = {5: 90100, 7: 90501, 8: 91002, 11: 91900, 12: 92000, 14: 92400}
"""By the first minor release of torch 2 whose wheels on PyPI require it, as CUDNN_VERSION writes it."""
_REQUIRED = re.compile(r"nvidia-cudnn-cu\d+\s*\(?==(\d+)\.(\d+)\.(\d+)")


def cudnn_release(torch: str, required: Iterable[str]) -> int:
    """The cuDNN of the CUDA build of a torch, as CUDNN_VERSION writes it: 9.10.2 is 91002.

    A CUDA build names it among its requirements. For a CPU build it is that of PyPI's CUDA wheels.
    """
    for line in required:
        if found := _REQUIRED.match(line):
            major, minor, patch = (int(part) for part in found.groups())
            return major * 10_000 + minor * 100 + patch
    minor_release = int(torch.split(".")[1])
    return _BROUGHT[max(first for first in _BROUGHT if first <= max(minor_release, min(_BROUGHT)))]


def parts_of(tensor: Any) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own: of a DTensor this rank's part."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, torch.Tensor):  # a DTensor names its mesh as well
            yield from parts_of(part)


class NoteKind(enum.IntEnum):
    """Kinds of notes of the library (native/dispatch.h)."""

    MADE_UP = 0
    GAP = 1
    OTHER_DEVICE = 2


class Note(NamedTuple):
    """A note of the library for the report."""

    kind: NoteKind
    what: str
    site: int
    """Index of the calling line, or -1."""
    times: int


STATS = (
    *("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes"),
    *("active_bytes", "inactive_split_bytes", "requested_bytes"),
)
"""The statistics of torch.cuda.memory_stats that the allocator model keeps, in the library's order."""
POOLS = ("all", "small_pool", "large_pool")
FIELDS = ("current", "peak", "allocated", "freed")


class Model(enum.IntEnum):
    """A model of torch's caching allocator."""

    ORDINARY = 0
    EXPANDABLE = 1
    ANSWERING = 2
    """The one of the two that `torch.cuda` answers from, by PYTORCH_CUDA_ALLOC_CONF."""


SMALL_BYTES = 2**16
"""kSmallBytes of native/blocks.h: what a smaller tensor holds is always computed, since scripts read it."""


class Backend:
    """The loaded library. There is one for each process: see :func:`load`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._site_finder: Any = None  # ctypes does not keep callbacks alive
        self._peaks_before_reset: dict[Model, dict[str, int]] = {}
        self._flops_by_phase: dict[RunPhase, float] = dict.fromkeys(RUN_PHASES, 0.0)
        self._fp32_flops_by_phase = dict(self._flops_by_phase)
        self.clock: Clock | None = None
        """None: only memory is rehearsed, and all work is done at once."""
        declare(library, "zk_")

    def configure(
        self,
        *,
        own_device: int,
        visible_devices: int,
        allocator: AllocatorSettings,
        capability: tuple[int, int],
        multiprocessors: int,
    ) -> None:
        """Set the device up, before its first allocation."""
        self._library.zk_set_devices(own_device, visible_devices)
        self._library.zk_set_multiprocessors(multiprocessors)
        self._library.zk_set_cudnn_version(cudnn_release(version("torch"), requires("torch") or ()))
        self._library.zk_configure_device(*capability, 0)
        self._library.zk_configure_allocator(
            int(allocator.expandable_segments),
            allocator.max_split_size_bytes,
            allocator.large_segment_size_bytes,
            allocator.max_non_split_rounding_bytes,
            allocator.roundup_power2_divisions,
        )

    def start_clock(self, beside_collective: float, can_block: bool) -> Clock:
        """Rehearse time, too; before :meth:`configure`. See :class:`Clock`."""
        self.clock = Clock(self._library, beside_collective, can_block)
        return self.clock

    def take_over(self) -> None:
        """Put the virtual device and its host kernels in the place of torch's own.

        Raises:
            LaunchError: the library does not fit this torch.
        """
        if refusal := self._library.zk_take_over().decode():
            raise LaunchError(
                f"the virtual device does not fit torch {version('torch')}: {refusal}",
                where="rehearsal",
                hint=f"Install a version that zerokit is tested with: torch {TESTED}",
            )

    def find_sites_with(self, finder: Callable[[], int]) -> None:
        """Ask `finder` for the index of the calling line whenever a large block is made."""
        self._site_finder = FINDER(finder)
        self._library.zk_set_site_finder(self._site_finder)

    @property
    def phase(self) -> RunPhase:
        """The phase that allocations are written down under."""
        return RUN_PHASES[int(self._library.zk_phase())]

    @phase.setter
    def phase(self, phase: RunPhase) -> None:
        self._flops_by_phase[self.phase] += self.flops - sum(self._flops_by_phase.values())
        fp32_flops = float(self._library.zk_fp32_flops())  # of matmuls and convolutions
        self._fp32_flops_by_phase[self.phase] += fp32_flops - sum(self._fp32_flops_by_phase.values())
        self._library.zk_set_phase(RUN_PHASES.index(phase))

    def flops_of(self, phase: RunPhase) -> float:
        """Floating-point operations in all times that the run was in `phase`, once it has left it."""
        return self._flops_by_phase[phase]

    def fp32_share_of(self, phase: RunPhase) -> float:
        """The share of these operations in fp32."""
        return self._fp32_flops_by_phase[phase] / max(self._flops_by_phase[phase], 1.0)

    def set_step(self, step: int) -> None:
        """Number of optimizer steps that are completed."""
        self._library.zk_set_step(step)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave this thread's allocations out of every figure."""
        self._library.zk_set_counting(0)
        try:
            yield
        finally:
            self._library.zk_set_counting(1)

    @contextlib.contextmanager
    def page_locking(self) -> Iterator[None]:
        """Count this thread's host allocations as pinned memory, at exactly their size."""
        self._library.zk_set_page_locking(1)
        try:
            yield
        finally:
            self._library.zk_set_page_locking(0)

    @property
    def current_stream(self) -> int:
        """This thread's CUDA stream; 0 is the default stream."""
        return int(self._library.zk_current_stream())

    @current_stream.setter
    def current_stream(self, stream: int) -> None:
        self._library.zk_set_current_stream(stream)

    def never_fill(self, tensor: torch.Tensor) -> None:
        """Keep the host memory behind `tensor` empty, as a weight's, unless it has been written."""
        self._library.zk_never_fill(tensor.untyped_storage()._cdata)

    def make_up(self, tensor: torch.Tensor) -> None:
        """Mark `tensor` as written by code that is not run: it has no values."""
        self._library.zk_make_up(tensor._cdata)

    def block_at(self, address: int) -> tuple[int, int]:
        """The start and size in bytes of the device's block that holds `address`; (0, 0) if none does."""
        begin = ctypes.c_void_p()
        size = self._library.zk_block_at(address, ctypes.byref(begin))
        return begin.value or 0, int(size)

    def make_up_at(self, address: int) -> None:
        """As :meth:`make_up`, by an address; what a block below `SMALL_BYTES` holds is left."""
        self._library.zk_make_up_at(address)

    def label(self, tensor: torch.Tensor, category: Category, name: int = -1) -> None:
        """Say what the blocks behind `tensor` are for; `name` is an index into the recording's names."""
        for part in parts_of(tensor):
            self._library.zk_label(part.untyped_storage()._cdata, CATEGORY_CODES.index(category), name)

    def is_made_up(self, storage: torch.UntypedStorage) -> bool:
        """Whether the contents of `storage` depend on values that do not exist."""
        return bool(self._library.zk_is_made_up(storage._cdata))

    def resize_storage(self, storage: torch.UntypedStorage, size: int) -> None:
        """What `UntypedStorage.resize_` does on a CUDA build."""
        self._library.zk_resize_storage(storage._cdata, size)

    def new_generator(self) -> torch.Generator:
        """A random generator of the device, where torch does not ask the library for one: before 2.7."""
        import torch

        libraries = Path(torch.__file__).parent / "lib"
        python = ctypes.PyDLL(str(libraries / "libtorch_python.so"))
        # THPGenerator_Wrap of torch/csrc/Generator.h, of an at::Generator or in 2.6 a const reference to one.
        wrap = getattr(python, "_Z17THPGenerator_WrapN2at9GeneratorE", None)
        wrap = wrap or python._Z17THPGenerator_WrapRKN2at9GeneratorE
        wrap.restype, wrap.argtypes = ctypes.py_object, [ctypes.c_void_p]
        generator: torch.Generator = wrap(self._library.zk_new_generator())
        return generator

    def reset_peak(self) -> None:
        """Start new peaks of the device's memory from what is allocated now."""
        # Scripts and DeepSpeed reset the peaks of torch.cuda; the report's are of the whole run.
        self._peaks_before_reset = {model: self.whole_run_peaks(model) for model in (Model.ORDINARY, Model.EXPANDABLE)}
        self._library.zk_reset_peak()

    def whole_run_peaks(self, model: Model) -> dict[str, int]:
        """The peak of each of :data:`STATS` since the start, whatever was reset in between."""
        before = self._peaks_before_reset.get(model, {})
        return {stat: max(self.stat(model, stat, "peak"), before.get(stat, 0)) for stat in STATS}

    def synchronize(self) -> None:
        """Let all streams catch up, so that blocks waiting for them are free."""
        self._library.zk_synchronize()

    def empty_cache(self) -> None:
        """Give unused segments of both allocator models back."""
        self._library.zk_empty_cache()

    def begin_pool(self, number: int) -> None:
        """Allocate from the private pool `number`, from here to :meth:`end_pool`: a use of it."""
        self._library.zk_begin_pool(number)

    def end_pool(self) -> None:
        """Allocate from the default pools again."""
        self._library.zk_end_pool()

    def release_pool(self, number: int) -> None:
        """End a use of a private pool, whose memory :meth:`empty_cache` gives back once there is none."""
        self._library.zk_release_pool(number)

    def stats(self, model: Model) -> dict[str, int]:
        """Statistics under the names of `torch.cuda.memory_stats`, flat ("reserved_bytes.all.peak")."""
        names = [f"{stat}.{pool}.{field}" for stat in STATS for pool in POOLS for field in FIELDS]
        found = {name: int(self._library.zk_stat(model, which)) for which, name in enumerate(names)}
        # The models have no limit: a run that does not fit shows by how much.
        return {**found, "num_alloc_retries": 0, "num_ooms": 0}

    def stat(self, model: Model, stat: str, field: str) -> int:
        """One figure of :meth:`stats`, over all pools."""
        which = STATS.index(stat) * len(POOLS) * len(FIELDS) + FIELDS.index(field)
        return int(self._library.zk_stat(model, which))

    @property
    def awaited_blocks(self) -> int:
        """Blocks that were released while another stream used them (`record_stream`)."""
        return int(self._library.zk_awaited_blocks())

    def spans(self, dtype: numpy.dtype[Any]) -> numpy.ndarray[Any, Any]:
        """What was done, and when, as an array of `dtype` (recording.SPAN), in the order of its ends."""
        if self.clock is None:
            import numpy

            return numpy.zeros(0, dtype)
        count = self._library.zk_clock_span_count()
        return _copied(self._library.zk_clock_copy_spans, count, dtype)

    def events(self, dtype: numpy.dtype[Any]) -> numpy.ndarray[Any, Any]:
        """A copy of the event log, as an array of `dtype` (recording.EVENT)."""
        return _copied(self._library.zk_copy_events, self._library.zk_event_count(), dtype)

    def blocks(self, dtype: numpy.dtype[Any]) -> numpy.ndarray[Any, Any]:
        """A copy of the records of all blocks, as an array of `dtype` (recording.BLOCK)."""
        return _copied(self._library.zk_copy_blocks, self._library.zk_block_count(), dtype)

    def block_count(self) -> int:
        """Number of blocks so far; the next one's place in :meth:`blocks`."""
        return int(self._library.zk_block_count())

    def event_count(self) -> int:
        """Length of the event log so far."""
        return int(self._library.zk_event_count())

    def operator_names(self) -> list[str]:
        """Names that a block's `op` indexes."""
        return [name.decode() for name in self._library.zk_operator_names().splitlines()]

    def notes(self) -> list[Note]:
        """What is to be said beside the figures."""
        lines = [line.split("\t") for line in self._library.zk_notes().decode().splitlines()]
        return [Note(NoteKind(int(kind)), what, int(site), int(count)) for kind, what, site, count in lines]

    def use_device(self, index: int) -> bool:
        """Note which device the script selects; False if the rank does not see it."""
        return bool(self._library.zk_use_device(index))

    @property
    def random_elements_skipped(self) -> int:
        """Random numbers of the host that a real run would have drawn to fill parameters."""
        return int(self._library.zk_random_elements_skipped())

    @property
    def flops(self) -> float:
        """Floating-point operations of matrix products and attention since the start."""
        return float(self._library.zk_flops())

    def count_flops(self, flops: float) -> None:
        """Count operations that are done again without being called."""
        self._library.zk_count_flops(flops)


class _Library:
    """The library of this process, which loads it once, before torch."""

    loaded: Backend | None = None


def load() -> Backend:
    """Build the library if needed, and load it into this process.

    Raises:
        LaunchError: torch is already imported, or the library cannot be built.
    """
    library = rank_context().state(_Library)
    if library.loaded is None:
        if "torch" in sys.modules:
            raise LaunchError(
                "torch is imported already, and has looked for its devices",
                where="rehearsal",
                hint="Import zerokit.rehearsal and open virtual_cluster() before anything that imports torch",
            )
        library.loaded = Backend(_open(built_library()))
    return library.loaded


def is_loaded() -> bool:
    """Whether this process has loaded the library."""
    return rank_context().state(_Library).loaded is not None


def backend() -> Backend:
    """The loaded library. LaunchError if it is not loaded."""
    loaded = rank_context().state(_Library).loaded
    if loaded is None:
        raise LaunchError("no rehearsal is running", where="rehearsal", hint="Open virtual_cluster() first")
    return loaded


def uncounted() -> contextlib.AbstractContextManager[None]:
    """A context in which this thread's allocations are left out of every figure."""
    return backend().uncounted()


def is_made_up(tensor: torch.Tensor) -> bool:
    """Whether the contents of `tensor` depend on values that do not exist."""
    return backend().is_made_up(tensor.untyped_storage())


def _open(library: Path) -> ctypes.CDLL:
    # NVML would tell torch of a GPU that this machine happens to have; for others there is a stand-in then.
    sys.modules.setdefault("pynvml", None)  # type: ignore[arg-type]
    ctypes.CDLL(str(library.with_name(NO_DRIVER)))
    # What the script starts finds no GPU either; in this process the variable has been read already.
    searched = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(searched)
    global_deps, libtorch = (str(torch_folder() / "lib" / name) for name in TORCH)
    # torch itself loads this first, for the libraries of threads and of CUDA that its own depend on.
    ctypes.CDLL(global_deps, mode=ctypes.RTLD_GLOBAL)
    # On a CUDA build this has torch's own kernels and hooks, which the library then replaces.
    ctypes.CDLL(libtorch)
    return ctypes.CDLL(str(library))


def _copied(copy: Callable[[int, int], None], count: int, dtype: numpy.dtype[Any]) -> numpy.ndarray[Any, Any]:
    import numpy

    rows: numpy.ndarray[Any, Any] = numpy.zeros(count, dtype)
    copy(rows.ctypes.data, count)
    return rows
