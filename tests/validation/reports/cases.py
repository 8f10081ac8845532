"""Public bug reports as cases: the inputs that a thread quotes, and what zerokit must print for them."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import command_lines, processes
from tests.tiny import REPOSITORY

FOLDER = Path(__file__).parent
LIGHT = ("check", "config", "diff", "estimate", "explain", "explain-exit", "resolve")
"""Commands that import neither torch nor transformers."""


@dataclass(frozen=True)
class Command:
    """One command line of a case and what it must print.

    Args:
        command: the words after ``zerokit``; it runs in the folder of the case. ``{tmp}``: an empty folder.
        exit: the exit code; None: any.
        says: regular expressions that must all match somewhere in stdout or stderr.
        silent: regular expressions that must not match.
        environment: variables for it.
    """

    command: str
    exit: int | None
    says: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_light(self) -> bool:
        """Whether it belongs into the quick tests."""
        return self.command.split()[0] in LIGHT


@dataclass(frozen=True)
class Case:
    """One public thread.

    Args:
        name: of the folder, `project-number`.
        thread: ``owner/repository#number``.
        date: year and month.
        kind: ``log``, ``ds_config``, ``launch YAML``, ``estimate``, ``rehearse`` or ``checkpoint``.
        cause: the true cause, in one sentence.
        established: how it is known: who said so in the thread, which commit fixed it, which run showed it.
        fix: what worked.
        commands: what the author could have asked zerokit.
        before: the verdict before the repairs, with what was printed.
        after: the same after the repairs; empty while not judged.
        inputs: how the files differ from what the thread quotes, except shortened lines and neutral paths.
        given: whether the case came with the issue; the others were searched for later.
    """

    name: str
    thread: str
    date: str
    kind: str
    cause: str
    established: str
    fix: str
    commands: tuple[Command, ...]
    before: dict[str, str]
    after: dict[str, str] = field(default_factory=dict)
    inputs: str = ""
    given: bool = False

    @property
    def is_light(self) -> bool:
        """Whether all its commands belong into the quick tests."""
        return all(one.is_light for one in self.commands)


def read_case(folder: Path) -> Case:
    """Read `case.json` of `folder`."""
    entries = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    commands = tuple(
        Command(
            one["command"], one["exit"], tuple(one["says"]), tuple(one.get("silent", ())), one.get("environment", {})
        )
        for one in entries.pop("commands")
    )
    return Case(name=folder.name, commands=commands, **entries)


CASES = [read_case(file.parent) for file in sorted(FOLDER.glob("*/case.json"))]


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and what is wrong with it."""

    printed: str
    exit: int
    faults: tuple[str, ...]


def run_command(case: Case, command: Command) -> Outcome:
    """Run `command` in the folder of `case` and compare what it prints."""
    settings = {"PYTHONPATH": str(REPOSITORY), "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        line = command.command.replace("{tmp}", shlex.quote(folder))
        place = FOLDER / case.name
        environment = os.environ | settings | command.environment
        if command.is_light:
            done = command_lines.run(f"zerokit {line}", cwd=place, env=environment)
        else:
            done = processes.run([sys.executable, "-m", "zerokit", *shlex.split(line)], cwd=place, env=environment)
    printed = done.stdout + done.stderr
    # The line that is quoted from the log says nothing of its own.
    lines = [line for line in printed.splitlines() if not line.lstrip().startswith("the line: ")]
    text = " ".join(" ".join(lines).split())  # a table or a terminal breaks lines anywhere
    faults = [f"does not say {one!r}" for one in command.says if re.search(one, text) is None]
    faults += [f"says {one!r}" for one in command.silent if re.search(one, text) is not None]
    if command.exit is not None and done.returncode != command.exit:
        faults.append(f"exits with {done.returncode}, not {command.exit}")
    return Outcome(printed, done.returncode, tuple(faults))


def to_row(case: Case) -> dict[str, Any]:
    """Run all commands of `case` and return its row of the record."""
    outcomes = [run_command(case, command) for command in case.commands]
    return {
        "case": case.name,
        "thread": case.thread,
        "date": case.date,
        "kind": case.kind,
        "given": case.given,
        "passes": not any(outcome.faults for outcome in outcomes),
        "faults": [fault for outcome in outcomes for fault in outcome.faults],
        "before": case.before.get("verdict", ""),
        "after": case.after.get("verdict", ""),
    }
