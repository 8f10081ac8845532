"""Number formats of gradients, sums and what is sent."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.findings import Remove
from zerokit.lint.number_formats import format_at, precision
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.releases.versions import known_at

_TYPES = "data_types"


@rule("accumulation-dtype")
def accumulation_dtype(subject: Subject) -> Iterator[Hit]:
    """An accumulation format that the stage does not support, or that loses gradients"""
    path = (_TYPES, "grad_accum_dtype")
    wanted, model = format_at(subject, *path), precision(subject)
    if wanted in (None, "int8") or model is None or wanted == model:
        return
    if _sums_in_fp32_without_zero(subject):
        return
    if subject.stage == 0:
        message = f"stage 0 cannot sum the gradients of a model in {model} in {wanted}"
        yield Hit(path, message, "Remove the key, or raise the stage")
    elif subject.stage is not None and (model == "fp32" or (model == "bf16" and wanted == "fp16")):
        why = "overflows beyond 65,504" if wanted == "fp16" else "rounds what fp32 computed"
        message = f"gradients of a model in {model} are summed in {wanted}, which {why}"
        yield Hit(path, message, 'Remove the key, or write "fp32"', severity="warning")


def _sums_in_fp32_without_zero(subject: Subject) -> bool:
    """Whether the release is so old that it has an optimizer of its own for bf16 in stage 0."""
    release = subject.run.deepspeed_version
    if release is None:
        return False
    from zerokit.lint.defects import CHANGES

    change = CHANGES["bf16-without-zero"]
    return release < change.since and change.when.holds(subject)


@rule("param-dtype")
def param_dtype(subject: Subject) -> Iterator[Hit]:
    """A parameter format that differs from the enabled precision"""
    path = (_TYPES, "param_dtype")
    if subject.run.deepspeed_version is not None and not known_at(path, subject.run.deepspeed_version):
        return
    wanted, model = format_at(subject, *path), precision(subject)
    if wanted not in (None, "int8") and model is not None and wanted != model:
        message = f"'param_dtype' is {wanted}, but the model trains in {model}"
        yield Hit(path, message, "Remove the key, or switch that format on")


@rule("communication-dtype")
def communication_dtype(subject: Subject) -> Iterator[Hit]:
    """A communication format that is too small for the gradients, or not used"""
    path = ("communication_data_type",)
    wanted, model = format_at(subject, *path), precision(subject)
    if wanted is None:
        return
    if path in subject.unused:
        message = f"'communication_data_type' {subject.unused[path].reason}"
        yield Hit(path, message, "Remove the key", (Remove(path),))
    elif wanted == "fp16" and model in ("bf16", "fp32"):
        message = f"gradients of a model in {model} are sent in fp16, which ends at 65,504"
        yield Hit(path, message, 'Remove the key, or write "fp32"')
