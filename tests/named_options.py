"""The options that an error names must be those of the command that prints it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from typer.main import get_command

from zerokit.cli import on_ranks
from zerokit.cli.main import command_line
from zerokit.recipe.load import SHORTHANDS


@functools.cache
def commands() -> Mapping[str, Any]:
    """Every command by its name, those of groups after the name of the group."""
    root: Any = get_command(command_line())
    groups = {name: one.commands for name, one in root.commands.items() if hasattr(one, "commands")}
    of_groups = {f"{group} {name}": one for group, commands in groups.items() for name, one in commands.items()}
    return {name: one for name, one in root.commands.items() if name not in groups} | of_groups


def foreign_options(line: str, words: Sequence[str]) -> list[str]:
    """Return the options that an error names, and that neither its command has nor the user wrote.

    Options after the name of another command or program are its own. Commands that start ranks also accept the
    keys of recipes and of GenerationConfig.
    """
    command = next((name for end in (2, 1) if (name := " ".join(words[:end])) in commands()), None)
    if command is None:
        return []
    params = commands()[command].params
    line = line.removeprefix("zerokit: ").replace(f"zerokit {command}", "")
    own = {name for param in params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
    before_others = re.split(r"zerokit [a-z]|pip install|torchrun|accelerate launch|deepspeed ", line)[0]
    found = re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", before_others)
    passes_on = command in on_ranks.COMMANDS
    own |= {f"--{name}" for name in SHORTHANDS} if passes_on else set()
    return [
        name
        for name in found
        if name.replace("_", "-") not in own
        and not any(word.startswith(name) for word in words)
        and not (passes_on and re.search("[._]", name))
    ]
