"""What hangs is ended with all that it started, and what only takes long is not."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests import processes

WAITS = "import signal; signal.pause()"
NEVER_ENDS = "while True: pass"


def test_what_a_process_prints_comes_back() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = processes.run([sys.executable, "-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_one_that_does_nothing_is_ended_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {WAITS!r}], start_new_session=True)\n"
        "print('the child is', child.pid, flush=True); child.wait()"
    )
    with pytest.raises(processes.HangsError, match="the child is") as caught:
        processes.run([sys.executable, "-c", code], patience=1)
    with suppress(ProcessLookupError):  # it is gone already
        child = os.pidfd_open(int(str(caught.value).split()[-1]))
        assert select.select([child], [], [], processes.PATIENCE)[0], "it still runs"
        os.close(child)


def test_one_that_works_is_ended_by_its_work_alone() -> None:
    with pytest.raises(processes.HangsError, match=r"ended after [\d.]+ s of CPU"):
        processes.run([sys.executable, "-c", NEVER_ENDS], patience=0.5, most_cpu_seconds=0.1)


def test_patience_begins_anew_with_each_piece_of_work() -> None:
    """Half a second of CPU, whatever time it takes, is more than one length of patience."""
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint('done')"
    assert processes.run([sys.executable, "-c", code], patience=0.2).stdout == "done\n"
