"""Put faults to real runs: ``python -m tests.validation.faults.drill [--only WORD] [--keep FILE] [--write]``.

Whatever happens, a run must end: with all that it was asked for, or with a line that says what was wrong. It
must not do something else in silence, print a traceback with no line above it, go on for more than 120 s
after the fault, leave a process or shared memory behind, or change a file of its user. With ``--keep`` the
rows are kept in a file, and a drill that was interrupted goes on with the rest; with ``--write`` the table
goes into results/fault_drill.json and records/fault-drill.md.

It needs Linux, and root for disks of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.faults.checkpoint_trials import checkpoint_trials
from tests.validation.faults.data_trials import data_trials
from tests.validation.faults.place import (
    PROMPTS,
    Forked,
    Place,
    become_reaper,
    digests,
    end_all,
    import_all,
    in_fork,
    prepare,
    processes,
    wait_until,
)
from tests.validation.faults.run_trials import run_trials
from tests.validation.faults.trials import Trial, trials
from zerokit.checkpoint.checksums import check_checksums, complete_checksums
from zerokit.errors import CheckpointError, PreemptedError

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "fault_drill.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "fault-drill.md"
MOST_SECONDS = 120.0
"""From the fault to the end."""
_START_SECONDS = 400.0
"""Until the moment of the fault, with an extension to compile on a busy machine."""
_OF_EXPORT = ("model.safetensors", "config.json", "tokenizer.json", "SHA256SUMS")
_SHARED_MEMORY = Path("/dev/shm")
_OF_LAUNCHER = re.compile(
    r"^Traceback .*\n(?:  .*\n)*?  File \"[^\"]*/deepspeed/launcher/.*\n(?:  .*\n)*", re.MULTILINE
)
"""DeepSpeed's launcher, interrupted alone, says so in its own way."""
_ACTED_ON = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def try_one(trial: Trial, base: Path, parent: Path) -> dict[str, Any]:
    """The row of a trial: its outcome, its seconds since the fault, and what is wrong with them."""
    place = Place(parent / "place")
    shutil.rmtree(place.folder, ignore_errors=True)
    shutil.copytree(base, place.folder, symlinks=True)
    output = parent / "output"
    output.unlink(missing_ok=True)
    trial.arrange(place)
    before, shared = digests(place.folder), shared_memory(place)
    process = place.start(output)
    begun = time.monotonic()
    wrongs = []
    moment = trial.moment
    if trial.strike is not None and moment is not None:
        if not wait_until(lambda: moment(place) or process.poll() is not None, _START_SECONDS, 0.003):
            wrongs.append("its moment did not come")
        begun = time.monotonic()
        if process.poll() is None:
            trial.strike(place)
        elif "do" not in trial.must.split("|"):
            wrongs.append("it ended before")
    limit = MOST_SECONDS if trial.strike is not None else _START_SECONDS
    if not wait_until(lambda: process.poll() is not None, limit):
        wrongs.append(f"still running after {limit:.0f} s")
    seconds = time.monotonic() - begun
    if not wait_until(lambda: not processes(), 15.0):
        wrongs.append(f"{len(processes())} processes left")
    end_all()
    code = process.poll()
    left = shared_memory(place) - shared
    for file in left:
        file.unlink(missing_ok=True)
    text = output.read_text(errors="replace") if output.exists() else ""
    wrongs += ["shared memory left"] * bool(left)
    wrongs += ["a user's file changed"] * (digests(place.folder) != before)
    wrongs += judge(trial, place, code if code is not None else -9, text)
    if trial.goes_on:
        wrongs += resume(place, parent)
    line = next((line for line in text.splitlines() if "zerokit: " in line), "")
    shutil.rmtree(place.folder)
    return {
        "trial": trial.name,
        "must": trial.must,
        "exit_code": code,
        "seconds": round(seconds, 1),
        "line": line.replace(str(parent), "...").replace(sys.prefix, "...")[:300],
        "wrong": wrongs,
    }


def shared_memory(place: Place) -> set[Path]:
    """What ranks at this port share; a dead run of another program may have had the port before."""
    return {*_SHARED_MEMORY.glob(f"deepspeed_allreduce_buffer_*_{place.port}_*")}


def judge(trial: Trial, place: Place, code: int, text: str) -> list[str]:
    """What the run did that it must not do."""
    wrongs = []
    text = _OF_LAUNCHER.sub("", text)
    error = text.find("zerokit: ")
    trace = text.find("Traceback (most recent call last)")
    if trace >= 0 and not 0 <= error < trace:
        wrongs.append("a traceback without a line above it")
    allowed = trial.must.split("|")
    if "drop" in allowed:
        wrongs += ["no line that says why"] * (error < 0)
    elif code == 0:
        wrongs += ["exit code 0, as if nothing had been"] * ("do" not in allowed)
        wrongs += ["exit code 0, and less than asked for"] * (not is_whole(place))
    elif allowed == ["do"]:
        wrongs.append(f"exit code {code}")
    elif "stop" not in allowed:
        wrongs += ["no line that says why"] * (error < 0)
        right = PreemptedError.exit_code if allowed == ["leave"] else 2
        wrongs += [f"exit code {code}, not {right}"] * ("end" not in allowed and code != right)
    if place.path("out/model.safetensors").exists() and not place.path("out/config.json").exists():
        wrongs.append("half a model")
    if not trial.resumes and not place.shell:  # of which some are damaged, and a disk that nobody else sees
        wrongs += [f"{one} has a checkpoint's name" for one in not_whole(place)]
    exported = [place.path(f"made/{name}").is_file() for name in _OF_EXPORT]
    wrongs += ["half an export"] * (place.path("made").exists() and not all(exported))
    wrongs += ["code that it was given ran"] * place.path("it_ran").exists()
    wrongs += ["a character that a terminal acts on"] * (_ACTED_ON.search(text.replace("\x1b[0m", "")) is not None)
    return wrongs


def not_whole(place: Place) -> Iterator[str]:
    """What is called a checkpoint and has not all files that it was saved with, by their checksums."""
    for folder in filter(Path.is_dir, place.path("out").glob("checkpoint-[0-9]*")):
        try:
            sums = complete_checksums(folder)
            check_checksums(folder, sums or {"SHA256SUMS": ""})
        except CheckpointError:
            yield folder.name


def is_whole(place: Place) -> bool:
    """Whether a run that ended well has made what it was asked for."""
    if place.command == "generate":
        with suppress(OSError):
            return len(place.path("out.jsonl").read_text().splitlines()) == PROMPTS
        return False
    # On a disk of its own, nobody else sees it.
    if place.shell:
        return True
    if place.command == "checkpoint":
        return _is_done(place)
    if "--preview" in place.words:
        return not place.path("out").exists()
    return all(place.path(f"out/{name}").is_file() for name in ("model.safetensors", "run.json"))


def _is_done(place: Place) -> bool:
    """Whether a command for checkpoints has left what it must, and nothing else."""
    unfinished = [*place.folder.glob(".*.unfinished"), *place.path("out").glob(".unfinished/*")]
    if unfinished or not next(place.path("out").glob("checkpoint-[1-9]*/latest"), None):
        return False
    if place.words[0] == "export":
        return all(place.path(f"made/{name}").is_file() for name in _OF_EXPORT)
    return place.words[0] != "prune" or not place.path("out/checkpoint-0").exists()


def resume(place: Place, parent: Path) -> list[str]:
    """What is wrong with the run that goes on from the last checkpoint, or with the command once more."""
    if place.command == "checkpoint":
        return [] if is_whole(place) else _again(place, parent)
    checkpoints = [
        int(file.parent.name.partition("-")[2]) for file in place.path("out").glob("checkpoint-*/trainer_state.json")
    ]
    if not checkpoints or place.path("out/run.json").exists():
        return []
    last = str(max(checkpoints) + 1)
    place.words = [*place.words, "--training.resume_from_checkpoint", "true", "--training.max_steps", last]
    return _again(place, parent)


def _again(place: Place, parent: Path) -> list[str]:
    """Start it again: it must end well."""
    output = parent / "resumed"
    output.unlink(missing_ok=True)
    process = place.start(output)
    wait_until(lambda: process.poll() is not None, _START_SECONDS)
    end_all()
    if process.poll() == 0 and is_whole(place):
        return []
    return [f"does not go on: {output.read_text(errors='replace')[-300:]}"]


def shown(row: dict[str, Any]) -> str:
    """A row of the table, for people."""
    verdict = "; ".join(row["wrong"]) or "as it must be"
    return f"{row['seconds']:6} s  {row['exit_code']!s:>4}  {row['trial']:50} {verdict}\n{'':16}{row['line']}"


def page(rows: list[dict[str, Any]], names: list[str]) -> str:
    """The table as a page; `names` of all trials that there are."""
    tried = {row["trial"] for row in rows}
    right = sum(not row["wrong"] for row in rows)
    lines = [
        "# The fault drill\n",
        f"`python -m tests.validation.faults.drill --write` breaks real runs, one fault each: {len(rows)} of "
        f"{len(names)} have a row, and {right} ended as they must. Seconds are those from the fault to the "
        "end; if the fault is there before the run, with its start.\n",
        "A run must\n",
        "- `refuse`: exit code 2, and a line that says why;",
        "- `end`: another code than 0, and a line that says why;",
        "- `leave`: exit code 75, a checkpoint and a line;",
        "- `stop`, where it was ended from outside;",
        "- `drop`: the same with a line, if DeepSpeed's own second launcher was ended: its first says 0;",
        "- or `do` all that it was asked for.\n",
        "| fault | must | exit code | seconds | what is wrong |",
        "|---|---|---:|---:|---|",
    ]
    for row in rows:
        wrong = "; ".join(row["wrong"]).replace("|", "\\|").replace("\n", " ")
        must = row["must"].replace("|", " or ")
        lines.append(f"| {row['trial']} | {must} | {row['exit_code']} | {row['seconds']} | {wrong} |")
    if left := [name for name in names if name not in tried]:
        why = "not tried, or run into what has been mended since or into a busy machine"
        lines += ["", f"Without a row ({why}): {'; '.join(left)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="only trials with it in their name")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="rows of trials that are not tried again")
    parser.add_argument("--write", action="store_true", help="rewrite the files in results/")
    given = parser.parse_args()
    all_trials = [*checkpoint_trials(), *trials(), *data_trials(), *run_trials()]
    assert len({trial.name for trial in all_trials}) == len(all_trials)
    kept: dict[str, dict[str, Any]] = {}
    if given.keep is not None and given.keep.exists():
        kept = {row["trial"]: row for row in map(json.loads, given.keep.read_text().splitlines())}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a shell lets its background ignore some
    become_reaper()
    import_all()
    # Not TemporaryDirectory, which a process forked from this one would remove as it ends.
    parent = Path(tempfile.mkdtemp())
    try:
        base, saved = parent / "base", parent / "saved"
        in_fork(lambda: prepare(base))
        shutil.copytree(base, saved)
        first = Place(saved, ["--training.save_strategy", "steps", "--training.save_steps", "1"]).start(
            parent / "first"
        )
        assert isinstance(first, Forked)
        wait_until(lambda: first.poll() is not None, _START_SECONDS)
        assert first.poll() == 0, (parent / "first").read_text()
        for trial in all_trials:
            if given.only not in trial.name or trial.name in kept:
                continue
            row = try_one(trial, saved if trial.resumes else base, parent)
            kept[trial.name] = row
            print(shown(row), flush=True)
            if given.keep is not None:
                with given.keep.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    finally:
        end_all()
        shutil.rmtree(parent)
    rows = [kept[trial.name] for trial in all_trials if trial.name in kept]
    wrong = [row for row in rows if row["wrong"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} as they must be")
    if given.write:
        WRITTEN.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(rows, [trial.name for trial in all_trials]), encoding="utf-8")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
