"""Many findings of one cause as one: placeholders of a template, and "auto" in one section."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zerokit.config.base import is_comment
from zerokit.documents import Document, KeyPath, leaves
from zerokit.documents.causes import is_bare_placeholder, is_placeholder
from zerokit.findings import SEVERITIES, Finding
from zerokit.lint.rule import RULES
from zerokit.units import listed

TEMPLATE = "template"
_OF_A_SECTION = ("unfilled-auto", "auto-beside-numbers")
_OF_A_WHOLE = (
    *("precision-off", "hybrid-engine-off"),
    *("offload-empty", "offload-without-zero", "offload-param-stage"),
)
"""Rules about sections that do nothing, whatever their keys."""
_OF_VALUES = ("wrong-type", "bad-value", "string-switch")
_MOST_NAMES = 5


def fold_placeholders(findings: list[Finding], document: Document) -> list[Finding]:
    """`findings` with one finding for all values still to be filled in, in place of the findings about
    each."""
    places = list(_placeholders(findings, document))
    if not places:
        return findings
    first, text = places[0][0], str(places[0][1]).rstrip(", ")
    if len(places) == 1:
        message = f"'{text}' is a placeholder, which DeepSpeed takes for a text"
    else:
        message = f"a template: {len(places)} placeholders such as '{text}', which DeepSpeed takes for texts"
    line, column = document.position(first) or (None, None)
    folded = Finding(
        first,
        message,
        "Fill it in, or check the file that is made from it",
        *(line, column),
        severity=RULES[TEMPLATE].severity,
        rule=TEMPLATE,
        also=tuple(path for path, _ in places[1:]),
    )
    filled = {path for path, _ in places}
    return [folded, *(finding for finding in findings if finding.path not in filled)]


def fold_sections(findings: Sequence[Finding]) -> list[Finding]:
    """`findings` with one finding for a section that does nothing, and one for all of its "auto"s that are
    not filled in.

    Of two that would fix the same place in the same way, the worse one stays, or the later, which is more
    specific.
    """
    said = {(one.path, one.hint): one for one in sorted(findings, key=_least_first) if one.path}
    findings = [one for one in findings if not one.path or said[one.path, one.hint].rule == one.rule]
    idle = {finding.path for finding in findings if finding.rule in _OF_A_WHOLE}
    groups: dict[object, list[Finding]] = {}
    for index, finding in enumerate(findings):
        above = (finding.path[:end] for end in range(1, len(finding.path)))
        if finding.severity != "error" and not idle.isdisjoint(above):
            continue  # to remove a key because its section is off, where something is to switch it on
        key = (finding.rule, finding.severity, _section(finding.path))
        groups.setdefault(key if finding.rule in _OF_A_SECTION else index, []).append(finding)
    return [_as_one(group) for group in groups.values()]


def _placeholders(findings: list[Finding], document: Document) -> Iterator[tuple[KeyPath, str]]:
    """Each with its text, in the file's order: marked, without quotes, or a name where the key cannot have
    one."""
    if not isinstance(document.data, dict):
        return
    text = document.text or ""
    bare = {one.start for one in document.departures if one.kind == "bare value"}
    faulty = {finding.path for finding in findings if finding.rule in _OF_VALUES}
    for path, value in leaves(document.data):
        if not isinstance(value, str) or any(map(is_comment, path)):
            continue
        span = document.spans.get(path)
        unquoted = span is not None and span.value in bare and is_bare_placeholder(text[span.value :])
        if unquoted or is_placeholder(value, named=path in faulty):
            yield path, value


def _least_first(finding: Finding) -> tuple[int, bool]:
    return -SEVERITIES.index(finding.severity), finding.fix != ()


def _section(path: KeyPath) -> KeyPath:
    end = max((index for index, key in enumerate(path) if isinstance(key, str)), default=0)
    return path[:end]


def _as_one(group: list[Finding]) -> Finding:
    """The first finding that `--fix` cannot fix, with the names of the others."""
    lead = next((finding for finding in group if not finding.fix), group[0])
    others = [finding for finding in group if finding is not lead]
    if not others:
        return lead
    names = list(dict.fromkeys(f"'{finding.path[len(_section(finding.path))]}'" for finding in others))
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    shown = [*names[:_MOST_NAMES], *more]
    return replace(
        lead,
        message=f"{lead.message}; so {'are' if len(names) > 1 else 'is'} {listed(shown)}",
        hint=min((finding.hint or "" for finding in group), key=len),
        fix=tuple(edit for finding in group for edit in finding.fix) if lead.fix else (),
        also=tuple(finding.path for finding in others),
    )
