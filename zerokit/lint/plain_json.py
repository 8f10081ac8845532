"""Checks a file's text: DeepSpeed reads more than JSON, transformers and accelerate do not."""

import json
from collections.abc import Iterator
from dataclasses import replace

from zerokit.choices import Target
from zerokit.documents import Departure, Document, value_at
from zerokit.documents.causes import is_bare_placeholder
from zerokit.findings import Finding, ReplaceText
from zerokit.lint.rule import RULES
from zerokit.tables import table_of
from zerokit.units import listed

RULE = "not-plain-json"

_PLURAL: dict[str, str] = table_of(__file__)
"""Kind of a departure from JSON -> its words for several."""


def check_text(document: Document, found: list[Finding], target: Target | None) -> tuple[list[Finding], list[Finding]]:
    """Adapt findings about values to the text of the file, and find what is wrong with the text itself.

    Args:
        document: as a lenient reader gave it.
        found: what the models found in it.
        target: who reads the file; None: not known.

    Returns:
        `found`, in which a value without quotes is named as such, and at most one finding of the text, at
        its first departure from JSON.
    """
    if document.is_yaml:
        message = "this is YAML, and DeepSpeed, the Trainer and accelerate read JSON"
        hint = "Write it as JSON, or have the script read it and pass the data on"
        return found, [Finding((), message, hint, 1, 1, "warning", RULE)]
    if not document.departures:
        return found, []
    bare = {departure.start: departure for departure in document.departures if departure.kind == "bare value"}
    by_path = {path: bare[span.value] for path, span in document.spans.items() if span.value in bare}
    named = [_named(finding, by_path.get(finding.path), document) for finding in found]
    said = {by_path[finding.path].start for finding in found if finding.path in by_path}
    rest = [
        departure
        for departure in document.departures
        if departure.kind != "bare value"
        or (departure.start not in said and not is_bare_placeholder((document.text or "")[departure.start :]))
    ]
    return named, [_of_text(rest, document, target)] if rest else []


def _named(finding: Finding, departure: Departure | None, document: Document) -> Finding:
    """The finding with the words for a value without quotes, if the value is one."""
    if departure is None:
        return finding
    fix: tuple[ReplaceText, ...] = ()
    taken = (document.text or "")[departure.start : departure.end].rstrip()
    if departure.meant is not None and " " not in taken:
        comma = "," if taken.endswith(",") else ""
        fix = (ReplaceText(departure.start, departure.start + len(taken), departure.meant + comma),)
    message = f"{departure.message}: DeepSpeed reads it as text"
    return replace(finding, message=message, hint=departure.hint, rule=RULE, fix=fix)


def _of_text(departures: list[Departure], document: Document, target: Target | None) -> Finding:
    kinds = list(dict.fromkeys(_PLURAL[departure.kind] for departure in departures))
    reader = {"trainer": "the Trainer reads", "accelerate": "accelerate reads"}.get(
        target or "", "the Trainer and accelerate read"
    )
    first = departures[0]
    others = len(departures) - 1
    hint = first.hint + (f"; {others} more place{'s' * (others > 1)}" if others else "")
    return Finding(
        (),
        f"not plain JSON ({listed(kinds)}): DeepSpeed reads the file, but {reader} only JSON",
        hint,
        first.line,
        first.column,
        "error" if target in ("trainer", "accelerate") else RULES[RULE].severity,
        RULE,
        tuple(_plain(departures, document)),
    )


def _plain(departures: list[Departure], document: Document) -> Iterator[ReplaceText]:
    """Edits that make the text JSON; none if a comment or an unquoted string needs a decision."""
    texts = dict(_texts(document))
    for departure in reversed(departures):
        start, end = departure.start, departure.end
        match departure.kind:
            case "trailing comma" | "byte-order mark":
                yield ReplaceText(start, end, "")
            case "missing comma":
                yield ReplaceText(start, end, ",")
            case "bare key" | "single quotes":
                yield ReplaceText(start, end, json.dumps(texts[start], ensure_ascii=False))


def _texts(document: Document) -> Iterator[tuple[int, str]]:
    """Every key and every text, by where it begins."""
    for path, span in document.spans.items():
        value = value_at(document.data, path)
        if isinstance(value, str):
            yield span.value, value
        if path and isinstance(path[-1], str):
            yield span.start, path[-1]
