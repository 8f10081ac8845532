"""The edits that the words of a hint ask for, where they ask for one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from zerokit.config.key_index import places_of
from zerokit.documents import KeyPath, has_value
from zerokit.findings import Edit, Finding, Move, Remove, SetValue

_COMMENT = re.compile(r"call it '(_[^']*)' to keep it as a comment")
_BELONGS = re.compile(r"It belongs in '([\w.]+)'$")
_MEANT = re.compile(r"Did you mean '([^']+)'\?$")
_MEANT_AT_THE_TOP = re.compile(r"Did you mean '(\w+)' at the top of the file\?$")
_TO_THE_TOP_AS = re.compile(r"Move it to the top of the file, as '(\w+)'$")
_CALLED = re.compile(r"Call it '([\w.]+)'")
_WRITE = re.compile(r"Write (true|false|-?[0-9.e+]+|\"[\w.-]+\"|\{.*\}|\[.*\])$")
_ADD = re.compile(r"Add \"(\w+)\": (true|false|-?[0-9.e+]+|\"\w+\"|\{.*\})(?: to '([\w.]+)'|, or|$)")
_SET = re.compile(r"Set \"(\w+)\" to (true|false|-?[0-9.e+]+)(?: in '([\w.]+)')?")
_REMOVE = re.compile(r"Remove '(\w+)'")


def edits_of(finding: Finding, data: Any) -> list[Edit]:
    """One edit for each thing that the hint says to do, each to be tried by itself."""
    hint, path = finding.hint or "", finding.path
    edits = list(_added(hint, path, data))
    if not path:
        return edits
    if hint.startswith(("Remove it", "Remove the key")) and "from the recipe" not in hint:
        edits.append(Remove(path))
    if match := _REMOVE.match(hint):
        named = (path, (*path[:-1], match[1]), (match[1],))
        found = next((at for at in named if at[-1] == match[1] and has_value(data, at)), None)
        edits += [Remove(found)] if found else []
    if match := _COMMENT.search(hint):
        edits.append(Move(path, (*path[:-1], match[1])))
    if match := _BELONGS.match(hint):
        section = tuple(match[1].split("."))
        edits += [Move(path, (*section, path[-1]))] if has_value(data, section) else []
    if match := _MEANT_AT_THE_TOP.match(hint) or _TO_THE_TOP_AS.match(hint):
        edits.append(Move(path, (match[1],)))
    elif hint.startswith(("It belongs at the top", "Move it to the top")):
        edits.append(Move(path, (path[-1],)))
    if match := _MEANT.match(hint) or _CALLED.match(hint):
        about_keys = match.re is _CALLED or finding.rule.endswith(("unknown-key", "misplaced-key"))
        edits.append(_called(path, match[1]) if about_keys else SetValue(path, match[1]))
    if match := _WRITE.match(hint):
        edits.append(SetValue(path, json.loads(match[1])))
    return edits


def _added(hint: str, path: KeyPath, data: Any) -> Iterator[SetValue]:
    for match in filter(None, (_ADD.match(hint), _SET.search(hint))):
        section = tuple(match[3].split(".")) if match[3] else None
        if section is None:  # the section that the finding is in, or else the top
            above = path if _is_section(data, path) else path[:-1]
            section = above if above in places_of(match[1]) else ()
        yield SetValue((*section, match[1]), json.loads(match[2]))


def _called(path: KeyPath, name: str) -> Move:
    to = tuple(name.split("."))
    if len(to) > 1 and to[-1] == path[-1] and to[0] != path[0]:  # the section is meant
        return Move(path[:-1], to[:-1])
    return Move(path, to if len(to) > 1 else (*path[:-1], *to))


def _is_section(data: Any, path: tuple[Any, ...]) -> bool:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return isinstance(data, dict)
