"""Edits of a JSON text that keep every other byte: order, indentation and comments.

An edit is made in the text and in the data, and the new text is read again: what comes out is what the
edit says, or nothing is changed.
"""

import json
import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from zerokit.config.repairs import edited
from zerokit.documents import Document, KeyPath, dotted, parse_json
from zerokit.errors import DocumentError
from zerokit.findings import Edit, Move, Remove, ReplaceText, SetValue

_REST_OF_LINE = re.compile(r"[ \t]*(,?)[ \t]*(?:(?://|#)[^\r\n]*|/\*[^\r\n]*?\*/)?[ \t]*(?=\r?\n|\Z)")
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)


class EditError(Exception):
    """The edit does not suit the document: a key is absent, a target is taken, a parent is no section."""


def apply_edits(document: Document, edits: Iterable[Edit]) -> Document:
    """`document` with `edits` made one after the other, read again.

    Raises:
        EditError: one of them does not suit the document, or the document is no JSON text.
    """
    for of_text, together in groupby(edits, lambda edit: isinstance(edit, ReplaceText)):
        if of_text:
            document = _replace_text(document, [edit for edit in together if isinstance(edit, ReplaceText)])
        else:
            for edit in together:
                document = _apply(document, edit)
    return document


def edit_data(data: Any, edit: Edit) -> Any:
    """The same edit on plain data; what it does not touch is shared with the result.

    Raises:
        EditError: it does not suit the data, or is one of text.
    """
    try:
        return edited(data, [edit])
    except KeyError as error:
        raise EditError(f"{edit} does not suit the file: {error}") from None


def _apply(document: Document, edit: Edit) -> Document:
    assert not isinstance(edit, ReplaceText)
    expected = edit_data(document.data, edit)
    result = _read(_edit_text(document, edit), document.name)
    if not _same(result.data, expected):
        raise EditError(f"'{dotted(edit.path)}' cannot be edited in this text")
    return result


def _replace_text(document: Document, edits: Iterable[ReplaceText]) -> Document:
    """The edits in order, each applied to the text that the earlier ones left."""
    text = _text(document)
    for edit in edits:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return _read(text, document.name)


def _read(text: str, name: str) -> Document:
    try:
        return parse_json(text, name, lenient=True)
    except DocumentError as error:
        raise EditError(str(error)) from error


def _edit_text(document: Document, edit: SetValue | Remove | Move) -> str:
    text = _text(document)
    match edit:
        case SetValue(path, value):
            span = document.spans.get(path)
            if span is None:
                return _with_entry(document, path, None, value)
            indent = _indent_at(text, span.start)
            return text[: span.value] + _to_text(value, document, indent, path) + text[span.end :]
        case Remove(path):
            return _without_entry(document, path)
        case Move(path, to):
            span = document.spans[path]
            if path[:-1] == to[:-1]:
                key = _key_end(text, span.start)
                return text[: span.start] + json.dumps(to[-1], ensure_ascii=False) + text[key:]
            moved = _reindented(text[span.value : span.end], _indent_at(text, span.start))
            remark = _remark_beside(document, path)
            with_both = _read(_with_entry(document, to, moved, None), document.name)
            if remark and _stands_last(with_both, to):
                end = with_both.spans[to].end
                text = _text(with_both)
                with_both = _read(f"{text[:end]} {remark}{text[end:]}", document.name)
                remark = ""
            return _without_entry(with_both, path, remark)


def _with_entry(document: Document, path: KeyPath, raw: str | None, value: Any) -> str:
    """The text with a new last entry, whose value is `raw` text without indentation, or else `value`."""
    text = _text(document)
    section = path[:-1]
    if section not in document.spans:
        made = _read(_with_entry(document, section, None, {}), document.name)
        return _with_entry(made, path, raw, value)
    entries = _entries(document, section)
    start, end = document.spans[section].value, document.spans[section].end
    newline = _newline(text)
    own_line = _is_spread(text, document, section)
    outer = _indent_at(text, document.spans[section].start)
    indent = outer + _unit(text) if not entries else _indent_at(text, document.spans[entries[-1]].start)
    written = (
        _to_text(value, document, indent, path)
        if raw is None
        else newline.join(line if at == 0 else indent + line for at, line in enumerate(raw.split("\n")))
    )
    entry = json.dumps(path[-1], ensure_ascii=False) + _colon(document, entries) + written
    if not entries:
        inner = text[start + 1 : end - 1].strip()
        if inner:  # comments only
            return f"{text[: end - 1].rstrip()}{newline}{indent}{entry}{newline}{outer}{text[end - 1 :]}"
        entry = f"{newline}{indent}{entry}{newline}{outer}" if own_line else entry
        return f"{text[:start]}{{{entry}}}{text[end:]}"
    last = document.spans[entries[-1]]
    if not own_line:
        comma = _comma_after(document, last.end)
        between = ", " if comma is None else " "
        at = last.end if comma is None else comma + 1
        return f"{text[:at]}{between}{entry}{text[at:]}"
    rest = _REST_OF_LINE.match(text, last.end)
    line_end = rest.end() if rest is not None else last.end
    comma = _comma_after(document, last.end)
    if comma is not None and comma >= line_end:
        line_end = comma + 1
    kept = ("," if comma is None else "") + text[last.end : line_end].rstrip(" \t")
    return f"{text[: last.end]}{kept}{newline}{indent}{entry}{text[line_end:]}"


def _remark_beside(document: Document, path: KeyPath) -> str:
    """The comment after an entry at the end of its last line; "" if there is none."""
    text, end = _text(document), document.spans[path].end
    comma = _comma_after(document, end)
    rest = _REST_OF_LINE.match(text, end if comma is None or "\n" in text[end:comma] else comma + 1)
    return "" if rest is None else rest[0].strip(" \t,")


def _stands_last(document: Document, path: KeyPath) -> bool:
    """Whether nothing but the end of the line follows an entry."""
    return re.compile(r"[ \t]*(?:\r?\n|\Z)").match(_text(document), document.spans[path].end) is not None


def _without_entry(document: Document, path: KeyPath, remark: str = "") -> str:
    """The text without the entry and the comment about it; `remark` stays in its place."""
    text = _text(document)
    siblings = _entries(document, path[:-1])
    at = siblings.index(path)
    span = document.spans[path]
    section = document.spans[path[:-1]]
    comma = _comma_after(document, span.end)
    end = span.end if comma is None else comma + 1
    rest = _REST_OF_LINE.match(text, end)
    line_start = text.rfind("\n", 0, span.start) + 1
    alone = not text[line_start : span.start].strip() and rest is not None and line_start > section.value
    if alone and rest is not None:
        # Its whole lines, with the line break before them and the comment after.
        start = line_start - (2 if text[line_start - 2 : line_start] == "\r\n" else 1)
        end = rest.end()
        if remark:
            start, end = span.start, text.index(remark, span.end)
    else:
        start = span.start
        if at + 1 < len(siblings):
            space = re.compile(r"[ \t]*").match(text, end)
            end = space.end() if space is not None else end
    kept = ""
    if remark and remark in text[span.end : end]:
        kept = remark + _newline(text) + _indent_at(text, span.start)
    before = None if at == 0 else _comma_after(document, document.spans[siblings[at - 1]].end)
    if at + 1 == len(siblings) and before is not None:
        if not alone:
            start = before if not text[before + 1 : span.start].strip() else start
        if start > before:
            text = text[:before] + text[before + 1 :]
            start, end = start - 1, end - 1
    result = text[:start] + kept + text[end:]
    if len(siblings) == 1:
        opened, closed = section.value, section.end - (len(text) - len(result))
        inner = result[opened + 1 : closed - 1]
        if result[opened : opened + 1] in ("{", "[") and not inner.strip():
            result = result[: opened + 1] + result[closed - 1 :]
    return result


def _to_text(value: Any, document: Document, indent: str, path: KeyPath) -> str:
    """`value` as the document would write it, at a place whose line is indented by `indent`."""
    text = _text(document)
    if isinstance(value, dict) and value and _is_spread(text, document, path[:-1]):
        inner = indent + _unit(text)
        newline = _newline(text)
        entries = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_to_text(item, document, inner, path)}"
            for key, item in value.items()
        ]
        return "{" + newline + f",{newline}".join(entries) + newline + indent + "}"
    if isinstance(value, dict):
        items = (f"{json.dumps(k, ensure_ascii=False)}: {_to_text(v, document, '', ())}" for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_to_text(item, document, indent, ()) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _entries(document: Document, section: KeyPath) -> list[KeyPath]:
    """The paths of the entries of a section or list, in the order of the text."""
    depth = len(section)
    return [path for path in document.spans if len(path) == depth + 1 and path[:depth] == section]


def _is_spread(text: str, document: Document, section: KeyPath) -> bool:
    """Whether the entries of a section are on lines of their own, or would be if there were any."""
    entries = _entries(document, section)
    if not entries:
        return "\n" in text.strip()
    start = document.spans[entries[-1]].start
    return not text[text.rfind("\n", 0, start) + 1 : start].strip() and "\n" in text[:start]


def _comma_after(document: Document, offset: int) -> int | None:
    """The offset of the comma after the entry that ends at `offset`, past spaces and comments."""
    text = _text(document)
    comments = {departure.start: departure.end for departure in document.departures if departure.kind == "comment"}
    while offset < len(text):
        if offset in comments:
            offset = comments[offset]
        elif text[offset].isspace():
            offset += 1
        else:
            return offset if text[offset] == "," else None
    return None


def _colon(document: Document, siblings: list[KeyPath]) -> str:
    """The text between a key and its value, as in the entry before."""
    text = _text(document)
    if siblings:
        span = document.spans[siblings[-1]]
        between = text[_key_end(text, span.start) : span.value]
        if between.strip() == ":" and "\n" not in between:
            return between
    return ": "


def _key_end(text: str, start: int) -> int:
    """Where the key ends that begins at `start`."""
    if text[start] == '"':
        return json.JSONDecoder().raw_decode(text, start)[1]
    pattern = r"'(?:[^'\\]|\\.)*'" if text[start] == "'" else r"[^\s:{}\[\],]+"
    match = re.compile(pattern).match(text, start)
    assert match is not None  # the reader found a key there
    return match.end()


def _reindented(raw: str, indent: str) -> str:
    """A value's text without the `indent` of the line on which it began, lines divided by one newline."""
    lines = raw.replace("\r\n", "\n").split("\n")
    return "\n".join([lines[0], *(line.removeprefix(indent) for line in lines[1:])])


def _indent_at(text: str, offset: int) -> str:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    found = _INDENT.search(text)
    return found[1] if found is not None else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _text(document: Document) -> str:
    if document.text is None:
        raise EditError("is not a JSON text")
    return document.text


def _same(left: Any, right: Any) -> bool:
    """Whether two values are equal, in the same order and telling true from 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right and isinstance(left, bool) == isinstance(right, bool)
