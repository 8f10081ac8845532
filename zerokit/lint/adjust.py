"""Adapts the models' findings, which describe the newest DeepSpeed alone, to the run's target and release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerokit.documents import Document, dotted, value_at
from zerokit.findings import Edit, Finding, Move
from zerokit.resolving.filled_keys import FILLED
from zerokit.units import listed

if TYPE_CHECKING:
    from zerokit.choices import Target
    from zerokit.releases.versions import Version
    from zerokit.resolving.run import Run

_ABOUT_TYPES = ("wrong-type", "string-switch")
_ABOUT_KEYS = ("removed-key", "unknown-key", "misplaced-key")


def for_this_run(finding: Finding, document: Document, run: Run) -> Finding:
    """The finding, changed where the target or the release of DeepSpeed makes a difference."""
    finding = _for_release(finding, document, run.deepspeed_version)
    if run.target == "trainer" and run.recipe is None and any(map(_is_insisted_on, finding.fix)):
        why = 'the Trainer stops if this key is neither "auto" nor equal to its own argument. Choose one'
        finding = replace(finding, fix=(), unfixed=why)
    return _for_target(finding, document, run.target)


def without_contradictions(findings: Sequence[Finding], data: Any) -> Iterator[Finding]:
    """`findings` without fixes that move different values to one key: the file does not show which is meant."""
    moves = [edit for finding in findings for edit in finding.fix if isinstance(edit, Move)]
    for finding in findings:
        move = next((edit for edit in finding.fix if isinstance(edit, Move)), None)
        rivals = [] if move is None else [one.path for one in moves if one.to == move.to and one != move]
        if move is not None and any(value_at(data, path) != value_at(data, move.path) for path in rivals):
            section = move.path[:-1]
            names = [f"'{path[-1] if path[:-1] == section else dotted(path)}'" for path in (move.to, *rivals)]
            to = names[0] + (" at the top of the file" if len(move.to) == 1 < len(move.path) else "")
            message = f"{finding.message}; as {to} it contradicts {listed(names[1:])}"
            finding = replace(finding, message=message, hint=f"Decide on one value, and write it as {to}", fix=())
        yield finding


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
    from zerokit.releases.versions import known_at, optimizers_at, refused_at, schedulers_at

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
