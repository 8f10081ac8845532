"""What ``zerokit train`` and ``zerokit generate`` share: a launcher may run them on many ranks.

The ranks of a run end together, and rank 0 speaks for all: see :mod:`zerokit.distributed.group`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from zerokit.errors import LaunchError, ZerokitError

if TYPE_CHECKING:
    from zerokit.distributed.group import RankGroup

COMMANDS = ("train", "generate")
SETTINGS = {
    # What is none of the command's own options is read by zerokit.open_options.
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": ["-h", "--help"],
}

NumGpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Start so many ranks with DeepSpeed's launcher: GPUs, or CPU processes where there is none.",
        show_default="this process alone, or the ranks that a launcher has started",
    ),
]
LocalRank = Annotated[int | None, typer.Option("--local_rank", "--local-rank", hidden=True)]
"""DeepSpeed's launcher adds it; the environment says the same."""


def help_of(command: Callable[..., None]) -> str:
    """The docstring of a command, each paragraph as one line for the terminal to wrap."""
    return "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))


def is_main() -> bool:
    """Whether this is rank 0, or no launcher has started it."""
    return os.environ.get("RANK", "0") == "0"


def start_ranks(num_gpus: int | None, command: str, words: Sequence[str]) -> None:
    """Become DeepSpeed's launcher of `num_gpus` ranks; nothing if none are asked for, or they are started.

    Args:
        num_gpus: the option.
        command: one of :data:`COMMANDS`.
        words: the whole command line behind it, which every rank reads again.

    Raises:
        LaunchError: a launcher has started another number of ranks.
        ZerokitError: DeepSpeed is not installed.
    """
    if num_gpus is None:
        return
    if "RANK" in os.environ:
        if os.environ.get("WORLD_SIZE") != str(num_gpus):
            raise LaunchError(
                f"the launcher has started {os.environ.get('WORLD_SIZE')} ranks, not {num_gpus}",
                where="--num-gpus",
                hint="Leave it out under a launcher",
            )
        return
    from zerokit.distributed.launcher import deepspeed_words, launch_environment
    from zerokit.extras import require

    require("train", where=f"zerokit {command}")
    launcher = deepspeed_words(num_gpus, "--module", f"zerokit.{command}", *words)
    os.execve(launcher[0], launcher, launch_environment())  # noqa: S606  as in a shell, signals reach it


def fail(error: ZerokitError) -> NoReturn:
    """End every rank with the error's exit code, after rank 0 has printed it."""
    from zerokit.distributed.group import leave, run_on_all_ranks

    def refuse(group: RankGroup) -> None:
        raise error

    leave(run_on_all_ranks(refuse))
