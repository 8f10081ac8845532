"""Sizes of buckets and thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import ZERO
from zerokit.findings import Severity
from zerokit.lint.examples import Facts, llama_8b, small_decoder
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject, model_dtype_bytes
from zerokit.resolving.who_fills import SIZE_RULES
from zerokit.units import GIB, format_bytes, format_count

rule = Rules("buckets")
_BF16 = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
_REDUCE = (ZERO, "reduce_bucket_size")
_LIVE = (ZERO, "stage3_max_live_parameters")

_SMALL_AUTO_BUCKET = 5_000_000
"""Elements below which "auto", made from the hidden size, costs speed: 10 MB in 16 bits."""

_USUAL_BUCKET = 50_000_000

_BUCKET_SHARE = 0.05
"""Of the GPU's memory that buckets may take."""

_LIVE_SHARE = 0.25
"""Of the GPU's memory that gathered parameters may take."""


def _zero(stage: int, **keys: Any) -> dict[str, Any]:
    return {**_BF16, ZERO: {"stage": stage, **keys}}


def reduce_buffers(subject: Subject) -> tuple[int, int] | None:
    """Elements of a reduce bucket, and how many there are on a GPU; None if it cannot be told.

    Source: `setup_buckets` in `deepspeed/runtime/zero/stage_1_and_2.py`, `_setup_for_real_optimizer` in
    `deepspeed/runtime/zero/stage3.py`.
    """
    size, stage = subject.zero.reduce_bucket_size, subject.stage
    if stage not in (1, 2, 3) or not isinstance(size, int) or subject.is_uncertain(*_REDUCE):
        return None
    if not subject.zero.contiguous_gradients and not (stage < 3 and subject.offload_optimizer):
        return None
    return size, 2 if stage < 3 and subject.zero.overlap_comm else 1


def _bucket_place(subject: Subject) -> tuple[str, ...]:
    return _REDUCE if subject.is_set(*_REDUCE) else (ZERO,)


@rule(
    "bucket-exceeds-model",
    severity="warning",
    bad=_zero(2, reduce_bucket_size=5e8),
    good=_zero(2, reduce_bucket_size=5e7),
    given=Facts(model=small_decoder),
    needs=("model",),
)
def bucket_exceeds_model(subject: Subject) -> Iterator[Hit]:
    """A reduce bucket larger than the model

    The buffer for gradients on their way is made with `reduce_bucket_size` elements before the first
    backward pass, and twice with `overlap_comm` in stages 1 and 2. What goes beyond the number of parameters
    can never be filled. With one bucket for the whole model nothing overlaps either: the first reduction
    starts when the last gradient is ready.

    Source: `setup_buckets` in `deepspeed/runtime/zero/stage_1_and_2.py`, `_setup_for_real_optimizer` in
    `deepspeed/runtime/zero/stage3.py`.
    """
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
        yield Hit(_bucket_place(subject), message, hint, (), severity)


@rule(
    "bucket-memory",
    severity="warning",
    bad=_zero(2, reduce_bucket_size=5e8, overlap_comm=True),
    good=_zero(2, reduce_bucket_size=5e7, overlap_comm=True),
    given=Facts(gpu_memory_bytes=24 * GIB),
    needs=("gpu_memory",),
)
def bucket_memory(subject: Subject) -> Iterator[Hit]:
    """Reduce buckets that take much GPU memory

    The buffer for gradients on their way has `reduce_bucket_size` elements, and `overlap_comm` doubles it in
    stages 1 and 2. DeepSpeed's default of 5e8 is 0.93 GiB in 16 bits, 1.86 GiB with `overlap_comm`, whatever
    the size of the card. On a small card turning ZeRO on can cost more than it saves.

    A bucket of 5e7 elements is still a message of 100 MB, which any network sends at full speed.

    Source: `setup_buckets` in `deepspeed/runtime/zero/stage_1_and_2.py`, `_setup_for_real_optimizer` in
    `deepspeed/runtime/zero/stage3.py`; DeepSpeed issues 2992 and 3338. The limit of 5 % is zerokit's.
    """
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
        yield Hit(_bucket_place(subject), message, 'Set "reduce_bucket_size" to 5e7')


@rule(
    "small-auto-bucket",
    severity="info",
    bad=_zero(2, reduce_bucket_size="auto"),
    good=_zero(2, reduce_bucket_size=5e7),
    given=Facts(model=small_decoder, target="trainer"),
    needs=("model",),
)
def small_auto_bucket(subject: Subject) -> Iterator[Hit]:
    """A small bucket from "auto" for a narrow model

    For "auto" the Trainer and accelerate write the hidden size squared. For a hidden size of 768 that is
    0.6 million elements: the gradients of a layer go out in a dozen messages, and the network waits for each
    of them to start.

    Write a number, such as 5e7.

    Source: `trainer_config_finalize` in transformers `integrations/deepspeed.py`, `_prepare_deepspeed` in
    accelerate `accelerator.py`.
    """
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


@rule(
    "prefetch-exceeds-live",
    severity="warning",
    bad=_zero(3, stage3_prefetch_bucket_size=1e9, stage3_max_live_parameters=1e8),
    good=_zero(3, stage3_prefetch_bucket_size=5e7, stage3_max_live_parameters=1e8),
)
def prefetch_exceeds_live(subject: Subject) -> Iterator[Hit]:
    """A prefetch bucket above 'stage3_max_live_parameters'

    Stage 3 prefetches at most as many elements as `stage3_max_live_parameters` leaves free, so that a larger
    `stage3_prefetch_bucket_size` is never reached: prefetching stops and starts at the limit.

    Source: `max_params_to_prefetch` in `deepspeed/runtime/zero/partitioned_param_coordinator.py`.
    """
    prefetch, live = subject.zero.stage3_prefetch_bucket_size, subject.zero.stage3_max_live_parameters
    path = (ZERO, "stage3_prefetch_bucket_size")
    if subject.stage != 3 or not isinstance(prefetch, int) or not 0 < live < prefetch:
        return
    if not subject.is_uncertain(*path) and not subject.is_uncertain(*_LIVE):
        message = (
            f"'stage3_prefetch_bucket_size' {format_count(prefetch)} is more than "
            f"'stage3_max_live_parameters' {format_count(live)} allows"
        )
        place = path if subject.is_set(*path) else _LIVE
        yield Hit(place, message, "Lower the first or raise the second")


@rule(
    "live-parameters-memory",
    severity="warning",
    bad=_zero(3, stage3_max_live_parameters=5e9),
    good=_zero(3, stage3_max_live_parameters=1e9),
    given=Facts(model=llama_8b, gpu_memory_bytes=24 * GIB),
    needs=("model", "gpu_memory"),
)
def live_parameters_memory(subject: Subject) -> Iterator[Hit]:
    """Gathered parameters that take much GPU memory

    Up to `stage3_max_live_parameters` elements stay gathered on each GPU between their uses. Raised to the
    size of the model it turns stage 3 into stage 2 as far as memory goes.

    Source: `_fetch_sub_module_impl` and `__params_to_release` in
    `deepspeed/runtime/zero/partitioned_param_coordinator.py`. The limit of 25 % is zerokit's.
    """
    model = subject.run.model
    if (
        subject.stage != 3
        or model is None
        or subject.cluster.gpu_memory_bytes is None
        or subject.is_uncertain(*_LIVE)
    ):
        return
    live = min(subject.zero.stage3_max_live_parameters, model.num_parameters)
    taken = live * (model_dtype_bytes(subject) or 2)
    part = taken / subject.cluster.gpu_memory_bytes
    if part > _LIVE_SHARE:
        message = f"up to {format_bytes(taken)} of gathered parameters stay on each GPU, {part:.0%} of it"
        place = _LIVE if subject.is_set(*_LIVE) else (ZERO,)
        yield Hit(place, message, 'Lower "stage3_max_live_parameters"')
