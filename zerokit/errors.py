"""zerokit's exceptions, and text that is safe to print.

An error of a user is one line: what is wrong, where, and how to fix it. Commands print it and exit with
:attr:`ZerokitError.exit_code`. Only bugs of zerokit show a traceback.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class ZerokitError(Exception):
    """Unusable input.

    Args:
        message: what is wrong, without a full stop.
        where: the file (a path), line, key or command-line option.
        hint: how to fix it, as an instruction.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str | Path | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = _one_line(message)
        self.where = _one_place(where) if where else None
        self.hint = _one_line(hint) if hint else None
        self.others: Sequence[ZerokitError] = ()
        """Errors that were found together with this one: printed as a line each, in a traceback as notes."""

    def __str__(self) -> str:
        line = f"{self.where}: {self.message}" if self.where else self.message
        return f"{line}. {self.hint}" if self.hint else line


class ArgumentError(ZerokitError, TypeError):
    """Arguments that a function of zerokit does not have, or lacks."""


class DocumentError(ZerokitError):
    """A JSON or YAML file that cannot be read."""


class ConfigError(ZerokitError):
    """A ds_config that is not valid, or not valid for this run."""


class RecipeError(ZerokitError):
    """A recipe or an override that is not valid."""


class DataError(ZerokitError):
    """A data set that is missing, malformed, empty, or lacks a column."""


class ModelError(ZerokitError):
    """A model or tokenizer that cannot be loaded."""


class LaunchError(ZerokitError):
    """A launch that does not suit this machine."""


class CheckpointError(ZerokitError):
    """A checkpoint that is incomplete or unusable."""


class RunError(ZerokitError):
    """A run that failed after it had started: it diverged, or its machine lost a resource."""

    exit_code = 1


class PreemptedError(ZerokitError):
    """A run that ended because it was asked to stop. It can resume from its last checkpoint, if any."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits(3): try again later."""


class RankError(RunError):
    """An error that ends one rank at once: the others may be waiting for it in a collective."""


def combine_errors(errors: Iterable[ZerokitError]) -> ZerokitError | None:
    """Return the first error with the others attached; None if there are none."""
    each = [one for error in errors for one in (error, *error.others)]
    for one in each:
        if one.others:
            one.others, one.__notes__ = (), []
    if not each:
        return None
    each[0].others = each[1:]
    for other in each[1:]:
        each[0].add_note(str(other))
    return each[0]


def raise_together(errors: Iterable[ZerokitError]) -> None:
    """Raise the first error with the others attached, if there are any."""
    if (first := combine_errors(errors)) is not None:
        raise first


def _one_place(where: str | Path) -> str:
    return visible(printable(" ".join(str(where).split())))


@contextmanager
def collect_errors(errors: list[ZerokitError], *, where: str | None = None) -> Iterator[None]:
    """Append an error of the block to `errors`, for :func:`raise_together` after all checks."""
    try:
        yield
    except ZerokitError as error:
        if where is not None and error.where is None:
            error.where = _one_place(where)
        errors.append(error)


def nearest(name: str, choices: Iterable[str], least: float = 0.6) -> str | None:
    """The choice that is most similar to `name`; None if none has `least` similarity (`difflib`).

    A choice with all words of `name`, in any order, is preferred.
    """
    choices = list(choices)
    words = _words(name)
    if len(words) > 1:
        holding = sorted((c for c in choices if words <= _words(c)), key=lambda c: len(_words(c)))
        if len(holding) == 1 or (holding and len(_words(holding[0])) < len(_words(holding[1]))):
            return holding[0]
    by_folded = {choice.lower().replace("-", "_"): choice for choice in choices}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), by_folded, n=1, cutoff=least)
    return by_folded[close[0]] if close else None


def _words(name: str) -> frozenset[str]:
    """The words of a name such as ``zero_stage`` or ``WarmupCosineLR``, in lower case."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))


def join_hints(first: str | None, then: str) -> str:
    """Join two hints as sentences."""
    if not first:
        return then
    return f"{first} {then}" if first.endswith("?") else f"{first}. {then}"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A hint that names the most similar choice, or lists a few choices if none is similar."""
    choices = list(choices)
    close = nearest(name, choices)
    if close is not None:
        return f"Did you mean '{close}'?"
    if len(choices) <= 16:
        return f"Choose one of: {', '.join(choices)}"
    return "No known key has a similar name"


def check_choice(kind: str, name: str, choices: Iterable[str]) -> None:
    """Raise ZerokitError if `name` is not one of `choices`, which are of a `kind`."""
    if name not in choices:
        raise ZerokitError(f"there is no {kind} '{name}'", hint=did_you_mean(name, choices))


def printable(path: str | Path) -> str:
    """A path as text; bytes that are not UTF-8 are replaced."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")


def visible(text: str) -> str:
    """Return `text` with control characters and invisible characters as escapes such as ``\\x1b``.

    Spaces of other widths and joiners stay: Persian and emoji need them. All printed text passes here.
    """
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) else ascii(char)[1:-1] for char in text)


def visible_lines(text: str) -> str:
    """As :func:`visible`, but keep line breaks and terminal colours."""
    parts = re.split("(\n|\x1b\\[[0-9;]*m)", text)
    return "".join(part if number % 2 else visible(part) for number, part in enumerate(parts))


def visible_json(text: str) -> str:
    """The same JSON, with JSON escapes for what :func:`visible` escapes, except line breaks."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if _is_shown(char) or char == "\n" else json.dumps(char)[1:-1] for char in text)


def _is_shown(char: str) -> bool:
    return char.isprintable() or char in "\u200c\u200d" or unicodedata.category(char) == "Zs"


def _one_line(text: str) -> str:
    # Not str.split: spaces of other widths may be part of a name.
    text = re.sub("[ \t-\r\x1c-\x1f\x85\u2028\u2029]+", " ", text).strip(" ").rstrip(".")
    return visible(re.sub("([1-9][0-9]{19})[0-9]{30,}", r"\1(...)", text))
