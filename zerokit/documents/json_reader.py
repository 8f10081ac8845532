"""JSON with positions, strict or as DeepSpeed reads it."""

import json
import re
from bisect import bisect_right
from typing import Any, NoReturn

from zerokit.documents import causes
from zerokit.documents.document import Departure, Document, Span, fits_float, shortened
from zerokit.documents.paths import KeyPath
from zerokit.errors import DocumentError

MAX_DEPTH = 200
"""Maximum levels of brackets; deeper nesting would exhaust Python's stack."""

_END_OF_VALUE = r"(?=[\t ]*(?:[,\]}\r\n#]|/[/*]|\Z))"
_SPACE = re.compile(r"[ \t\n\r]*")
_COMMENT = re.compile(r"#[^\r\n]*|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?" + _END_OF_VALUE)
_WORD = re.compile("(true|false|null)" + _END_OF_VALUE)
_BARE_KEY = re.compile(r"([^\s:{}\[\],]+)(?=[ \t\n\r]*:)")
_KEY_WITHOUT_BRACES = re.compile(r"""(?:"[^"\r\n]*"|'[^'\r\n]*'|[^\s:{}\[\],"']+)[ \t\n\r]*:""")
_END_OF_BARE = re.compile(r"[\r\n,}\]#]|/[/*]|\Z")
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\\x00-\x1f]|\\[^\x00-\x1f])*)'")
_VALUE_HINTS = {",": "Remove the comma", ":": "Remove one colon"}
_WORDS = {"true": True, "false": False, "null": None}
_DECODER = json.JSONDecoder()


def parse_json(
    text: str, name: str = "<json>", *, lenient: bool = False, most_entries: int | None = None, is_line: bool = False
) -> Document:
    """Parse JSON.

    Args:
        lenient: accept what DeepSpeed accepts with hjson (`DeepSpeedConfig.__init__` in
            `deepspeed/runtime/config.py`), and list it in :attr:`Document.departures`: comments, commas that
            are missing at the end of a line or follow the last entry, keys and strings without quotes or in
            single quotes, a byte-order mark, and no braces around the whole. Otherwise the text must be
            strict JSON (RFC 8259); a byte-order mark is skipped.
        most_entries: maximum number of keys and items.
        is_line: whether the text is one line of a file, as in JSON Lines.

    Raises:
        DocumentError: a syntax error, a duplicate key or too many entries, with line, column and usual cause.
    """
    return _JsonParser(text, name, lenient, most_entries, "line" if is_line else "file").parse()


class _JsonParser:
    """A recursive-descent parser that records positions."""

    def __init__(self, text: str, name: str, lenient: bool, most_entries: int | None, whole: str) -> None:
        self.text = text
        self.name = name
        self.lenient = lenient
        self.whole = whole
        """Word for the text in errors."""
        self.most_entries = len(text) if most_entries is None else most_entries
        self.at = 0
        self.spans: dict[KeyPath, Span] = {}
        self.departures: list[Departure] = []
        self.open: list[int] = []
        """Offsets of the brackets that are not closed yet."""
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def parse(self) -> Document:
        if self._take("\ufeff") and self.lenient:
            self._depart("byte-order mark", 0, 1)
        self._skip()
        start = self.at
        char = self._next()
        if not char:
            self._fail("is empty" if not self.text.strip() else "has only comments", "Write { ... }")
        braces = not self.lenient or _KEY_WITHOUT_BRACES.match(self.text, self.at) is None
        if not braces:
            self._depart("no braces", self.at, self.at)
        value = self._value(()) if braces else self._entries((), "")
        if braces and self.departures and isinstance(value, str):
            self.at = start
            self._fail(f"expected '{{', found '{causes.word_at(self.text, start)}'", "Name a JSON file")
        self.spans[()] = Span(start, start, self.at)
        self._skip()
        if self.at < len(self.text):
            self._fail(*causes.text_after_the_end(self.text, self.at))
        positions = {path: self._position(span.start) for path, span in self.spans.items()}
        return Document(value, self.name, positions, self.text, self.spans, tuple(self.departures))

    def _value(self, path: KeyPath) -> Any:
        char = self._next()
        if char == '"':
            return self._string()
        if char == "{" or char == "[":
            self.open.append(self.at)
            if len(self.open) > MAX_DEPTH:
                self._fail(f"is nested too deeply, by more than {MAX_DEPTH} levels", "Flatten it")
            self.at += 1
            value = self._entries(path, "}") if char == "{" else self._items(path)
            self.open.pop()
            return value
        number = _NUMBER.match(self.text, self.at)
        if number is not None:
            return self._number(number)
        word = _WORD.match(self.text, self.at)
        if word is not None:
            self.at = word.end()
            return _WORDS[word[1]]
        if char == "'":
            return self._single_quoted()
        if not char:
            self._fail_at_end()
        if char in "}],:":
            self._fail(f"expected a value, found '{char}'", _VALUE_HINTS.get(char, "Write the value"))
        return self._bare_value()

    def _number(self, match: re.Match[str]) -> int | float:
        self.at = match.end()
        text = match[0]
        try:
            value = float(text) if match[1] or match[2] else int(text)
        except ValueError:  # Python refuses to convert integers of thousands of digits
            self._fail("a number with too many digits", "Shorten it", match.start())
        if not fits_float(value):
            self._fail(f"the number {shortened(text)} does not fit a float", "Make it smaller", match.start())
        return value

    def _entries(self, path: KeyPath, closer: str) -> dict[str, Any]:
        """The entries of an object up to its `closer`, or to the end of the text if that is ""."""
        result: dict[str, Any] = {}
        self._skip()
        while not self._take(closer):
            start = self.at
            key = self._key()
            here = (*path, key)
            if key in result:
                line, column = self._position(self.spans[here].start)
                self._fail(
                    f"the key '{key}' appears twice (first on line {line}, column {column})",
                    "Remove one of them",
                    start,
                )
            self._skip()
            if not self._take(":"):
                hint = "Write ':' for '='" if self._next() == "=" else "Add it"
                self._fail(f"expected ':' after the key '{key}'", hint)
            self._skip()
            value = self.at
            self.spans[here] = Span(start, value, value)
            result[key] = self._value(here)
            self.spans[here] = Span(start, value, self.at)
            self._separator(closer)
        return result

    def _items(self, path: KeyPath) -> list[Any]:
        result: list[Any] = []
        self._skip()
        while not self._take("]"):
            here = (*path, len(result))
            start = self.at
            self.spans[here] = Span(start, start, start)
            result.append(self._value(here))
            self.spans[here] = Span(start, start, self.at)
            self._separator("]")
        return result

    def _separator(self, closer: str) -> None:
        """Read the text between two entries, or between the last one and the `closer`."""
        if len(self.spans) > self.most_entries:
            self._fail(f"has more than {self.most_entries:,} entries", "Name a file of settings, not of data")
        after = self.at
        self._skip()
        comma = self.at
        if self._take(","):
            self._skip()
            if self._next() == closer:
                self._depart("trailing comma", comma, comma + 1)
        elif self._next() != closer:
            if self.at == len(self.text):
                self._fail_at_end()
            char = self._next()
            if char in "}]":
                self._fail_at_wrong_bracket(char)
            if char in ":=":
                self._fail(f"expected ',' or '{closer}', found '{char}'", causes.FIX_SYNTAX)
            if not self._took_the_comma(after):
                self._depart("missing comma", after, after)

    def _key(self) -> str:
        start, char = self.at, self._next()
        if char == '"':
            return self._string()
        if char == "'":
            return self._single_quoted()
        bare = _BARE_KEY.match(self.text, self.at)
        if bare is not None:
            self._depart("bare key", start, bare.end(), bare[1])
            self.at = bare.end()
            return bare[1]
        if not char:
            self._fail_at_end()
        if char == "]":
            self._fail_at_wrong_bracket(char)
        found = "two commas in a row" if char == "," else f"expected a key in double quotes, found '{char}'"
        self._fail(found, causes.hint_for_missing_key(char))

    def _string(self) -> str:
        start = self.at
        try:
            value, self.at = _DECODER.raw_decode(self.text, start)
        except json.JSONDecodeError as error:
            self._fail(*causes.malformed_string(error, self.text, start))
        assert isinstance(value, str)  # it began with a double quote
        if "\\u" in self.text[start : self.at]:
            try:
                value.encode()
            except UnicodeEncodeError:
                self._fail("a string with half of a character (\\ud800 to \\udfff)", "Write both halves", start)
        return value

    def _single_quoted(self) -> str:
        start = self.at
        match = _SINGLE_QUOTED.match(self.text, start)
        if match is None or self.text.startswith("'''", start):
            self._depart("single quotes", start, start)
            self._fail("a string in single quotes that is not closed on its line", causes.DOUBLE_QUOTES, start)
        self._depart("single quotes", start, match.end(), match[1])
        inner = re.sub(r'\\\'|(?<!\\)"', lambda found: "'" if found[0] == "\\'" else '\\"', match[1])
        try:
            value = _DECODER.decode(f'"{inner}"')
        except json.JSONDecodeError:
            self._fail("a backslash that begins no escape of JSON", "Write \\\\ for a backslash", start)
        self.at = match.end()
        assert isinstance(value, str)
        return value

    def _bare_value(self) -> Any:
        """A string without quotes: it ends at the end of the line, unless it is a number or word.

        Source: `scantfnns` in `hjson/decoder.py`.
        """
        start = self.at
        word = causes.word_at(self.text, start)
        if not self.lenient:
            after = start + len(word) if causes.is_scalar(word) else start
            self._depart("bare value", after, after, word)
        end = start
        for match in _END_OF_BARE.finditer(self.text, start):
            end = match.start()
            if match[0] in ("", "\r", "\n"):
                break
        value = self.text[start:end].strip()
        self._depart("bare value", start, end, word)
        self.at = end
        return value

    def _took_the_comma(self, end: int) -> bool:
        """Whether a string without quotes ends at `end`: a comma at its end is then part of it."""
        last = self.departures[-1] if self.departures else None
        return last is not None and last.kind == "bare value" and last.end >= end

    def _take(self, char: str) -> bool:
        if self._next() != char:
            return False
        self.at += len(char)
        return True

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self) -> None:
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None  # the pattern matches the empty string
            self.at = match.end()
            if self._next() not in ("/", "#"):
                return
            comment = _COMMENT.match(self.text, self.at)
            if comment is None:
                if self.text.startswith("/*", self.at):
                    self._fail("a comment that is never closed", "Close it with */, or remove it")
                return
            self._depart("comment", comment.start(), comment.end())
            self.at = comment.end()

    def _position(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def _depart(self, kind: str, start: int, end: int, word: str = "") -> None:
        """Record that the text is not JSON here; for a strict reader this is an error."""
        message, hint = causes.departure(kind, word)
        if not self.lenient:
            self._fail(message, hint, start)
        if len(self.departures) >= self.most_entries:
            self._fail(f"is no JSON in more than {self.most_entries:,} places", "Remove comments", start)
        line, column = self._position(start)
        meant = causes.NOT_JSON_WORDS.get(word) if kind == "bare value" else None
        self.departures.append(Departure(kind, message, hint, line, column, start, end, meant))

    def _fail_at_end(self) -> NoReturn:
        bare = next((departure for departure in self.departures if departure.kind == "bare value"), None)
        if bare is not None:  # hjson reads the rest of the line as the string
            self._fail(bare.message, bare.hint, bare.start)
        if not self.open:
            self._fail(f"the {self.whole} ends where a value should be", "Complete it")
        line, column = self._position(self.open[-1])
        bracket = self.text[self.open[-1]]
        self._fail(
            f"the {self.whole} ends, but the '{bracket}' of line {line}, column {column} is not closed",
            f"Add '{causes.CLOSER[bracket]}'",
        )

    def _fail_at_wrong_bracket(self, found: str) -> NoReturn:
        if not self.open:
            self._fail(f"one '{found}' too many", "Remove it")
        line, column = self._position(self.open[-1])
        bracket = self.text[self.open[-1]]
        self._fail(
            f"expected '{causes.CLOSER[bracket]}' for the '{bracket}' of line {line}, column {column}, "
            f"found '{found}'",
            f"Close the '{bracket}' first",
        )

    def _fail(self, message: str, hint: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        other = causes.not_json_at_all(self.text)
        if other is not None:
            message, hint, at = other
        line, column = self._position(at)
        raise DocumentError(message, where=f"{self.name}:{line}:{column}", hint=hint)
