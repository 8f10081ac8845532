"""Asks a person at a terminal for options that the command line lacks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import typer

from zerokit.cli.command import Command
from zerokit.errors import ZerokitError, visible


class AskingCommand(Command):
    """Asks for missing options at a terminal; Enter accepts the default."""

    questions: ClassVar[Mapping[str, str]] = {}
    """By required parameter."""

    def check_given(self, given: Mapping[str, Any]) -> None:
        """Check the given options before the first question. Raises ZerokitError: one is not valid."""

    def check_answer(self, name: str, text: str) -> None:
        """Check the answer to a question. Raises ZerokitError: it is not valid."""

    def default(self, name: str, given: Mapping[str, Any]) -> str | None:
        """The answer that Enter gives; None: there is none."""

    def words_of(self, param: Any, answer: str) -> list[str]:
        """The words that an answer adds to the command line."""
        return [answer] if param.param_type_name == "argument" else [param.opts[-1], answer]

    def completed(self, ctx: Any, words: list[str]) -> list[str] | None:
        """Return the words with the answers; None without a terminal.

        Raises:
            ZerokitError: a given option is not valid; raised before the first question.
        """
        if "--no-input" in words or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return None
        given = dict(ctx.params)
        self.check_given(given)
        while missing := self.missing(ctx, words):
            param, _ = missing[0]
            answer = self._answer(param.name, self.default(param.name, given))
            if answer is None:
                return None
            given[param.name] = answer
            words = [*words, *self.words_of(param, answer)]
        typer.echo(visible(f"In one line: {ctx.command_path} {shlex.join(words)}") + "\n", err=True)
        return words

    def _answer(self, name: str, default: str | None) -> str | None:
        """Ask until the answer is valid; None if the input ends."""

        def usable(text: str) -> str:
            try:
                self.check_answer(name, text)
            except ZerokitError as error:
                raise typer.BadParameter(str(error)) from None
            return text

        try:
            return str(typer.prompt(self.questions[name], default, value_proc=usable, err=True))
        except typer.Abort as abort:
            if not isinstance(abort.__context__, EOFError):
                raise
            typer.echo(err=True)  # the next output starts on its own line
            return None
