"""Sizes of buckets and thresholds."""

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.findings import Severity
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject, model_dtype_bytes
from zerokit.resolving.filled_keys import SIZE_RULES
from zerokit.units import GIB, format_bytes, format_count

_REDUCE = (ZERO, "reduce_bucket_size")
_LIVE = (ZERO, "stage3_max_live_parameters")

_SMALL_AUTO_BUCKET = 5_000_000
"""Elements below which "auto", made from the hidden size, costs speed: 10 MB in 16 bits."""

_USUAL_BUCKET = 50_000_000

_BUCKET_SHARE = 0.05
"""Of the GPU's memory that buckets may take."""

_LIVE_SHARE = 0.25
"""Of the GPU's memory that gathered parameters may take."""


def reduce_buffers(subject: Subject) -> tuple[int, int] | None:
    """Elements of a reduce bucket, and how many there are on a GPU; None if that is not known.

    Source: `setup_buckets` in `deepspeed/runtime/zero/stage_1_and_2.py`, `_setup_for_real_optimizer` in
    `deepspeed/runtime/zero/stage3.py`.
    """
    size, stage = subject.zero.reduce_bucket_size, subject.stage
    if stage not in (1, 2, 3) or not isinstance(size, int) or subject.is_uncertain(*_REDUCE):
        return None
    if not subject.zero.contiguous_gradients and not (stage < 3 and subject.offload_optimizer):
        return None
    return size, 2 if stage < 3 and subject.zero.overlap_comm else 1


@rule("bucket-exceeds-model")
def bucket_exceeds_model(subject: Subject) -> Iterator[Hit]:
    """A reduce bucket larger than the model"""
    buffers, model = reduce_buffers(subject), subject.run.model
    if buffers is None or model is None or (subject.run.recipe is not None and subject.run.recipe.peft):
        return
    size, count = buffers
    waste = (size - model.num_parameters) * count * (model_dtype_bytes(subject) or 2)
    if waste > 0:
        by_default = "" if subject.is_set(*_REDUCE) else ", its default,"
        message = (
            f"'reduce_bucket_size' {format_count(size)}{by_default} exceeds the model's "
            f"{format_count(model.num_parameters)} parameters: {format_bytes(waste)} are never used"
        )
        hint = f'Set "reduce_bucket_size" to {min(_USUAL_BUCKET, model.num_parameters // 4)}'
        severity: Severity | None = None if subject.is_set(*_REDUCE) or waste > GIB else "info"
        yield Hit(subject.nearest_set(*_REDUCE), message, hint, (), severity)


@rule("bucket-memory")
def bucket_memory(subject: Subject) -> Iterator[Hit]:
    """Reduce buckets that take much GPU memory"""
    buffers = reduce_buffers(subject)
    if buffers is None or subject.cluster.gpu_memory_bytes is None:
        return
    size, count = buffers
    taken = size * count * (model_dtype_bytes(subject) or 2)
    part = taken / subject.cluster.gpu_memory_bytes
    if part > _BUCKET_SHARE:
        by_default = "" if subject.is_set(*_REDUCE) else ", its default,"
        doubled = "; 'overlap_comm' doubles it" if count == 2 else ""
        message = (
            f"'reduce_bucket_size' {format_count(size)}{by_default} takes {format_bytes(taken)} of the GPU, "
            f"{part:.0%} of it{doubled}"
        )
        yield Hit(subject.nearest_set(*_REDUCE), message, 'Set "reduce_bucket_size" to 5e7')


@rule("small-auto-bucket")
def small_auto_bucket(subject: Subject) -> Iterator[Hit]:
    """A small bucket from "auto" for a narrow model"""
    model = subject.run.model
    if model is None or subject.zero.reduce_bucket_size != "auto" or subject.run.target == "deepspeed":
        return
    accelerate = subject.run.target == "accelerate"
    hidden = model.hidden_size_for_accelerate if accelerate else model.hidden_size_for_trainer
    rule = SIZE_RULES["reduce_bucket_size"]
    if hidden is not None and rule.elements(hidden) < min(_SMALL_AUTO_BUCKET, model.num_parameters):
        size = format_count(rule.elements(hidden))
        message = f'"auto" becomes {rule.formula}, {size} elements for a hidden size of {hidden}'
        yield Hit(_REDUCE, message, "Write a number, such as 5e7")


@rule("live-parameters-memory")
def live_parameters_memory(subject: Subject) -> Iterator[Hit]:
    """Gathered parameters that take much GPU memory"""
    model = subject.run.model
    if subject.stage != 3 or model is None or subject.cluster.gpu_memory_bytes is None or subject.is_uncertain(*_LIVE):
        return
    live = min(subject.zero.stage3_max_live_parameters, model.num_parameters)
    taken = live * (model_dtype_bytes(subject) or 2)
    part = taken / subject.cluster.gpu_memory_bytes
    if part > _LIVE_SHARE:
        message = f"up to {format_bytes(taken)} of gathered parameters stay on each GPU, {part:.0%} of it"
        yield Hit(subject.nearest_set(*_LIVE), message, 'Lower "stage3_max_live_parameters"')
