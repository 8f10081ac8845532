"""Rules that a file switches off for itself.

By a key at the top that DeepSpeed, transformers and accelerate ignore::

    "_zerokit": {"disable": ["lost-argument", {"rule": "dead-key", "path": "zero_optimization.stage",
                                              "reason": "..."}]}
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.documents import Document, KeyPath, dotted
from zerokit.errors import nearest
from zerokit.findings import Edit, Finding, Remove
from zerokit.lint.rule import RULES

KEY = "_zerokit"
BAD = "bad-disable"
UNUSED = "unused-disable"


@dataclass(frozen=True)
class Disable:
    """One entry of the list `disable`."""

    where: KeyPath
    """The entry itself."""
    rule: str
    path: str | None
    """Only findings at this dotted path or below are meant; None: all of the file."""

    def covers(self, finding: Finding) -> bool:
        """Whether the entry switches `finding` off."""
        if finding.rule != self.rule:
            return False
        place = dotted(finding.path)
        return self.path is None or place == self.path or place.startswith((f"{self.path}.", f"{self.path}["))


def read_disables(document: Document) -> tuple[list[Disable], list[Finding]]:
    """The entries of a file, and what is wrong with them."""
    data = document.data.get(KEY) if isinstance(document.data, Mapping) else None
    if data is None:
        return [], []
    found = list(_entries(data))
    entries = [entry for entry in found if isinstance(entry, Disable)]
    return entries, [problem for problem in found if isinstance(problem, Finding)]


def apply_disables(
    findings: list[Finding], entries: list[Disable], not_run: Mapping[str, Any]
) -> tuple[list[Finding], list[Finding]]:
    """Split `findings` into those that stay, with a note for each unused entry, and the suppressed ones."""
    suppressed = [finding for finding in findings if any(entry.covers(finding) for entry in entries)]
    kept = [finding for finding in findings if finding not in suppressed]
    for entry in entries:
        if entry.rule in not_run or any(entry.covers(finding) for finding in suppressed):
            continue
        message = f"'{entry.rule}' is switched off, but finds nothing here"
        kept.append(_finding(entry.where, message, "Remove the entry", UNUSED, (Remove(entry.where),)))
    return kept, suppressed


def _entries(data: Any) -> Iterator[Disable | Finding]:
    if not isinstance(data, Mapping):
        yield _finding((KEY,), f"'{KEY}' must be a section {{...}}", 'Write {"disable": ["RULE"]}')
        return
    for key in data:
        if key != "disable" and not key.startswith(("_", "//")):
            yield _finding((KEY, key), f"'{KEY}' has no key '{key}'", "Did you mean 'disable'?")
    entries = data.get("disable", [])
    if not isinstance(entries, list):
        message = f"'{KEY}.disable' must be a list of rules"
        yield _finding((KEY, "disable"), message, 'Write ["RULE", ...]')
        return
    for index, entry in enumerate(entries):
        yield _entry(entry, (KEY, "disable", index))


def _entry(entry: Any, where: KeyPath) -> Disable | Finding:
    if isinstance(entry, str):
        entry = {"rule": entry}
    allowed = {"rule", "path", "reason"}
    if (
        not isinstance(entry, Mapping)
        or not isinstance(entry.get("rule"), str)
        or not all(key in allowed and isinstance(value, str) for key, value in entry.items())
    ):
        hint = 'Write "RULE", or {"rule": "RULE", "path": "zero_optimization.stage", "reason": "..."}'
        return _finding(where, "an entry must be the id of a rule, or a section that names it", hint)
    rule = entry["rule"]
    if rule not in RULES:
        near = nearest(rule, RULES)
        hint = f"Did you mean '{near}'?" if near else "'zerokit explain' lists all rules"
        return _finding(where, f"there is no rule '{rule}'", hint)
    return Disable(where, rule, entry.get("path"))


def _finding(path: KeyPath, message: str, hint: str, rule: str = BAD, fix: tuple[Edit, ...] = ()) -> Finding:
    severity = RULES[rule].severity
    return Finding(path, message, hint, severity=severity, rule=rule, fix=fix)
