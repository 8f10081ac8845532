"""Defects of DeepSpeed that a config meets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zerokit.findings import Severity
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.lint.values_in_force import ZERO
from zerokit.releases.versions import Version

if TYPE_CHECKING:
    from zerokit.lint.defects import Meeting
    from zerokit.releases.bugs import KnownBug

_MICRO = {"train_micro_batch_size_per_gpu": 1}
_ON_SEVERAL_RANKS = ("bf16-optimizer-accumulation", "muon-reduce-scatter", "all-reduce-fetch-call")


@rule(
    "known-defect",
    "versions",
    bad={**_MICRO, "gradient_accumulation_steps": 8, ZERO: {"stage": 2}},
    good={**_MICRO, "gradient_accumulation_steps": 8, ZERO: {"stage": 1}},
    given={"deepspeed_version": Version(0, 18, 2)},
)
def known_defect(subject: Subject) -> Iterator[Hit]:
    """A setting with which this release of DeepSpeed goes wrong

    zerokit knows some fifty defects of DeepSpeed 0.14 to 0.19 that depend on the config: gradients lost in
    accumulation, races of overlapped communication, weights that are not updated. What always shows and does
    harm is an error; what may show, or only costs speed or memory, a warning.

    The rule speaks with `--deepspeed-version` only. Defects that the newest release still has are rules of
    their own, such as `fp16-without-zero`.

    Source: DeepSpeed's pull requests and the sources of the releases; many were measured by training a small
    model with the release before and after.
    """
    version = subject.deepspeed_version
    if version is None:
        return
    from zerokit.lint.defects import MEETINGS
    from zerokit.releases.bugs import KNOWN_BUGS

    for bug in KNOWN_BUGS:
        meeting = MEETINGS.get(bug.id)
        if meeting is None or not bug.affects(version):
            continue
        path = meeting.condition(subject)
        if path is not None:
            place = path if subject.sets(*path) else _nearest(subject, path)
            message = f"{bug.summary} (DeepSpeed {version})"
            yield Hit(place, message, _hint(bug, meeting), severity=_severity(bug, meeting, subject))


def _nearest(subject: Subject, path: tuple[str, ...]) -> tuple[str, ...]:
    return next((path[:end] for end in range(len(path) - 1, 0, -1) if subject.sets(*path[:end])), ())


def _hint(bug: KnownBug, meeting: Meeting) -> str:
    ways = [f"use DeepSpeed {bug.fixed_in} or later"] if bug.fixed_in is not None else []
    ways += [meeting.instead] if meeting.instead is not None else []
    text = ", or ".join(ways) or "leave this setting out"
    return text[0].upper() + text[1:]


def _severity(bug: KnownBug, meeting: Meeting, subject: Subject) -> Severity:
    if bug.id in _ON_SEVERAL_RANKS and subject.num_gpus is None:
        return "warning"
    if meeting.severity is not None:
        return meeting.severity
    return "error" if bug.always and bug.harm in ("wrong results", "crash", "hang") else "warning"
