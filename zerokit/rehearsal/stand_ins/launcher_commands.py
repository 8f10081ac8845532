"""Launchers that a script starts as programs: torchrun, deepspeed, accelerate launch.

Their ranks would have no virtual GPU. The rehearsal ends with the command that rehearses them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from zerokit.choices import LAUNCHER_MODULES, Launcher
from zerokit.errors import LaunchError
from zerokit.patches import Patch, wrap
from zerokit.rehearsal.errors import script_line
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_PURPOSE = "name the script that a launcher would start"
_POPEN = Patch("subprocess:Popen", "__init__", _PURPOSE)
_SYSTEM = Patch("os", "system", _PURPOSE)


class LauncherCommand(NamedTuple):
    """A command that starts a launcher."""

    launcher: str
    options: list[str]
    script: list[str]
    """The script, or ``-m`` and a module, and the arguments."""


def launcher_command(command: Sequence[object] | str) -> LauncherCommand | None:
    """The launcher, its options and its script in a command of Popen; None if it starts no launcher."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(map(os.fsdecode, command))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    while words and "=" in words[0] and not words[0].startswith("-"):  # a shell's NAME=VALUE
        del words[0]
    program = Path(words[0]).name if words else ""
    launcher = program if program in get_args(Launcher) else None
    given, module = words[1:], ""
    if program.startswith("python") and "-m" in words[1:-1]:
        _, module, *given = words[words.index("-m") :]
        launcher = LAUNCHER_MODULES.get(module)
    has_commands = program == "accelerate" or module == "accelerate.commands.accelerate_cli"
    if launcher is None or (has_commands and given[:1] != ["launch"]):
        return None
    if has_commands:
        given = given[1:]
    for place, word in enumerate(given):
        if word.endswith(".py") or word in ("-m", "--module"):
            script = given[place:]
            return LauncherCommand(launcher, given[:place], ["-m", *script[1:]] if word == "--module" else script)
    return None


@stand_in("subprocess.Popen", "os.system")
def install(setup: RankSetup) -> None:
    """Have the rehearsal end where the script starts a launcher."""
    num_gpus = setup.rank.num_gpus

    def popen(start: Any, process: Any, args: Any, *further: Any, **given: Any) -> None:
        if (found := launcher_command(args)) is not None:
            _end(found, num_gpus)
        start(process, args, *further, **given)

    def system(run: Any, command: Any) -> Any:
        if (found := launcher_command(command)) is not None:
            _end(found, num_gpus)
        return run(command)

    wrap(_POPEN, popen)
    wrap(_SYSTEM, system)


def _end(found: LauncherCommand, num_gpus: int) -> NoReturn:
    words = ["zerokit", "rehearse", "--num-gpus", str(num_gpus)]
    if found.launcher == "deepspeed":
        words += ["--launcher", "deepspeed"]
    elif found.launcher == "accelerate" and found.options:
        words += ["--accelerate-arguments", shlex.join(found.options)]
    raise LaunchError(
        f"the script has {found.launcher} start its ranks",
        where=script_line(),
        hint=f"Rehearse what that starts: {shlex.join([*words, *found.script])}",
    )
