"""Reads options whose names a library defines, such as ``--training.learning_rate 1e-5``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from zerokit.documents import parse_scalar
from zerokit.errors import DocumentError, ZerokitError, raise_together


class PassthroughOption(NamedTuple):
    """One option of the command line."""

    option: str
    """With its dashes."""
    text: str | None
    """None if no value follows."""

    def value(self) -> Any:
        """The value, read as YAML. ZerokitError if there is none, or it is not YAML."""
        if self.text is None:
            raise ZerokitError("has no value", where=self.option, hint=f"Write {self.option}=VALUE")
        try:
            return parse_scalar(self.text)
        except DocumentError as error:
            raise ZerokitError(
                f"the value '{self.text}' {error.message}",
                where=self.option,
                hint="Put text that has a meaning in YAML in quotes, twice in a shell: '\"a: b\"'",
            ) from None


def parse_passthrough_options(words: Sequence[str], *, hint: Callable[[str], str]) -> Iterator[PassthroughOption]:
    """Read ``--name value``, ``--name=value`` and ``--name``.

    Args:
        words: the command line without the command's own options. A value that begins with ``--`` needs
            ``=``.
        hint: returns the hint for a word that belongs to no option.

    Raises:
        ZerokitError: there are such words; raised after all options.
    """
    rest = list(words)
    strays: list[ZerokitError] = []
    while rest:
        word = rest.pop(0)
        option, equals, text = word.partition("=")
        if not option.startswith("--") or option == "--":
            strays.append(ZerokitError(f"'{word}' belongs to no option", where="command line", hint=hint(word)))
            continue
        if not equals and rest and not rest[0].startswith("--"):
            equals, text = "=", rest.pop(0)
        yield PassthroughOption(option, text if equals else None)
    raise_together(strays)
