"""Ends the run with a message when a data loader worker fails."""

from __future__ import annotations

import functools
import re
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info
from torch.utils.data._utils.worker import _worker_loop

from zerokit.distributed.ranks import read_ranks
from zerokit.errors import RankError
from zerokit.exits.explain import explain_log
from zerokit.exits.log import Log
from zerokit.patches import Patch, put, wrap

_FEED = Patch("multiprocessing.queues:Queue", "_feed", "report a batch that a loader worker cannot pass on")
_LOOP = Patch("torch.utils.data._utils.worker", "_worker_loop", "report such a batch from a worker that is not forked")
_ENDED = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed by signal)[^.]*")


class LostBatch(ExceptionWrapper):
    """Sent by a worker in place of a batch that it could not send."""

    def reraise(self) -> NoReturn:
        """Raise RankError in the process that waits for the batch."""
        reason = str(self.exc_msg).strip().splitlines()[-1]
        raise _error(f"a data loader worker cannot pass on a batch: {reason}", reason)


@functools.cache  # a forked worker inherits what this process has replaced
def report_lost_batches() -> None:
    """Make loader workers report batches that they cannot pass on; Python would drop them."""
    wrap(_FEED, _feed)
    put(_LOOP, _reporting_loop)


def _reporting_loop(*args: Any) -> None:
    """torch's loop of a worker. A spawned worker imports this module, and so replaces the names, too."""
    report_lost_batches()
    _worker_loop(*args)


def _feed(original: Any, buffer: Any, *args: Any) -> None:
    *args_before, on_error, free_slots = args

    def report(error: Exception, item: Any) -> None:
        if get_worker_info() is None or not isinstance(item, tuple):
            on_error(error, item)
            return
        free_slots.acquire(False)  # whoever receives an item releases it
        buffer.append((item[0], LostBatch((type(error), error, error.__traceback__))))  # type: ignore[no-untyped-call]

    original(buffer, *args_before, report, free_slots)


def worker_failure(error: BaseException) -> RankError | None:
    """The error to report if `error` is torch's message about a loader worker that ended; else None."""
    found = _ENDED.search(str(error))
    return None if found is None else _error(found[0].replace("DataLoader", "data loader"), str(error))


def _error(message: str, said: str) -> RankError:
    known = explain_log(Log("stderr", f"RuntimeError: {said}\n"))
    hint = "Set training.dataloader_num_workers to 0, which shows where it fails"
    if known.cause not in ("exception", "unknown", "loader-worker"):
        hint = f"{known.fix}; or set training.dataloader_num_workers to 0"
    return RankError(message, where=f"rank {read_ranks().rank}", hint=hint)
