"""Shared parts of ``zerokit train``, ``generate`` and ``evaluate``, which run on many ranks.

Only rank 0 prints, and all ranks end together: see :mod:`zerokit.distributed.group`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from zerokit.cli.command import Command, UsageError
from zerokit.errors import LaunchError, ZerokitError, nearest

if TYPE_CHECKING:
    from zerokit.distributed.group import RankGroup

COMMANDS = ("train", "generate", "evaluate")
SETTINGS = {"help_option_names": ["-h", "--help"]}


class PassthroughCommand(Command):
    """A command that leaves all other options and their values to :mod:`zerokit.passthrough_options`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hide other options from click, which would find short options in a value like -high."""
        options: list[Any] = self.get_params(ctx)
        arguments = [option for option in options if option.param_type_name == "argument"]
        takes_value = {
            name: not option.is_flag for option in options if option not in arguments for name in option.opts
        }
        own: list[str] = []
        others: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            written = word.partition("=")[0] if word.startswith("--") else word[:2]
            name = self.declared_name(ctx, written)
            known = name in takes_value or (bool(arguments) and not word.startswith("-"))
            (own if known else others).append(word)
            if not rest or word != written:
                continue
            if known and takes_value.get(name):
                own.append(rest.pop(0))
            elif not known and not rest[0].startswith("--") and rest[0] not in takes_value:
                others.append(rest.pop(0))
        try:
            super().parse_args(ctx, own)
        except UsageError:
            # A missing option may be misspelled.
            missing = [name.partition("'")[2].rstrip("'") for _, name in self.missing(ctx, own)]
            for option in (word.partition("=")[0] for word in others if word.startswith("--")):
                if meant := nearest(option, missing):
                    ctx.fail(f"{option}: unknown option. Did you mean '{meant}'?")
            raise
        ctx.args = others
        return others

    def get_help(self, ctx: Any) -> str:
        """The help; under a launcher only on rank 0."""
        if not is_main():
            ctx.exit()
        return super().get_help(ctx)


def help_of(command: Callable[..., None]) -> str:
    """The docstring of a command, each paragraph as one line for the terminal to wrap."""
    return "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))


def is_rank() -> bool:
    """Whether a launcher has started this process. Its command line still has ``--num-gpus``."""
    return "RANK" in os.environ


def is_main() -> bool:
    """Whether this is rank 0, or no launcher has started it."""
    return os.environ.get("RANK", "0") == "0"


def start_ranks(
    num_gpus: int | None,
    master_port: int | None,
    command: str,
    words: Sequence[str],
    *,
    again: Callable[[], str],
    save_within: float = 0.0,
    restart: Callable[[str], Sequence[str] | None] | None = None,
) -> None:
    """Run DeepSpeed's launcher and exit; nothing without `num_gpus`, or under a launcher.

    Args:
        command: one of :data:`COMMANDS`.
        words: the rest of the command line, which every rank reads again.
        again: returns how to continue a run that was killed, as an instruction.
        save_within: seconds for saving when the ranks are asked to stop.
        restart: returns what to add to the command line for another try, by the reason of a crash; or None.

    Raises:
        LaunchError: a launcher has started another number of ranks, or the port is taken.
        ZerokitError: DeepSpeed is not installed.
    """
    if num_gpus is None:
        if master_port is not None:
            raise LaunchError(
                "is for the launcher that --num-gpus starts",
                where="--master_port",
                hint="Add --num-gpus, or give it to the launcher before the script",
            )
        return
    if is_rank():
        if os.environ.get("WORLD_SIZE") != str(num_gpus):
            raise LaunchError(
                f"the launcher has started {os.environ.get('WORLD_SIZE')} ranks, not {num_gpus}",
                where="--num-gpus",
                hint="Leave it out under a launcher",
            )
        return
    from zerokit.distributed.launcher import deepspeed_command, run_launcher
    from zerokit.extras import require

    require("train", where=f"zerokit {command}")
    # Results may go to stdout, where the launcher would add its own lines, also one after each error of a rank.
    quiet = ["--log_level", "critical"] if command != "train" else []
    module = [*quiet, "--module", f"zerokit.{command}"]

    def launcher(*more: str) -> list[str]:
        return deepspeed_command(num_gpus, *module, *words, *more, port=master_port or 0)

    def following(crash: str) -> list[str] | None:
        more = None if restart is None else restart(crash)
        return None if more is None else launcher(*more)

    code = run_launcher(launcher(), num_gpus, os.environ, again=again, save_within=save_within, restart=following)
    raise typer.Exit(code)


def fail(error: ZerokitError) -> NoReturn:
    """End every rank with the error's exit code, after rank 0 has printed it."""
    from zerokit.distributed.group import leave, run_on_all_ranks

    def refuse(group: RankGroup) -> None:
        raise error

    leave(run_on_all_ranks(refuse))
