"""pydantic's errors in plain words, each with the edit that mends it where there is one right answer."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zerokit.config.key_mistake import UnknownKey
from zerokit.config.mistakes import Explainer, Mistake
from zerokit.config.repairs import Mender, key_path
from zerokit.config.value_mistake import WrongValue
from zerokit.documents import Document, KeyPath, dotted
from zerokit.findings import Finding, Severity

MOST_LISTED = 100
"""Mistakes of one kind in one section that are looked at one by one; a file with more is something else."""


def explain(error: ValidationError, document: Document, data: Any = None) -> list[Finding]:
    """All of `error` as findings of `document`, in the order of its lines."""
    return [mistake.finding for mistake in mistakes(error, document, data)]


def mistakes(error: ValidationError, document: Document, data: Any = None) -> list[Mistake]:
    """All of `error`, in the order of the lines of `document`.

    Args:
        error: what the models said of `data`.
        document: for lines and columns.
        data: the document's data, or what is left of it after some of it was dropped or mended.
    """
    data = document.data if data is None else data
    details = error.errors(include_url=False)
    mender = Mender(data, frozenset((key_path(detail["loc"]), detail["type"]) for detail in details))
    folded: dict[tuple[KeyPath, bool], list[ErrorDetails]] = defaultdict(list)
    alike = Counter[tuple[KeyPath, bool]]()
    found: list[Mistake] = []
    for detail in details:
        kind = key_path(detail["loc"])[:-1], detail["type"] == "extra_forbidden"
        alike[kind] += 1
        if alike[kind] <= MOST_LISTED:
            found.append(_mistake(detail, document, mender))
        else:
            folded[kind].append(detail)
    found += [_folded(rest, document, mender) for rest in folded.values()]
    return sorted(found, key=lambda mistake: (mistake.finding.line or 0, mistake.finding.column or 0))


def _mistake(detail: ErrorDetails, document: Document, mender: Mender) -> Mistake:
    if detail["type"] == "extra_forbidden":
        return UnknownKey(detail, document, mender).mistake()
    of = WrongValue(detail, document, mender)
    if of.kind == "missing":
        section = dotted(of.path[:-1])
        message = f"the key {of.name} is missing from '{section}'"
        return of.found("missing-key", message, f"Add it: {_why_needed(of.path)}")
    if of.kind == "invalid_key":
        message = f"the key {of.path[-1]} is not a string"
        return of.found("bad-key", message, "Put it in double quotes")
    return of.mistake()


def _folded(details: list[ErrorDetails], document: Document, mender: Mender) -> Mistake:
    """Errors that are alike, in one."""
    of = Explainer(details[0], document, mender)
    section = f"'{dotted(of.path[:-1])}'" if of.path[:-1] else "the top of the file"
    paths = tuple(key_path(detail["loc"]) for detail in details)
    if of.kind != "extra_forbidden":
        mistake = of.found("bad-value", f"{len(paths):,} more mistakes in {section}", "Mend those above")
    else:
        severity: Severity = "warning" if of.reader == "lookup" else "error"
        message = f"{len(paths):,} more keys at {section} that DeepSpeed does not read"
        mistake = of.found("unknown-key", message, "Name a file for DeepSpeed", severity)
    return mistake._replace(folded=paths)


def _why_needed(path: KeyPath) -> str:
    if path[-1] == "type":
        return f"without it DeepSpeed ignores the whole section '{dotted(path[:-1])}'"
    return "without it DeepSpeed fails when it starts"
