"""Asks a person at a terminal for options of ``zerokit estimate`` that the command line lacks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import typer

from zerokit.cli.command import Command
from zerokit.cli.estimate_options import CARD, SIZES, sizes
from zerokit.cli.gpu_options import chosen_gpus, memory_size
from zerokit.errors import ZerokitError, visible

_QUESTIONS = {
    "model": "Which model? A name such as llama-3.1-8b, a Hub id, a folder, or a size such as 7B",
    "num_gpus": "How many GPUs in all?",
    "seq_len": "How many tokens in a sequence?",
    "zero_stage": "Which ZeRO stages, 0 to 3?",
}
"""By required parameter."""
_SEQ_LEN = 2048


class AskingCommand(Command):
    """Asks for missing options at a terminal; Enter accepts the default."""

    examples: ClassVar[Mapping[str, str]] = {
        "model": "llama-3.1-8b",
        "num_gpus": "--num-gpus 8",
        "seq_len": "--seq-len 4096",
        "zero_stage": "--zero-stage 3 (or --ds-config FILE)",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; ``--fit`` needs no size.

        Raises:
            ZerokitError: the word after ``--fit`` is not a size, or ``--gpu`` is given twice.
        """
        words = list(args)
        for place, word in enumerate(words):
            if word != "--fit":
                continue
            if place + 1 == len(words) or words[place + 1].startswith("-"):
                words[place] = f"--fit={CARD}"
                continue
            try:
                memory_size(words[place + 1], "--fit")
            except ZerokitError as error:
                error.hint = "Write it like 80GiB. For the memory of --gpu put --fit last"
                raise
        self._refuse_repeated_cards(words)
        return super().parse_args(ctx, words)

    def _refuse_repeated_cards(self, words: list[str]) -> None:
        """Refuse ``--gpu a --gpu b``: click would keep the last one. Sizes may be given twice."""
        cards = []
        for word, following in zip(words, [*words[1:], ""], strict=False):
            if word == "--gpu" or word.startswith("--gpu="):
                cards.append(following if word == "--gpu" else word.removeprefix("--gpu="))
        if len(cards) > 1:
            raise ZerokitError(
                "is given more than once", where="--gpu", hint=f"Write --gpu {','.join(cards)}"
            )

    def completed(self, ctx: Any, words: list[str]) -> list[str] | None:
        """Return the words with the answers; None without a terminal.

        Raises:
            ZerokitError: a given model, card or size is not valid; raised before the first question.
        """
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return None
        chosen_gpus(ctx.params.get("gpu"), ctx.params.get("gpu_memory"))
        for name, bounds in SIZES.items():
            sizes(ctx.params.get(name), *bounds)
        model = ctx.params.get("model")
        positions = None if model is None else _positions(model)
        while missing := self.missing(ctx, words):
            param, _ = missing[0]
            answer = _answer(param.name, _default(param.name, ctx.params, positions))
            if answer is None:
                return None
            if param.name == "model":
                positions = _positions(answer)
            words = [*words, answer] if param.name == "model" else [*words, param.opts[-1], answer]
        typer.echo(visible(f"In one line: {ctx.command_path} {shlex.join(words)}") + "\n", err=True)
        return words


def _answer(name: str, default: str | None) -> str | None:
    """Ask until the answer is valid; None if the input ends."""

    def usable(text: str) -> str:
        try:
            if name == "model":
                _positions(text)
            else:
                sizes(text, "", *SIZES[name][1:])
        except ZerokitError as error:
            raise typer.BadParameter(str(error)) from None
        return text

    try:
        return str(typer.prompt(_QUESTIONS[name], default, value_proc=usable, err=True))
    except typer.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise
        typer.echo(err=True)  # the next output starts on its own line
        return None


def _default(name: str, given: Mapping[str, Any], positions: int | None) -> str | None:
    if name == "seq_len":
        return str(min(_SEQ_LEN, positions or _SEQ_LEN))
    return {"num_gpus": "1", "zero_stage": _stages(given)}.get(name)


def _stages(given: Mapping[str, Any]) -> str:
    """All stages that the options allow; one stage if the answer is about one run."""
    one_run = given.get("explain") or given.get("fit")
    if one_run or given.get("offload_param") or given.get("offload_optimizer") == "nvme":
        return "3"
    return "1,2,3" if given.get("offload_optimizer") else "0,1,2,3"


def _positions(model: str) -> int | None:
    """The maximum sequence length of a model, if known."""
    from zerokit.estimation.api import as_model

    return getattr(as_model(model), "max_position_embeddings", None)
