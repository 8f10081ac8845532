"""800 bad inputs to all commands: ``python -m tests.validation.faults.bad_inputs [--write]``.

Each is one run of a command in a process of its own: it must end with 0, 1 or 2, print no traceback and no
character that a terminal acts on, change no file that it is not asked to, and take no more than 2 CPU seconds
and 500 MiB. With ``--write`` the result goes into results/bad_inputs.json.

The processes are forked from one that has imported the command line alone, as ``zerokit`` itself has when it
reads its words; what that takes is measured once, and added.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import exits
from tests.tiny import REPOSITORY
from tests.validation.faults.inputs import Case, case, contents, lay_out
from zerokit.cli.main import main as zerokit

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "bad_inputs.json"
NUMBER = 800
MOST_SECONDS = 2.0
MOST_MIB = 500
_HANGS_AFTER = 120.0
_MAY_READ_ALL = 1 << 1 | 1 << 2
"""The capabilities DAC_OVERRIDE and DAC_READ_SEARCH of root, as bits."""
_LIBC = ctypes.CDLL(None)
_ACTED_ON = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    code: int
    """The exit code; negative: the signal that ended it."""
    out: str
    err: str
    cpu_seconds: float
    resident_bytes: int
    changed: bool
    """Whether a file was made, changed or removed that the case is not asked to write."""
    ran: bool

    @property
    def wrongs(self) -> list[str]:
        """What must not be, but for time and memory."""
        text = self.out + self.err
        wrongs = {
            f"exit code {self.code}": self.code not in (0, 1, 2),
            "a traceback": "Traceback (most recent call last)" in text,
            "a character that a terminal acts on": _ACTED_ON.search(text) is not None,
            "exit code 2 without a line": self.code == 2 and "error" not in text,
            "a file changed": self.changed,
            "code that it was given ran": self.ran,
        }
        return [wrong for wrong, found in wrongs.items() if found]


def outcome_of(made: Case, folder: Path) -> Outcome:
    """Run a case in an empty folder, which is removed."""
    lay_out(made, folder)
    before = contents(folder, made.changes)
    out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
    pid = os.fork()
    if pid == 0:
        _run(lambda: zerokit(), ["zerokit", *made.words], folder, out, err)
    timer = threading.Timer(_HANGS_AFTER, os.kill, (pid, signal.SIGKILL))
    timer.start()
    _, status, used = os.wait4(pid, 0)
    timer.cancel()
    changed = not made.writes and contents(folder, made.changes) != before
    ran = (folder / "it_ran").exists()
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in (out, err)]
    shutil.rmtree(folder)
    out.unlink()
    err.unlink()
    seconds = used.ru_utime + used.ru_stime
    return Outcome(os.waitstatus_to_exitcode(status), *texts, seconds, used.ru_maxrss * 1024, changed, ran)


def _run(main: Callable[[], None], words: list[str], folder: Path, out: Path, err: Path) -> None:
    """Become the command; never returns."""
    with exits():
        os.setsid()
        os.chdir(folder)
        for number, name, flags in ((0, Path(os.devnull), os.O_RDONLY), (1, out, 0o101), (2, err, 0o101)):
            os.dup2(os.open(name, flags, 0o600), number)
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
        os.environ.update(
            HF_HUB_OFFLINE="1", DS_ACCELERATOR="cpu", HF_HOME=str(folder), HOME=str(folder), COLUMNS="120"
        )
        _obey_permissions()
        sys.argv = words
        main()


def _obey_permissions() -> None:
    """Have root, too, read no file that is not to be read (capset(2))."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    _LIBC.capget(header, sets)
    for place in (0, 1):  # what is in effect, and what may be
        sets[place] &= ~_MAY_READ_ALL
    assert _LIBC.capset(header, sets) == 0


def start_seconds() -> float:
    """CPU seconds until a command has read its words."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import zerokit.cli.main"], check=True, cwd=REPOSITORY)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def faults_of(outcome: Outcome, start: float) -> list[str]:
    """What must not be."""
    seconds, mib = outcome.cpu_seconds + start, outcome.resident_bytes >> 20
    return [*outcome.wrongs, *[f"{seconds:.1f} s"] * (seconds > MOST_SECONDS), *[f"{mib} MiB"] * (mib > MOST_MIB)]


def try_all(
    numbers: range, start: float, parent: Path, *, any_cost: bool
) -> tuple[dict[str, dict[str, float]], list[Any]]:
    """Run cases: the most that each kind of command took, and the cases that are not as they must be."""
    table: dict[str, dict[str, float]] = {}
    failed = []
    for number in numbers:
        made = case(number)
        folder = parent / str(number)
        folder.mkdir()
        outcome = outcome_of(made, folder)
        row = table.setdefault(made.name, {"inputs": 0, "exit_2": 0, "cpu_seconds": 0.0, "mib": 0})
        row["inputs"] += 1
        row["exit_2"] += outcome.code == 2
        row["cpu_seconds"] = max(row["cpu_seconds"], round(outcome.cpu_seconds + start, 2))
        row["mib"] = max(row["mib"], outcome.resident_bytes >> 20)
        faults = outcome.wrongs if any_cost else faults_of(outcome, start)
        if faults:
            failed.append({"case": number, "words": ascii(made.words)[:300], "faults": faults})
            print(f"{number}: {', '.join(faults)}: {ascii(made.words)[:200]}", flush=True)
            print(f"    {(outcome.out + outcome.err)[-300:]!a}")
    return dict(sorted(table.items())), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--number", type=int, default=NUMBER)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1, help="try every so many-th case")
    parser.add_argument("--any-cost", action="store_true", help="judge outcomes, not time and memory")
    parser.add_argument("--write", action="store_true", help="rewrite the file in results/")
    options = parser.parse_args()
    start = start_seconds()
    # Not TemporaryDirectory, which a process forked from this one would remove as it ends.
    parent = Path(tempfile.mkdtemp())
    try:
        numbers = range(options.first, options.first + options.number * options.step, options.step)
        table, failed = try_all(numbers, start, parent, any_cost=options.any_cost)
    finally:
        shutil.rmtree(parent)
    for name, row in table.items():
        print(f"{name:22} {row['inputs']:4} inputs, at most {row['cpu_seconds']:5.2f} s, {row['mib']:4} MiB")
    print(f"{len(failed)} of {options.number} are not as they must be; start {start:.2f} s")
    if options.write:
        record = {
            "command": f"python -m tests.validation.faults.bad_inputs --number {options.number}",
            "limits": {"cpu_seconds": MOST_SECONDS, "mib": MOST_MIB},
            "start_cpu_seconds": round(start, 2),
            "most_by_command": table,
            "failed": failed,
        }
        WRITTEN.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
