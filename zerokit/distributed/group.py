"""The process group, and phases that every rank leaves together.

A rank that exits alone leaves the others waiting in a collective for half an hour, and a launcher that sees
one rank fail ends the others before rank 0 could report why. So everything that can fail on bad input runs
inside :meth:`RankGroup.together`: all ranks raise the same error and leave through :func:`run_on_all_ranks`.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from zerokit import __version__, console
from zerokit.choices import Precision
from zerokit.distributed.exit_reports import exit_now, mark_outside_cause
from zerokit.distributed.launcher_watch import watch
from zerokit.distributed.other_hosts import OtherHosts
from zerokit.distributed.preemption import SAVE_WITHIN, SIGNALS, LeaveRequest
from zerokit.distributed.ranks import STUCK_AFTER, Ranks, port_taken, read_ranks
from zerokit.distributed.run_policy import RunPolicy
from zerokit.distributed.stuck import StuckWatch, Work
from zerokit.errors import DataError, LaunchError, PreemptedError, RankError, ZerokitError, visible_lines
from zerokit.exits.causes import OUTSIDE_CAUSES
from zerokit.exits.explain import explain_log
from zerokit.exits.log import Log
from zerokit.extras import package_versions, version_differences
from zerokit.files import explain_file_errors
from zerokit.units import quantity

T = TypeVar("T")

_STEP_TIMEOUT = timedelta(minutes=30)
"""Limit of a collective of a step."""
_PREPARATION_TIMEOUT = timedelta(days=7)
"""Limit while one rank downloads a model or tokenizes a data set."""


class RankGroup:
    """All ranks of a run. The torch process group opens at the first exchange between ranks."""

    _num_stores = 0
    """Of all groups of this process, which share torch's store."""

    def __init__(self, ranks: Ranks, *, save_within: float = SAVE_WITHIN) -> None:
        self.ranks = ranks
        self.policy = RunPolicy.current()
        self.work = Work()
        self.leave_request = LeaveRequest(ranks.rank, save_within)
        self._objects_group: Any = None
        self._hosts: OtherHosts | None = None

    def together(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank and return its result, or raise on all ranks what failed on any.

        `action` must not communicate: a rank that fails would leave the others waiting. Only
        :class:`ZerokitError` and errors of the system about files are shared. Any other exception is a bug
        and ends its rank with a traceback; the launcher then ends the others.
        """
        result: T | None = None
        error: ZerokitError | None = None
        try:
            with explain_file_errors():
                result = action()
        except ZerokitError as raised:
            error = raised
        errors = self.gather_objects(error)
        for rank, first in enumerate(errors):
            if first is not None:
                if rank and self._hosts is not None and self._hosts.names[rank] != self._hosts.names[0]:
                    for each in (first, *first.others):
                        each.message = f"on {self._hosts.names[rank]}: {each.message}"
                raise first
        return result  # type: ignore[return-value]  # no error, so the action returned

    def node_main_first(self, action: Callable[[], T]) -> T:
        """Run `action` on one rank of each node, then on the others, which find its files cached."""
        is_first = self.ranks.is_node_main
        first: Any = self.together(lambda: action() if is_first else None)
        return self.together(lambda: first if is_first else action())

    def from_node_main(self, action: Callable[[], T], *, where: str) -> T:
        """Run `action` on one rank of each node and return its result on all ranks.

        Args:
            action: returns file contents (picklable), which must be the same on all nodes.
            where: the place of the files in the user's input.

        Raises:
            ZerokitError: `action` raised it on a node, or the results differ.
        """
        is_main, host = self.ranks.is_node_main, socket.gethostname()
        own = self.together(lambda: [action()] if is_main else [])
        results = [(name, one) for name, mains in self.gather_objects((host, own)) for one in mains]
        for name, result in results:
            if result != results[0][1]:
                raise DataError(
                    f"the files have different content on {results[0][0]} and {name}",
                    where=where,
                    hint="Copy the same files to all machines",
                )
        here = [result for name, result in results if name == host]
        return here[0] if here else action()  # in a rehearsal, the rank that would act may be left out

    def from_main(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result (picklable) on every rank, or raise its error there.

        A rehearsal may leave rank 0 out: each of its ranks runs `action`.
        """
        acts = self.ranks.is_main or not self.policy.has_all_ranks
        result: Any = self.together(lambda: action() if acts else None)
        return self.broadcast_object(result)  # type: ignore[no-any-return]

    def broadcast_object(self, value: T) -> T:
        """Rank 0's `value` (picklable), on every rank."""
        if self.ranks.world_size == 1:
            return value
        import torch.distributed as dist

        self._open()
        values = [value]  # a rank that is rehearsed alone hears nobody, and keeps its own
        dist.broadcast_object_list(values, src=0, group=self._objects_group)
        return values[0]

    def gather_objects(self, value: T) -> list[T]:
        """The `value` of every rank (picklable), in rank order, on every rank."""
        if self.ranks.world_size == 1:
            return [value]
        import torch.distributed as dist

        self._open()
        values: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(values, value, group=self._objects_group)
        return values

    def first(self, value: T | None) -> T | None:
        """The first `value` of a rank (picklable) that is not None, on every rank; None if there is none."""
        return next((each for each in self.gather_objects(value) if each is not None), None)

    def unseeing_host(self, sees: Callable[[], bool]) -> str | None:
        """The name of a machine that does not see what another one has written; None on one machine."""
        if self.ranks.local_world_size == self.ranks.world_size:
            return None
        return self.first(None if sees() else socket.gethostname())

    def share(self, items: list[T]) -> list[T]:
        """This rank's part of items that all ranks divide."""
        return items[self.ranks.rank :: self.ranks.world_size]

    def store(self) -> Any:
        """A new key-value store (``torch.distributed.Store``) of all ranks, which must call this together."""
        import torch.distributed as dist

        if self.ranks.world_size == 1 or not self.policy.has_all_ranks:
            return dist.HashStore()  # type: ignore[attr-defined]
        self._open()
        RankGroup._num_stores += 1
        of_all = dist.distributed_c10d._get_default_store()
        return dist.PrefixStore(f"zerokit/{RankGroup._num_stores}", of_all)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Leave the process group, and tell the other hosts that it is on purpose."""
        if self._hosts is not None:
            self._hosts.leave()
        if "torch" not in sys.modules:
            return
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    def _open(self) -> None:
        if self._objects_group is not None:
            return
        import torch
        import torch.distributed as dist

        # NCCL connects at the first collective, not here: a rank without a GPU of its own gets through to
        # report that over gloo.
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if not dist.is_initialized():  # by an engine that was made without this group
            dist.init_process_group(backend, timeout=_STEP_TIMEOUT)
        self._objects_group = dist.new_group(backend="gloo", timeout=_PREPARATION_TIMEOUT)
        if self.ranks.world_size > self.ranks.local_world_size:
            self._hosts = OtherHosts(self.ranks, self.gather_objects)
            self._refuse_other_versions(self._hosts.names)

    def _refuse_other_versions(self, hosts: list[str]) -> None:
        """Raise LaunchError on all ranks if a host has other package versions than rank 0's."""
        first, *others = self.gather_objects({**package_versions(), "zerokit": __version__})
        for rank, theirs in enumerate(others, 1):
            if what := version_differences(theirs, first, f"on {hosts[0]}"):
                hint = "Install the same on all: pip freeze on one, pip install -r on the others"
                raise LaunchError(f"has other versions: {what}", where=f"rank {rank} on {hosts[rank]}", hint=hint)


def count_gpus() -> int:
    """The NVIDIA (or ROCm) GPUs that torch can use on this node."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_precision() -> Precision:
    """Default precision of this machine: bf16 on GPUs that have it, else fp16; fp32 on CPU."""
    import torch

    if count_gpus() == 0:
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def run_on_all_ranks(
    main: Callable[[RankGroup], None], *, stuck_after: float = STUCK_AFTER, save_within: float = SAVE_WITHIN
) -> int:
    """Run a command on this rank and return the exit code of the whole run.

    Args:
        stuck_after: seconds after which a stuck rank, and with it the run, is ended; 0: never.
        save_within: seconds to save when the run is asked to leave; 0: it leaves at once.

    Returns:
        0 after success; :attr:`ZerokitError.exit_code` after bad input, the end of a single rank or a
            preemption;
        130 after Ctrl-C; 1 after any other exception, with its traceback.
    """
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        # The deepspeed launcher shows each rank GPUs even so, and transformers would take them.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        group = RankGroup(read_ranks(), save_within=save_within)
    except ZerokitError as error:
        console.print_error(error)
        return error.exit_code
    ends_stuck = sys.platform == "linux" and stuck_after > 0
    for_stuck = StuckWatch(group.ranks, group.work, stuck_after) if ends_stuck else None
    watch(group.ranks.rank, for_stuck, group.leave_request)
    try:
        exit_code = _run(main, group)
    except RankError as error:
        console.print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        if group.ranks.is_main:
            console.note("zerokit: interrupted")
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _has_closed_stdout():
            raise  # the command line ends as the reader did
        with _ignored_signals():
            return _report_exception(error, group.ranks.rank)
    group.close()
    return exit_code


def _has_closed_stdout() -> bool:
    """Whether stdout is a pipe whose reader, such as `head`, has ended."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """Ignore signals while this process reports why it ends: launchers send them once a rank is gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _report_exception(error: Exception, rank: int) -> int:
    """Print what ended this rank; returns its exit code."""
    # This rank may be alone: to close the group would be to wait for ranks that are in a collective.
    if "EADDRINUSE" in str(error):  # torch's DistNetworkError: rank 0 alone opens the port
        console.print_error(port_taken(os.environ["MASTER_PORT"]))
        return LaunchError.exit_code
    if "DataLoader worker" in str(error):
        from zerokit.distributed.loader_workers import worker_failure  # imports torch

        if (failure := worker_failure(error)) is not None:
            console.print_error(failure)
            return failure.exit_code
    lost = next((words for words in _LOST if words in str(error)), None)
    if lost is not None and isinstance(error, RuntimeError) and _of_collectives(error):
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = "has waited in vain for another rank" if lost == _IN_VAIN else "has lost another rank"
        lost_rank = RankError(
            f"{what} ({lost}), in '{at.line}'",
            where=f"rank {rank}",
            hint="See what that one has said; if nothing, it was ended from outside: 'dmesg' names "
            "what the kernel has ended for want of memory",
        )
        console.print_error(lost_rank)
        mark_outside_cause()
        return RankError.exit_code
    raised = traceback.format_exc()
    sys.stderr.write(visible_lines(raised))
    known = explain_log(Log("stderr", raised))
    if known.cause in OUTSIDE_CAUSES:
        mark_outside_cause()
    if known.cause not in ("exception", "unknown"):
        console.note(f"zerokit: {known.message}" + (f". {known.fix}" if known.fix else ""))
    return 1


_IN_VAIN = "Timed out waiting"
"""gloo's message about a rank that may still be there."""
_LOST = (
    *("Connection reset by peer", "Connection closed by peer", "Broken pipe", _IN_VAIN),  # gloo
    "remote process exited",  # NCCL
    "Connection was likely closed",  # the store
)


def _of_collectives(error: Exception) -> bool:
    """Whether a collective or the store raised it, also an asynchronous one of DeepSpeed, and not a download."""
    if type(error).__name__ == "DistNetworkError":
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    return modules[-1].startswith("deepspeed.") or any(f"{name}.".startswith("torch.distributed.") for name in modules)


def _run(main: Callable[[RankGroup], None], group: RankGroup) -> int:
    try:
        main(group)
    except RankError:
        raise
    except PreemptedError as left:
        for number in SIGNALS:  # a launcher sends them when the first rank has left
            signal.signal(number, signal.SIG_IGN)
        if group.ranks.is_main:
            console.note(f"zerokit: {left}")
        group.gather_objects(None)
        return left.exit_code
    except ZerokitError as error:
        # The order matters: rank 0 has printed before any rank exits and the launcher ends the rest.
        if group.ranks.is_main:
            console.print_error(error)
        group.gather_objects(None)
        return error.exit_code
    return 0


def leave(exit_code: int) -> NoReturn:
    """End this process at once, after Python's own exit handlers.

    A normal exit sometimes aborts (exit code -6): a gloo thread still holds a tensor of the last collective
    and needs the interpreter, which is shutting down. A run that did all its work would then count as failed.
    """
    if exit_code == 0:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, uploads among them
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    exit_now(exit_code)


def check_launch(ranks: Ranks) -> None:
    """Refuse more ranks on this node than it has GPUs, or cores if there is no GPU (LaunchError)."""
    num_gpus = count_gpus()
    kind, devices = ("GPU", num_gpus) if num_gpus else ("CPU core", os.cpu_count() or 1)
    if ranks.local_world_size > devices:
        raise LaunchError(
            f"{quantity(ranks.local_world_size, 'rank')} on this node, which has {quantity(devices, kind)}",
            where="launcher",
            hint=f"Start at most {devices}: 'deepspeed --num_gpus {devices}' or 'torchrun --nproc-per-node {devices}'",
        )
