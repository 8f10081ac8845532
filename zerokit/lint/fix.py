"""Mending a file: the fixes of findings, one at a time, until none is left."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from zerokit.documents import Document
from zerokit.findings import Finding
from zerokit.lint.rewrite import EditError, apply_edits
from zerokit.lint.run import Report

MOST_FIXES = 500
"""More than any file has mistakes; a bound for fixes that would undo one another."""


@dataclass(frozen=True)
class Fixed:
    """A file after its fixes."""

    document: Document
    """As it is now."""
    done: tuple[Finding, ...]
    """What was mended, in order, with the places at which it stood then."""
    report: Report
    """What is left."""


def fix_document(document: Document, check: Callable[[Document], Report]) -> Fixed:
    """Mend what has one right answer.

    Fixes may touch the same keys, so each is made alone and the file is checked again. One that does not
    suit the file any more, or does not make its finding go away, is not tried twice.

    Args:
        document: a JSON text, as a lenient reader gave it.
        check: says what is wrong with a document; only what it reports is mended.
    """
    done: list[Finding] = []
    tried: set[tuple[object, ...]] = set()
    report = check(document)
    while len(done) < MOST_FIXES:
        finding = next((found for found in report.findings if found.fix and _key(found) not in tried), None)
        if finding is None:
            break
        tried.add(_key(finding))
        try:
            document = apply_edits(document, finding.fix)
        except EditError:
            continue
        done.append(finding)
        report = check(document)
    return Fixed(document, tuple(done), report)


def unified_diff(before: Document, after: Document) -> str:
    """The change of a document's text in the form that ``patch`` reads; "" if there is none."""
    old, new = (document.text or "" for document in (before, after))
    lines: list[str] = []
    for line in difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{before.name}", f"b/{before.name}"
    ):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.path, finding.message
