"""Options of ZeRO that DeepSpeed refuses together, most of them only once the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.conditions import TORCH_FP32
from zerokit.findings import Remove
from zerokit.lint.examples import ONE_SAMPLE, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("zero")


@rule(
    "zero-option",
    stops=True,
    bad={**zero(3), "gradient_allreduce_op": "sum"},
    good={**zero(2), "gradient_allreduce_op": "sum"},
)
def zero_option(subject: Subject) -> Iterator[Hit]:
    """An option that the stage refuses

    DeepSpeed refuses these when it reads the config:

    - `compute_grad_norm` false in stages 0 and 3: only the optimizer of stages 1 and 2 can do without;
    - `offload_optimizer.ratio` below 1 in stages 0, 1 and 2: only stage 3 splits the states;
    - `gradient_allreduce_op` "sum" in stage 3, with ZenFlow or with DeepCompile, which average by themselves.

    Source: the validators of `DeepSpeedZeroConfig` in `deepspeed/runtime/zero/config.py`, and
    `_do_error_check` in `deepspeed/runtime/config.py`.
    """
    zero, stage = subject.zero, subject.stage
    if not zero.compute_grad_norm and stage in (0, 3):
        message = f"'compute_grad_norm' can be false in ZeRO stages 1 and 2 only; the stage is {stage}"
        path: tuple[str, ...] = (ZERO, "compute_grad_norm")
        yield Hit(path, message, "Remove the key", fix=(Remove(path),))
    offload = zero.offload_optimizer
    if offload is not None and offload.ratio < 1 and stage in (0, 1, 2):
        message = f"'ratio' {offload.ratio:g} needs ZeRO stage 3; the stage is {stage}"
        yield Hit((ZERO, "offload_optimizer", "ratio"), message, "Use stage 3, or remove the key")
    if subject.config.gradient_allreduce_op == "sum":
        others = {
            "ZeRO stage 3": stage == 3,
            "ZenFlow": zero.zenflow is not None,
            "DeepCompile": subject.value("compile", "deepcompile") is True,
        }
        other = next((name for name, present in others.items() if present), None)
        if other is not None:
            message = f"'gradient_allreduce_op' cannot be \"sum\" with {other}"
            yield Hit(("gradient_allreduce_op",), message, 'Use "mean", or leave the key out')


@rule(
    "grad-norm-off",
    stops=True,
    bad=zero(2, compute_grad_norm=False),
    good={**ONE_SAMPLE, "gradient_clipping": 0.0, ZERO: {"stage": 2, "compute_grad_norm": False}},
)
def grad_norm_off(subject: Subject) -> Iterator[Hit]:
    """'compute_grad_norm' off although something needs the norm

    Clipping needs the norm of all gradients, and `gradient_clipping` is 1.0 unless the file says otherwise
    (since DeepSpeed 0.19.3). ZenFlow and optimizer offload need it too, and so does the optimizer that stage
    1 uses for bf16 parameters whose gradients are summed in fp32. DeepSpeed refuses each of them when
    training starts.

    To do without the norm, set `gradient_clipping` to 0.

    Source: `DeepSpeedZeroOptimizer.__init__` in `deepspeed/runtime/zero/stage_1_and_2.py`, and
    `_do_optimizer_sanity_check` in `deepspeed/runtime/engine.py`.
    """
    stage, zero = subject.stage, subject.zero
    if zero.compute_grad_norm or stage not in (1, 2):
        return
    clipping = subject.value("gradient_clipping")
    sums_in_fp32 = subject.value("data_types", "grad_accum_dtype") in TORCH_FP32
    in_bf16 = subject.value("bf16", "enabled") is True
    if isinstance(clipping, (int, float)) and clipping > 0:
        by_default = "" if subject.is_set("gradient_clipping") else ", its default,"
        reason = f"'gradient_clipping' {clipping:g}{by_default} needs the norm"
        hint = 'Set "gradient_clipping" to 0, or remove the key'
    elif zero.zenflow is not None:
        reason, hint = "ZenFlow needs the norm", "Remove the key"
    elif subject.offloads_optimizer:
        reason, hint = "optimizer offload needs the norm", "Remove the key"
    elif stage == 1 and in_bf16 and sums_in_fp32:
        reason, hint = "stage 1 needs the norm for bf16 parameters with fp32 gradients", "Remove the key"
    else:
        return
    yield Hit((ZERO, "compute_grad_norm"), f"'compute_grad_norm' cannot be false: {reason}", hint)


@rule("prescaled-gradients", stops=True, bad={**zero(2), "prescale_gradients": True}, good=zero(2))
def prescaled_gradients(subject: Subject) -> Iterator[Hit]:
    """Prescaled gradients where ZeRO does not support them

    `prescale_gradients` and a `gradient_predivide_factor` other than 1 guard against overflow in the sum
    over many ranks. With `reduce_scatter`, which is on by default, stages 2 and 3 refuse both when training
    starts, and stage 1 divides in its own way whatever the two keys say.

    Leave both out, unless fp16 gradients do overflow. Then switch `reduce_scatter` off, which costs
    communication.

    Source: the assertions at the start of `deepspeed/runtime/zero/stage_1_and_2.py` and
    `deepspeed/runtime/zero/stage3.py`; `average_tensor` in the former.
    """
    stage, config = subject.stage, subject.config
    if stage not in (1, 2, 3) or subject.value(ZERO, "reduce_scatter") is not True:
        return
    for key, given in (
        ("prescale_gradients", config.prescale_gradients),
        ("gradient_predivide_factor", config.gradient_predivide_factor != 1.0),
    ):
        if not given:
            continue
        if (key,) in subject.unused:
            message = f"'{key}' {subject.unused[key,].reason}"
            yield Hit((key,), message, "Remove the key", (Remove((key,)),), "warning")
        else:
            message = f"ZeRO stage {stage} refuses '{key}' as long as 'reduce_scatter' is on"
            yield Hit((key,), message, 'Remove the key, or set "reduce_scatter" to false')


@rule("legacy-stage1", stops=True, bad=zero(1, legacy_stage1=True), good=zero(1))
def legacy_stage_1(subject: Subject) -> Iterator[Hit]:
    """The first implementation of stage 1

    It is gone since DeepSpeed 0.5.9. With `"legacy_stage1": true` every stage but 0 stops when training
    starts.

    Source: `_configure_zero_optimizer` in `deepspeed/runtime/engine.py`.
    """
    path = (ZERO, "legacy_stage1")
    if subject.zero.legacy_stage1:
        off = subject.stage == 0
        message = "'legacy_stage1' needs code that DeepSpeed no longer has"
        yield Hit(path, message, "Remove the key", (Remove(path),), "warning" if off else None)


@rule(
    "accumulation-overlap",
    stops=True,
    bad={**ONE_SAMPLE, "managed_gradient_accumulation": False, ZERO: {"stage": 1, "overlap_comm": True}},
    good={**ONE_SAMPLE, "managed_gradient_accumulation": False, ZERO: {"stage": 1}},
)
def accumulation_overlap(subject: Subject) -> Iterator[Hit]:
    """Accumulation left to the script, with overlapped communication

    With `"managed_gradient_accumulation": false` DeepSpeed learns only from the call of `step()` that
    gradients are complete. Below stage 2 it would have begun to reduce them before, so it refuses
    `overlap_comm` there, and DeepCompile in every stage.

    Source: `_do_sanity_check` in `deepspeed/runtime/engine.py`.
    """
    if subject.value("managed_gradient_accumulation") is not False:
        return
    if subject.stage in (0, 1) and subject.zero.overlap_comm:
        message = f"'overlap_comm' in stage {subject.stage} needs 'managed_gradient_accumulation'"
        yield Hit((ZERO, "overlap_comm"), message, "Remove one of the two, or use stage 2")
    if subject.value("compile", "deepcompile") is True:
        message = "DeepCompile needs 'managed_gradient_accumulation'"
        yield Hit(("managed_gradient_accumulation",), message, "Remove the key")


@rule(
    "pipeline-loading-stage",
    bad=zero(2, pipeline_loading_checkpoint=True),
    good=zero(3, pipeline_loading_checkpoint=True),
)
def pipeline_loading_stage(subject: Subject) -> Iterator[Hit]:
    """'pipeline_loading_checkpoint' below stage 3

    `pipeline_loading_checkpoint` lets the ranks of a node read a checkpoint in turn, to spare the host's
    memory. Only stage 3 can do so. In stages 1 and 2 training starts and saves as usual, and the first
    attempt to resume fails.

    Source: `_load_zero_checkpoint` in `deepspeed/runtime/engine.py`.
    """
    path = (ZERO, "pipeline_loading_checkpoint")
    if subject.stage in (1, 2) and subject.zero.pipeline_loading_checkpoint:
        message = f"with 'pipeline_loading_checkpoint', stage {subject.stage} cannot resume from a checkpoint"
        yield Hit(path, message, "Remove the key", fix=(Remove(path),))


@Rules("buckets")(
    "odd-allgather-bucket",
    stops=True,
    bad=zero(2, allgather_bucket_size=200_000_001),
    good=zero(2, allgather_bucket_size=200_000_000),
)
def odd_allgather_bucket(subject: Subject) -> Iterator[Hit]:
    """An odd 'allgather_bucket_size'

    Stages 1 and 2 start the pieces that they gather at a multiple of 4 bytes, two elements of 16 bits, and
    refuse a bucket size that is odd when training starts.

    Source: `nccl_start_alignment_factor` in `deepspeed/runtime/zero/stage_1_and_2.py`.
    """
    size = subject.zero.allgather_bucket_size
    if subject.stage in (1, 2) and size % 2:
        path = (ZERO, "allgather_bucket_size")
        message = f"'allgather_bucket_size' {size} is odd, which stage {subject.stage} refuses"
        hint = "Remove the key: PyTorch's own all-gather needs no bucket"
        yield Hit(path, message, hint, fix=(Remove(path),))
