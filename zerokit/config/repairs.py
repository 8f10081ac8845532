"""Edits that fix a ds_config, where there is one right answer: tried out before they are proposed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from zerokit.config.base import AUTO, BYTES, whole
from zerokit.config.dtypes import DTYPES
from zerokit.config.key_index import field_at, section_at
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import KeyPath, has_value, value_at, with_value, without
from zerokit.errors import ZerokitError
from zerokit.findings import Edit, Move, Remove, SetValue
from zerokit.units import parse_bytes, parse_count

Errors = frozenset[tuple[KeyPath, str]]
"""Where a config is not valid, and how: pydantic's location, without the tags of unions, and its type."""

TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")

_FORMATS = {**DTYPES, "bfp16": "bf16"}
"""Names of number formats, for keys that know the short ones only."""


def errors_of(data: Any) -> Errors:
    """What the models say of a config."""
    try:
        DeepSpeedConfig.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        return frozenset((key_path(detail["loc"]), detail["type"]) for detail in details)
    return frozenset()


def key_path(location: Iterable[int | str]) -> KeyPath:
    """The location of an error without the tags of unions, which are in parentheses."""
    return tuple(key for key in location if not str(key).startswith("("))


class Fixer:
    """Tries edits on a config."""

    def __init__(self, data: Any, errors: Errors) -> None:
        self.data = data
        self._errors = errors

    def moves(self, move: Move) -> bool:
        """Whether the value is good where it is moved to, and nothing else goes wrong there.

        Errors within a section that is moved as a whole do not count: they were there before.
        """
        try:
            new = errors_of(edited(self.data, [move])) - self._errors
        except KeyError:
            return False
        return all(len(place) > len(move.to) and place[: len(move.to)] == move.to for place, _ in new)

    def takes(self, path: KeyPath, value: Any) -> bool:
        """Whether there is nothing at `path`, and the value is none that is wrong there."""
        if has_value(self.data, path):
            return False
        try:
            new = errors_of(with_value(self.data, path, value)) - self._errors
        except KeyError:
            return False
        return all(place != path for place, _ in new)

    def _fixes(self, path: KeyPath, edit: Edit) -> bool:
        """Whether the edit leaves no error at `path`; what it brings to light elsewhere is no objection."""
        try:
            after = errors_of(edited(self.data, [edit]))
        except KeyError:
            return False
        return not any(place[: len(path)] == path for place, _ in after)

    def value_for(self, path: KeyPath, value: Any) -> SetValue | Remove | None:
        """The edit that writes a wrong value, plainly meant, in the form that DeepSpeed reads."""
        if not path:
            return None
        tried: list[str] = []
        for edit in _candidates(path, value, self.data):
            shown = repr(edit)
            if shown not in tried and self._fixes(path, edit):
                return edit
            tried.append(shown)
        return None


def edited(data: Any, edits: Iterable[Edit]) -> Any:
    """A copy of plain data with the edits made; what they do not touch is shared.

    Raises:
        KeyError: an edit does not suit the data.
    """
    for edit in edits:
        match edit:
            case SetValue(path, value):
                data = with_value(data, path, value)
            case Remove(path):
                data = without(data, path)
            case Move(path, to):
                data = _moved(data, path, to)
            case _:
                raise KeyError(edit)
    return data


def _moved(data: Any, path: KeyPath, to: KeyPath) -> Any:
    value, section = value_at(data, path), value_at(data, path[:-1])
    if not path or not has_value(data, path) or not isinstance(section, dict):
        raise KeyError(path)
    if not to or has_value(data, to) or to[: len(path)] == path:
        raise KeyError(to)
    if path[:-1] != to[:-1]:
        return with_value(without(data, path), to, value)
    # A new name, and the same place among the others.
    return with_value(data, path[:-1], {to[-1] if key == path[-1] else key: section[key] for key in section})


def choices_at(path: KeyPath, data: Any = None) -> list[Any]:
    """The fixed values that the key at `path` may have, or that the items of its list may have."""
    field = field_at(path[:-1] if isinstance(path[-1], int) else path, data)
    found: list[Any] = []

    def walk(annotation: Any) -> None:
        for part in get_args(annotation):
            if isinstance(part, str | int | bool) and part not in found:
                found.append(part)
            else:
                walk(part)

    if field is not None:
        walk(field.annotation)
    return found


def counts_bytes(path: KeyPath, data: Any = None) -> bool:
    """Whether the number at `path` counts bytes, so that "1M" may mean one thing or another."""
    field = field_at(path, data)
    return field is not None and BYTES in field.metadata


def _candidates(path: KeyPath, value: Any, data: Any) -> Iterator[SetValue | Remove]:
    if isinstance(value, str):
        yield from (SetValue(path, meant) for meant in _meant_by_text(path, value, data))
    elif isinstance(value, bool):
        fields = _fields(path, data)
        if "enabled" in fields:
            yield SetValue(path, {"enabled": value})
        elif "device" in fields and not value:
            yield Remove(path)
    elif isinstance(value, int | float):
        if value in (0, 1):
            yield SetValue(path, bool(value))
        if isinstance(value, float) and isinstance(whole(value), int):
            yield SetValue(path, int(value))
        if path == ("zero_optimization",):
            yield SetValue(path, {"stage": value})
    elif value is None and _fields(path, data):
        yield Remove(path)


def _meant_by_text(path: KeyPath, text: str, data: Any) -> Iterator[Any]:
    text = text.strip()
    word = text.lower()
    if word == AUTO:
        yield AUTO
    if word in TRUE_WORDS:
        yield True
    if word in FALSE_WORDS:
        yield False
    yield from _numbers(text, in_bytes=counts_bytes(path, data))
    for choice in choices_at(path, data):
        if isinstance(choice, str) and choice.lower() in (word, _FORMATS.get(word)):
            yield choice


def _numbers(text: str, *, in_bytes: bool) -> Iterator[int | float]:
    """The number that ``5e8``, ``1_000``, ``1k`` or, for bytes, ``1MiB`` means."""
    try:
        if not in_bytes:
            yield parse_count(text)
        elif text.lower().endswith("ib") or text.replace("_", "").isdigit():
            yield parse_bytes(text)
    except ZerokitError:
        pass
    try:
        value = json.loads(text.replace("_", ""))
    except ValueError:
        return
    if isinstance(value, float) and isinstance(whole(value), int):
        yield int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0:
        yield value


def _fields(path: KeyPath, data: Any) -> Mapping[str, Any]:
    """The keys of the section that belongs at `path`."""
    model = section_at(path, data)
    return model.model_fields if model is not None else {}


_LAX: dict[type, TypeAdapter[Any]] = {}


def deepspeed_reads_as(value: Any, kind: type) -> Any:
    """What DeepSpeed's pydantic models make of a value for a field of that type; None if they refuse it."""
    if kind not in _LAX:
        _LAX[kind] = TypeAdapter(kind)
    try:
        return _LAX[kind].validate_python(value, strict=False)
    except ValidationError:
        return None
