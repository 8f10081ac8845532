"""Fixes a file: the fixes of its findings, one at a time, until none is left."""

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from zerokit.documents import Document, dotted
from zerokit.documents.paths import has_value, value_at
from zerokit.errors import join_hints, visible
from zerokit.findings import Finding, Move, Remove, SetValue
from zerokit.lint.rewrite import EditError, apply_edits
from zerokit.lint.run import Report

MOST_FIXES = 500
"""More than any file has mistakes; a bound for fixes that would undo one another."""
_LONGEST = 60
"""Most characters of a value in the line about a fixed key."""


@dataclass(frozen=True)
class Fixed:
    document: Document
    """As it is now."""
    done: tuple[Finding, ...]
    """What was fixed, in order, with its place at that time; the hint is what it became."""
    report: Report
    """What is left."""


def fix_document(document: Document, check: Callable[[Document], Report]) -> Fixed:
    """Fix what has one right answer.

    Fixes may touch the same keys, so each is made alone and the file is checked again. One that does not
    suit the file any more, or does not make its finding go away, is not tried twice. One that would make
    another error of the key that it fixes is not made, unless a later fix takes the reason away.

    Args:
        document: a JSON text, as a lenient reader gave it.
        check: says what is wrong with a document; only what it reports is fixed.
    """
    done: list[Finding] = []
    tried: set[tuple[object, ...]] = set()
    harms: dict[tuple[object, ...], str] = {}
    report = check(document)
    while len(done) < MOST_FIXES:
        finding = next((found for found in report.findings if found.fix and _key(found) not in tried), None)
        if finding is None:
            break
        tried.add(_key(finding))
        try:
            fixed = apply_edits(document, finding.fix)
        except EditError:
            continue
        after = check(fixed)
        if (harm := _harm(finding, report, after)) is not None:
            harms[_key(finding)] = harm
            continue
        document, report = fixed, after
        tried -= harms.keys()  # which may harm no more
        harms.clear()
        done.append(replace(finding, hint=_became(finding, document) or _left(finding, report)))
    found = (replace(one, fix=(), unfixed=harms[_key(one)]) if _key(one) in harms else one for one in report.findings)
    left = tuple(map(_with_the_reason, found))
    return Fixed(document, tuple(done), replace(report, findings=left))


def unified_diff(before: Document, after: Document) -> str:
    """The change of a document's text in the form that ``patch`` reads; "" if there is none."""
    # Not by splitlines, for which "\r" and more end a line.
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", document.text or "") for document in (before, after))
    lines: list[str] = []
    name = visible(before.name)
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _harm(finding: Finding, before: Report, after: Report) -> str | None:
    """The error that a fix has made of the key that it fixes, for which there is no other fix."""
    places = {edit.to if isinstance(edit, Move) else edit.path for edit in _of_keys(finding)}
    known = set(map(_key, before.findings))
    for one in after.findings:
        if one.severity == "error" and one.path in places and not one.fix and _key(one) not in known:
            return f"the fix would cause another error: {one.message}"
    return None


def _of_keys(finding: Finding) -> list[Move | SetValue]:
    return [edit for edit in finding.fix if isinstance(edit, Move | SetValue)]


def _became(finding: Finding, document: Document) -> str | None:
    """``fp16.enable -> fp16.enabled: true``; None for an edit without a key, such as a missing comma."""
    old = [dotted(edit.path) for edit in finding.fix if isinstance(edit, Move | Remove)]
    places = dict.fromkeys(edit.to if isinstance(edit, Move) else edit.path for edit in _of_keys(finding))
    data = document.data
    new = [f"{dotted(path)}: {_short(value_at(data, path))}" for path in places if has_value(data, path)]
    if not new:
        return f"{', '.join(old)} -> removed" if old else None
    return f"{', '.join(old)} -> {', '.join(new)}" if old else ", ".join(new)


def _left(finding: Finding, report: Report) -> str | None:
    """The note for a finding that a fix could fix in part."""
    is_left = any((one.rule, one.path) == (finding.rule, finding.path) for one in report.findings)
    return "in part, the rest is for you" if is_left else None


def _with_the_reason(finding: Finding) -> Finding:
    """What is left, with why."""
    if finding.unfixed is None:
        return finding
    return replace(finding, hint=join_hints(finding.hint, f"not fixed: {finding.unfixed}"))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.path, finding.message
