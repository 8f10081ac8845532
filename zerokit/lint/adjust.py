"""Adapts the models' findings, which describe the newest DeepSpeed alone, to the run's target and release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from zerokit.choices import Target
from zerokit.config.normal_form import RENAMED
from zerokit.documents import Document, KeyPath, dotted, has_value, value_at
from zerokit.findings import Edit, Finding, Move, Remove, SetValue
from zerokit.releases.versions import Version, known_at, optimizers_at, refused_at, schedulers_at
from zerokit.resolving.filled_keys import FILLED
from zerokit.resolving.run import Run
from zerokit.units import listed

_ABOUT_TYPES = ("wrong-type", "string-switch")
_ABOUT_KEYS = ("removed-key", "unknown-key", "misplaced-key")


def for_this_run(finding: Finding, document: Document, run: Run) -> Finding:
    """The finding, changed where the target or the release of DeepSpeed makes a difference."""
    finding = _for_release(finding, document, run.deepspeed_version)
    if run.target == "trainer" and run.recipe is None and any(map(_is_insisted_on, finding.fix)):
        why = 'the Trainer stops if this key is neither "auto" nor equal to its own argument. Choose one'
        finding = replace(finding, fix=(), unfixed=why)
    return _for_target(finding, document, run.target)


def drop_contradicting_fixes(findings: Sequence[Finding], data: Any) -> Iterator[Finding]:
    """`findings` without fixes that bring different values to one key: the file does not show which is meant."""
    written = [found for finding in findings for found in _values_brought(finding, data)]
    for finding in findings:
        for path, to, value in list(_values_brought(finding, data))[:1]:
            rivals = [other for other, target, its_value in written if target == to and its_value != value]
            olds = [(*to[:-1], old) for old, new in RENAMED.items() if new == to[-1]]
            rivals += [old for old in olds if old != path and has_value(data, old)]
            if rivals:
                names = [f"'{one[-1] if one[:-1] == path[:-1] else dotted(one)}'" for one in (to, *rivals)]
                at = names[0] + (" at the top of the file" if len(to) == 1 < len(path) else "")
                message = f"{finding.message}; as {at} it contradicts {listed(names[1:])}"
                finding = replace(finding, message=message, hint=f"Decide on one value, and write it as {at}", fix=())
        yield finding


def _values_brought(finding: Finding, data: Any) -> Iterator[tuple[KeyPath, KeyPath, Any]]:
    """The key that a fix takes away, the key that gets its value, and the value."""
    removed = next((edit.path for edit in finding.fix if isinstance(edit, Remove)), None)
    for edit in finding.fix:
        if isinstance(edit, Move):
            yield edit.path, edit.to, value_at(data, edit.path)
        elif isinstance(edit, SetValue) and removed is not None:
            yield removed, edit.path, edit.value


def _is_insisted_on(edit: Edit) -> bool:
    """Whether an edit brings a value to where the Trainer, which did not see it, compares it and may stop."""
    if not isinstance(edit, Move):
        return False
    compared = (filled.path for filled in FILLED.values() if filled.other == "refused")
    return any(path[: len(edit.to)] == edit.to for path in compared)


def _for_target(finding: Finding, document: Document, target: Target | None) -> Finding:
    """As an error where transformers and accelerate read less well than DeepSpeed.

    - accelerate, and so the Trainer, stops at an "auto" that is left over; DeepSpeed may not.
    - Both compare the stage with a number: with ``"3"`` the model is built without ZeRO-3 in mind, and what
      is saved are empty tensors (`is_zero3` in transformers `integrations/deepspeed.py` and accelerate
      `utils/deepspeed.py`).
    - The Trainer compares values with its arguments, and ``"true"`` is not true (`fill_match` in
      transformers `integrations/deepspeed.py`).
    """
    if target not in ("trainer", "accelerate"):
        return finding
    if finding.rule == "unfilled-auto":
        return replace(finding, severity="error")
    filled = FILLED.get(dotted(finding.path))
    compared = target == "trainer" and filled is not None and filled.other == "refused"
    if compared and finding.rule in _ABOUT_TYPES and isinstance(value_at(document.data, finding.path), str):
        message = f"{finding.message}: the Trainer finds that it differs from its argument, and stops"
        return replace(finding, message=message, severity="error")
    is_stage = finding.path == ("zero_optimization", "stage") and finding.rule == "wrong-type"
    if not is_stage or '"3"' not in finding.message:
        return finding
    who = "the Trainer" if target == "trainer" else "accelerate"
    message = f"{finding.message}: {who} takes it for no ZeRO-3, and saves empty weights"
    return replace(finding, message=message, severity="error")


def _for_release(finding: Finding, document: Document, version: Version | None) -> Finding:
    """As a note where the given release still takes what the newest does not."""
    if version is None or not _is_taken(finding, document, version):
        return finding
    message = f"{finding.message}; DeepSpeed {version} still takes it"
    return replace(finding, message=message, severity="info", fix=())


def _is_taken(finding: Finding, document: Document, version: Version) -> bool:
    path = finding.path
    if finding.rule in _ABOUT_KEYS:
        return known_at(path, version) and not refused_at(path, version)
    if finding.rule == "out-of-range" and path == ("scheduler", "params", "warmup_num_steps"):
        return tuple(version) < (0, 19, 3)
    if finding.rule == "bad-value" and path in (("optimizer", "type"), ("scheduler", "type")):
        name = str(value_at(document.data, path))
        known = optimizers_at(version) if path[0] == "optimizer" else schedulers_at(version)
        return name in known or (path[0] == "optimizer" and name.lower() in known)
    return False
