"""The one reader of JSON and YAML.

Both formats give plain Python data plus the line and column of every key and value, and both reject
duplicate keys: DeepSpeed rejects them too, while transformers and accelerate keep the last one in
silence, so that one file would mean two things.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from zerokit.errors import DocumentError

Key = str | int
"""One step into a document: a mapping's key or a sequence's index."""

KeyPath = tuple[Key, ...]


@dataclass(frozen=True)
class Document:
    """Parsed data that remembers where each part of it was written."""

    data: Any
    name: str
    """The file's path as the user gave it, or what the text came from."""
    positions: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column (both from 1) of each key path: of the key in a mapping, of the item in a list."""

    def where(self, path: KeyPath = ()) -> str:
        """``"file.json:12 (zero_optimization.stage)"``, as exact as is known."""
        line = self.line(path)
        place = f"{self.name}:{line}" if line is not None else self.name
        return f"{place} ({dotted(path)})" if path else place

    def line(self, path: KeyPath) -> int | None:
        """The line of `path`, or of the nearest parent that has one."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.positions:
                return self.positions[path[:end]][0]
        return None


def dotted(path: KeyPath) -> str:
    """``("a", 0, "b")`` as ``"a[0].b"``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def read_document(path: str | Path) -> Document:
    """Read a file: JSON by the ending ``.json``, YAML by ``.yaml`` or ``.yml``.

    Raises:
        DocumentError: no such file, not UTF-8, not JSON or YAML, or a duplicate key.
    """
    file = Path(path)
    name = str(path)
    suffix = file.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise DocumentError(
            f"cannot tell the format from the ending '{file.suffix}'",
            where=name,
            hint="Name the file .json, .yaml or .yml",
        )
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise DocumentError("no such file", where=name, hint="Check the path") from None
    except IsADirectoryError:
        raise DocumentError("is a folder, not a file", where=name, hint="Name a file in it") from None
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"is not UTF-8 (byte {error.start})", where=name, hint="Save it as UTF-8"
        ) from None
    except OSError as error:
        raise DocumentError(
            f"cannot be read: {error.strerror}", where=name, hint="Check its permissions"
        ) from None
    return parse_json(text, name) if suffix == ".json" else parse_yaml(text, name)


def parse_json(text: str, name: str = "<json>") -> Document:
    """Parse strict JSON (RFC 8259), which every loader in the field reads alike.

    Raises:
        DocumentError: a syntax error or a duplicate key, with its line.
    """
    parser = _JsonParser(text, name)
    try:
        return Document(parser.parse(), name, parser.positions)
    except RecursionError:
        raise DocumentError("is nested too deeply", where=name, hint="Flatten it") from None


def parse_yaml(text: str, name: str = "<yaml>") -> Document:
    """Parse YAML with the safe schema, plus ``1e-5`` as a number (YAML 1.1 reads it as a string).

    Raises:
        DocumentError: a syntax error or a duplicate key, with its line.
    """
    import yaml

    loader = None
    try:
        loader = _yaml_loader_class()(text)  # refuses control characters
        node = loader.get_single_node()
        if node is None:
            return Document(None, name)
        positions = dict(_yaml_positions(node, name))
        return Document(loader.construct_document(node), name, positions)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise DocumentError(
            f"is not YAML: {error.problem or error.context}", where=where, hint="Mend the syntax there"
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise DocumentError(f"is not YAML: {error}", where=name, hint="Mend the syntax") from None
    except RecursionError:
        raise DocumentError("is nested too deeply", where=name, hint="Flatten it") from None
    finally:
        if loader is not None:
            loader.dispose()


def parse_scalar(text: str) -> Any:
    """A command-line value as YAML reads it: ``1e-5``, ``true``, ``[1, 2]``, ``null``, a string.

    Raises:
        DocumentError: not a YAML value.
    """
    return parse_yaml(text, name=f"value '{text}'").data


def finite(data: Any) -> Any:
    """`data` with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(item) for item in data]
    return data


class _JsonParser:
    """A recursive-descent JSON parser that records positions, which the standard library's does not."""

    _WHITESPACE = re.compile(r"[ \t\n\r]*")
    _NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
    _DECODER = json.JSONDecoder()
    _LITERALS = (("true", True), ("false", False), ("null", None))

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.positions: dict[KeyPath, tuple[int, int]] = {}
        self.at = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def parse(self) -> Any:
        self._skip()
        value = self._value(())
        self._skip()
        if self.at < len(self.text):
            self._fail("text after the end of the JSON value", "Remove it")
        return value

    def _value(self, path: KeyPath) -> Any:
        char = self.text[self.at : self.at + 1]
        if char == "{":
            return self._object(path)
        if char == "[":
            return self._array(path)
        if char == '"':
            return self._string()
        number = self._NUMBER.match(self.text, self.at)
        if number is not None:
            return self._number(number)
        for literal, value in self._LITERALS:
            if self.text.startswith(literal, self.at):
                self.at += len(literal)
                return value
        if not char:
            self._fail("the file ends where a value should be", "Complete it")
        if self.text.startswith(("True", "False", "None", "NaN", "Infinity", "-Infinity"), self.at):
            self._fail("not a JSON value", "JSON has true, false, null and finite numbers")
        self._fail(f"expected a value, found '{char}'", self._syntax_hint(char))

    def _number(self, match: re.Match[str]) -> int | float:
        self.at = match.end()
        text = match[0]
        try:
            value = float(text) if match[1] or match[2] else int(text)
        except ValueError:  # Python refuses to convert integers of thousands of digits
            self._fail("a number with too many digits", "Shorten it")
        if value in (float("inf"), float("-inf")):
            self._fail(f"the number {text} does not fit a float", "Make it smaller")
        return value

    def _object(self, path: KeyPath) -> dict[str, Any]:
        self.at += 1
        result: dict[str, Any] = {}
        self._skip()
        if self._take("}"):
            return result
        while True:
            start = self.at
            if self.text[self.at : self.at + 1] != '"':
                found = self.text[self.at : self.at + 1]
                self._fail('expected a key in double quotes ("...")', self._syntax_hint(found))
            key = self._string()
            here = (*path, key)
            if key in result:
                first = self.positions[here][0]
                self.at = start
                self._fail(f"the key '{key}' stands twice (first on line {first})", "Remove one of them")
            self.positions[here] = self._position(start)
            self._skip()
            if not self._take(":"):
                self._fail(f"expected ':' after the key '{key}'", "Add it")
            self._skip()
            result[key] = self._value(here)
            self._skip()
            if self._take("}"):
                return result
            self._expect_comma("}")

    def _array(self, path: KeyPath) -> list[Any]:
        self.at += 1
        result: list[Any] = []
        self._skip()
        if self._take("]"):
            return result
        while True:
            here = (*path, len(result))
            self.positions[here] = self._position(self.at)
            result.append(self._value(here))
            self._skip()
            if self._take("]"):
                return result
            self._expect_comma("]")

    def _expect_comma(self, closer: str) -> None:
        if not self._take(","):
            self._fail(f"expected ',' or '{closer}'", "Add it")
        self._skip()
        if self.text[self.at : self.at + 1] == closer:
            self._fail("a comma after the last entry", "Remove it: JSON does not allow one")

    def _string(self) -> str:
        try:
            value, self.at = self._DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = error.pos
            self._fail(f"malformed string ({error.msg})", "Mend its quotes or escapes")
        assert isinstance(value, str)  # it began with a double quote
        return value

    def _take(self, char: str) -> bool:
        if self.text[self.at : self.at + 1] == char:
            self.at += 1
            return True
        return False

    def _skip(self) -> None:
        match = self._WHITESPACE.match(self.text, self.at)
        assert match is not None  # the pattern matches the empty string
        self.at = match.end()

    def _syntax_hint(self, char: str) -> str:
        if char in ("/", "#"):
            return 'JSON has no comments; use a "_comment" key'
        if char == "'":
            return 'JSON strings take double quotes (")'
        return "Mend the syntax there"

    def _position(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def _fail(self, message: str, hint: str) -> NoReturn:
        line, column = self._position(self.at)
        raise DocumentError(message, where=f"{self.name}:{line}:{column}", hint=hint)


def _yaml_loader_class() -> type[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    # YAML 1.2's float, under which 1e-5 is a number; people write learning rates this way.
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )
    return Loader


def _yaml_positions(root: Any, name: str) -> Iterator[tuple[KeyPath, tuple[int, int]]]:
    """Positions of every key path below `root`; raises on duplicate keys.

    A node reached through an alias is walked only where it is first met, so that nested aliases
    cannot make the walk exponential.
    """
    import yaml

    walked: set[int] = set()

    def walk(node: Any, path: KeyPath) -> Iterator[tuple[KeyPath, tuple[int, int]]]:
        if id(node) in walked:
            return
        walked.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key_node, value_node in node.value:
                line = key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    raise DocumentError(
                        "a key that is itself a list or a mapping",
                        where=f"{name}:{line}",
                        hint="Use a plain word as the key",
                    )
                key = key_node.value
                if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                    raise DocumentError(
                        f"the key '{key}' stands twice (first on line {seen[key]})",
                        where=f"{name}:{line}",
                        hint="Remove one of them",
                    )
                seen[key] = line
                yield (*path, key), (line, key_node.start_mark.column + 1)
                yield from walk(value_node, (*path, key))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield (*path, index), (item.start_mark.line + 1, item.start_mark.column + 1)
                yield from walk(item, (*path, index))

    yield from walk(root, ())
