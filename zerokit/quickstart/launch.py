"""Run training and generation as a person would, with a progress bar in place of their logs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import zerokit
from zerokit import console
from zerokit.distributed.extensions import COMPILING
from zerokit.distributed.launcher import LaunchedRanks, deepspeed_words
from zerokit.distributed.preemption import SAVE_WITHIN
from zerokit.errors import ZerokitError
from zerokit.exits.explain import explain_log
from zerokit.exits.log import read_log
from zerokit.units import format_seconds

_POLL_SECONDS = 0.2
_LOG_TAIL = 30


class RunFailedError(ZerokitError):
    """A launched script failed; its log says why."""

    exit_code = 1


def words_of(command: str) -> list[str]:
    """What a launcher is given for ``train`` or ``generate``: the script in a clone, else the module."""
    script = f"launch/{command}.py"
    return [script] if (home() / script).is_file() else ["--module", f"zerokit.{command}"]


def run(num_ranks: int, words: list[str], log: Path, metrics: Path | None, *, what: str) -> None:
    """Run a command under DeepSpeed's launcher; its output goes to `log`, its progress to the screen.

    Args:
        num_ranks: how many processes.
        words: the command, from :func:`words_of`, and its options.
        log: the file for stdout and stderr.
        metrics: the ``metrics.jsonl`` that a training run writes; None for other commands.
        what: what it does, for the bar.

    Raises:
        RunFailedError: it ended with an error; the end of its log is printed before.
    """
    console.note(f"      $ {shlex.join(['deepspeed', '--num_gpus', str(num_ranks), *words])}")
    before = _changed_at(metrics)
    environment = dict(os.environ)
    # On CPU glibc would keep freed activations in its heap, in pieces: more memory, and no faster.
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**20))
    with log.open("w", encoding="utf-8") as output:
        launched = LaunchedRanks(
            deepspeed_words(num_ranks, *words),
            num_ranks,
            environment,
            save_within=SAVE_WITHIN,
            cwd=home(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _follow(launched.process, metrics, before, log, what)
            code = launched.exit_code("Run the quickstart again")
        except BaseException:
            launched.stop()
            raise
    if code != 0:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]:
            console.note(f"      | {line}")
        why = explain_log(read_log(str(log)))
        raise RunFailedError(
            f"'{what}' ended with exit code {code}: {why.says}",
            where=f"{log}:{why.line}" if why.line else str(log),
            hint=why.mend or "See the log",
        )


def home() -> Path:
    """Where commands are run: in the clone of an editable installation, else in the current folder."""
    clone = Path(zerokit.__file__).resolve().parent.parent
    return clone if (clone / "launch" / "train.py").is_file() else Path.cwd()


def _changed_at(metrics: Path | None) -> int | None:
    """In nanoseconds; None of no file, as while a run sets aside what an earlier one has left."""
    if metrics is not None:
        with suppress(FileNotFoundError):
            return metrics.stat().st_mtime_ns
    return None


def _follow(
    process: subprocess.Popen[bytes], metrics: Path | None, before: int | None, log: Path, what: str
) -> None:
    """Show progress until the process ends, and before it that DeepSpeed compiles, which takes a while."""
    said: set[str] = set()
    with console.progress(transient=True) as bar:
        task = bar.add_task(f"      {what}", total=None, note="starting")
        printed = -1
        ended = False
        while not ended:
            ended = process.poll() is not None  # then once more, for what it wrote last
            if not ended:
                time.sleep(_POLL_SECONDS)
            # Until this run begins to train, what lies there is of an earlier one, or of one beside it.
            entries = _read(metrics) if metrics is not None and _changed_at(metrics) != before else []
            if not entries:
                for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                    if line.startswith(COMPILING) and line not in said:
                        said.add(line)
                        console.note(f"      {line}")
                continue
            total, step = entries[0]["max_steps"], entries[-1]["step"]
            losses = [entry["loss"] for entry in entries if "loss" in entry]
            note = f"loss {losses[-1]:.3f}" if losses else ""
            bar.update(task, total=total, completed=step, note=note)
            tenth = 10 * step // total
            if bar.disable and losses and tenth > printed:
                printed = tenth
                console.note(f"      step {step}/{total}  {note}{_left(entries)}")


def _left(entries: list[dict[str, Any]]) -> str:
    """``  4 min left``, as the run itself reckons; empty at its end."""
    total, last = entries[0]["max_steps"], entries[-1]
    more = total - last["step"]
    return f"  {format_seconds(last['elapsed_seconds'] / last['step'] * more)} left" if more else ""


def _read(metrics: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may still be written
    return []
