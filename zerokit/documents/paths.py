"""Paths into nested data: read, set, remove, and walk along them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

Key = str | int
"""A mapping's key or a list's index."""

KeyPath = tuple[Key, ...]

ABSENT: Final[Any] = object()
"""A default for :func:`value_at` that differs from null, which is a value."""


def dotted(path: KeyPath) -> str:
    """``("a", 0, "b")`` as ``"a[0].b"``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def split_dotted(name: str) -> tuple[str, ...]:
    """``"a.b"`` as ``("a", "b")``; not for paths into lists."""
    return tuple(name.split("."))


def value_at(data: Any, path: KeyPath, default: Any = None) -> Any:
    """The value at `path`, or `default` if there is none."""
    for key in path:
        if isinstance(data, Mapping):
            is_there = key in data
        else:
            is_there = isinstance(data, list) and isinstance(key, int) and 0 <= key < len(data)
        if not is_there:
            return default
        data = data[key]
    return data


def has_value(data: Any, path: KeyPath) -> bool:
    """Whether there is a value at `path`, null included."""
    return value_at(data, path, ABSENT) is not ABSENT


def with_value(data: Any, path: KeyPath, value: Any, *, replace: bool = False) -> Any:
    """A copy of `data` with `value` at `path`; missing sections are made.

    Args:
        data: nested dicts and lists; the copy shares all other parts.
        path: an index must be of an existing item.
        replace: replace a value on the path that is no section, such as null.

    Raises:
        KeyError: a value on the path is no section, and `replace` is false.
    """
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(data, list) and isinstance(key, int) and 0 <= key < len(data):
        return [*data[:key], with_value(data[key], rest, value, replace=replace), *data[key + 1 :]]
    if not isinstance(data, dict):
        if not replace:
            raise KeyError(key)
        data = {}
    return {**data, key: with_value(data.get(key, {}), rest, value, replace=replace)}


def without(data: Any, path: KeyPath) -> Any:
    """A copy of `data` without the entry at `path`; it shares all other parts. KeyError if there is none."""
    if not path or not has_value(data, path):
        raise KeyError(path)
    key, rest = path[0], path[1:]
    inner = without(data[key], rest) if rest else ABSENT
    if isinstance(data, list) and isinstance(key, int):
        return [*data[:key], *([] if inner is ABSENT else [inner]), *data[key + 1 :]]
    if rest:
        return {**data, key: inner}
    return {name: value for name, value in data.items() if name != key}


def leaves(data: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value that is no section, with its path; an empty section and a list are values."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value
