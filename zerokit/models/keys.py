"""Reads the keys of a config.json with types, defaults, and places for errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from zerokit.documents import dotted
from zerokit.errors import ModelError

LARGEST_SIZE = 2**40
"""No model has a dimension near this."""


class NotCountedError(Exception):
    """A config needs something that has no code here."""


class Keys:
    """The keys of a config.json, or of a section of it.

    Args:
        where: returns the place of a key (file, line and key), for errors.
        defaults: transformers' defaults for this model type.
        aliases: other spellings of keys (transformers' `attribute_map`).
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        where: Callable[[tuple[str, ...]], str],
        *,
        defaults: Mapping[str, Any] | None = None,
        aliases: Mapping[str, str] | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        self.data = data
        self._where = where
        self._defaults = defaults or {}
        self._spellings: dict[str, list[str]] = {}
        for alias, name in (aliases or {}).items():
            self._spellings.setdefault(name, []).append(alias)
        self._path = path

    def value(self, name: str) -> Any:
        """The value of a key in any spelling, or its default; None if there is none."""
        spelling = self._spelling(name)
        return self._defaults.get(name) if spelling is None else self.data[spelling]

    def refuse_nulls(self, nullable: Collection[str]) -> None:
        """Refuse null for a key with a default, as transformers does, but for `nullable` keys (ModelError)."""
        for name, default in self._defaults.items():
            if default is not None and name not in nullable and self.value(name) is None:
                self.fail(name, "is null", "Give its value, or remove it for transformers' default")

    def size(self, name: str) -> int:
        """A whole number of at least 1. ModelError if it is missing or invalid."""
        size = self.optional_size(name)
        if size is None:
            given = self._spelling(name) is not None
            self.fail(name, "is null" if given else "is missing", "Give its size, a whole number of at least 1")
        return size

    def optional_size(self, name: str) -> int | None:
        """A whole number of at least 1; None if it is absent or null. ModelError if it is invalid."""
        value = self.value(name)
        if value is not None and (not _is_whole(value) or not 1 <= value <= LARGEST_SIZE):
            self.fail(name, f"is {_shown(value)}", "Give its size, a whole number of at least 1")
        assert value is None or isinstance(value, int)
        return value

    def own_size(self, name: str) -> int:
        """A size in this spelling only, or its default. ModelError if it is missing or invalid."""
        return Keys(self.data, self._where, defaults=self._defaults, path=self._path).size(name)

    def count(self, name: str) -> int:
        """A whole number of at least 0; null is 0. ModelError if it is invalid."""

        def is_valid(value: Any) -> bool:
            return _is_whole(value) and 0 <= value <= LARGEST_SIZE

        return int(self._checked(name, is_valid, "Give a whole number of at least 0", 0))

    def flag(self, name: str) -> bool:
        """true or false; null is false. ModelError if it is invalid."""
        return bool(self._checked(name, lambda value: isinstance(value, bool), "Write true or false", False))

    def text(self, name: str) -> str:
        """A string; empty if absent. ModelError if it is invalid."""
        return str(self._checked(name, lambda value: isinstance(value, str), "Give a string", ""))

    def layers(self, name: str) -> frozenset[int]:
        """A list of layer numbers; empty if absent. ModelError if it is invalid."""

        def is_valid(value: Any) -> bool:
            return isinstance(value, list) and all(_is_whole(item) for item in value)

        return frozenset(self._checked(name, is_valid, "Give a list of layer numbers", ()))

    def _checked(self, name: str, is_valid: Callable[[Any], bool], hint: str, default: Any) -> Any:
        value = self.value(name)
        if value is None:
            return default
        if not is_valid(value):
            self.fail(name, f"is {_shown(value)}", hint)
        return value

    def num_labels(self) -> int:
        """Labels of a classification head: from `id2label`, else `num_labels`, else 2.

        Raises:
            ModelError: one is invalid.
        """
        labels = self.data.get("id2label")
        if labels is not None:
            if not isinstance(labels, Mapping):
                self.fail("id2label", f"is {_shown(labels)}", "Give a section of numbers and names")
            return len(labels)
        return self.size("num_labels") if self.data.get("num_labels") is not None else 2

    def section(self, name: str) -> Keys:
        """The keys of a section; empty if absent. ModelError if it is not a section."""
        value = self._checked(name, lambda value: isinstance(value, Mapping), "Give a section {...}", {})
        return Keys(value, self._where, path=(*self._path, name))

    def divide(self, whole: str, part: str) -> int:
        """`whole` divided by `part`. ModelError if it does not divide evenly."""
        numerator, denominator = self.size(whole), self.size(part)
        if numerator % denominator:
            self.fail(whole, f"is {numerator}, not a multiple of {part} {denominator}", f"Change {whole} or {part}")
        return numerator // denominator

    def not_counted(self, *names: str) -> None:
        """Raise NotCountedError if one of the keys `names` is set."""
        for name in names:
            if self.value(name):
                raise NotCountedError(f"'{name}'")

    def fail(self, name: str, message: str, hint: str) -> NoReturn:
        """Refuse the config because of the key `name` (ModelError)."""
        path = (*self._path, self._spelling(name) or name)
        raise ModelError(f"'{dotted(path)}' {message}", where=self._where(path), hint=hint)

    def _spelling(self, name: str) -> str | None:
        return next((key for key in (*self._spellings.get(name, ()), name) if key in self.data), None)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A value as JSON, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > LARGEST_SIZE:
        return "a number too large to be a size"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
