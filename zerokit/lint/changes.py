"""Changes of meaning between DeepSpeed's releases that no key, default or bound shows.

Defaults that changed stand with their keys, see :func:`zerokit.releases.versions.default_at`. Each change
here was found in the sources of the releases, at the lines that ``tools/deepspeed_surface/evidence.py``
lists under its id. What older ones took and today's refuses is not here: no valid config has it.
"""

from __future__ import annotations

from typing import NamedTuple

from zerokit.findings import Severity
from zerokit.lint.defect_conditions import (
    BF16,
    FP16,
    Condition,
    absent,
    on,
    optimizer,
    schedule,
    stage,
    written,
)
from zerokit.lint.optimizer_facts import OPTIMIZER, optimizer_argument, schedule_name
from zerokit.lint.subject import Subject
from zerokit.releases.versions import Version


class Change(NamedTuple):
    """A setting that a release takes otherwise than the newest."""

    since: Version
    """The first release that behaves as today's."""
    before: str
    """What older releases do, without a full stop."""
    when: Condition
    at: str
    """The key to name, dotted; empty for none."""
    severity: Severity
    """How bad it is that older releases do so."""
    source: str
    """DeepSpeed's pull request."""


def _gives_another_rate(subject: Subject) -> bool:
    return subject.sets(*OPTIMIZER, "lr") and optimizer_argument(subject, "lr") not in (None, 0.001)


_DTYPE, _UNIVERSAL = "communication_data_type", "checkpoint.load_universal"
_MASTERS = "fp16.fp16_master_weights_and_grads"

CHANGES: dict[str, Change] = {
    "communication-bf16": Change(
        Version(0, 14, 1),
        "'bfp16' names bfloat16, and 'bf16' is refused",
        *(written(_DTYPE, "bf16"), _DTYPE, "error", "#5297"),
    ),
    "script-scheduler-first": Change(
        Version(0, 14, 5),
        "The scheduler of the config is used even if the script passes one",
        *(Condition("a schedule", schedule_name), "scheduler", "info", "#5846"),
    ),
    "universal-zero3": Change(
        Version(0, 14, 5),
        "Universal checkpoints do not work in stage 3",
        *(stage(3) & on(_UNIVERSAL), _UNIVERSAL, "error", "#5475"),
    ),
    "warmup-maximum": Change(
        Version(0, 17, 2),
        "Without warmup_max_lr, WarmupLR warms up to 0.001",
        schedule("WarmupLR")
        & absent("scheduler.params.warmup_max_lr")
        & Condition("a rate of the optimizer other than 0.001", _gives_another_rate),
        *("scheduler.params", "error", "#7360"),
    ),
    "bf16-without-zero": Change(
        Version(0, 17, 6),
        "bf16 in stage 0 accumulates gradients in fp32",
        *(stage(0) & BF16, "bf16.enabled", "info", "#7515"),
    ),
    "master-weights-stages": Change(
        Version(0, 18, 3),
        "fp16_master_weights_and_grads is refused in stages other than 2",
        *(stage(1, 3) & on(_MASTERS), _MASTERS, "error", "#7700"),
    ),
    "muon-zero3": Change(
        Version(0, 18, 9),
        "The optimizer 'Muon' is refused in stage 3",
        *(stage(3) & optimizer("Muon"), "optimizer.type", "error", "#7919"),
    ),
    "buffers-keep-format": Change(
        Version(0, 19, 2),
        "fp16 and bf16 convert a model's buffers too, such as the frequencies of rotary embeddings",
        *(BF16 | FP16, "", "info", "#8066"),
    ),
}
"""By id, oldest first."""
