"""What to do about an error that ended a rehearsed script, handed from its worker to whoever waits for it."""

from __future__ import annotations

import traceback
from pathlib import Path

from zerokit.exits.causes.entry import EXIT_CODE
from zerokit.exits.explain import explain_log
from zerokit.exits.log import Log
from zerokit.rehearsal.parent.job import RehearsalJob


def hint_for(failure: BaseException) -> str | None:
    """What `zerokit explain-exit` says to do about an error of such words; None if it does not know them."""
    words = "".join(traceback.format_exception_only(failure))
    known = explain_log(Log("stderr", words))
    # The traceback, which has been printed, says more than these do.
    return None if known.cause in ("exception", "unknown", EXIT_CODE) else known.mend


def hint_file(job: RehearsalJob) -> Path:
    """Where a worker leaves its hint."""
    return Path(job.recording_file).with_suffix(".hint")


def left_hint(job: RehearsalJob) -> tuple[str, ...]:
    """The hint that a worker has left, if it has."""
    try:
        return (hint_file(job).read_text(encoding="utf-8"),)
    except OSError:
        return ()
