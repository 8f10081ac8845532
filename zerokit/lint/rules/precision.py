"""Number formats of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from zerokit.config.base import AUTO, ZERO, is_comment
from zerokit.config.normal_form import refused_together
from zerokit.config.scheduler import TORCH_SCHEDULERS
from zerokit.findings import SetValue
from zerokit.lint.examples import ONE_SAMPLE, zero
from zerokit.lint.number_formats import format_at, switch
from zerokit.lint.optimizer_facts import default_clipping
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("precision")
_BF16 = {**ONE_SAMPLE, "bf16": {"enabled": True}}
_STAGE_2 = {ZERO: {"stage": 2}}
_CPU = {ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
_SWITCHES: tuple[Literal["bf16", "fp16"], ...] = ("bf16", "fp16")


@rule(
    "bf16-and-fp16",
    stops=True,
    bad={**_BF16, "fp16": {"enabled": True}, **_STAGE_2},
    good={**_BF16, "fp16": {"enabled": False}, **_STAGE_2},
)
def bf16_and_fp16(subject: Subject) -> Iterator[Hit]:
    """bf16 and fp16 at the same time

    A model trains in bfloat16 or in float16; DeepSpeed asserts that one of them is off when it reads the
    config.

    Keep bf16 where the GPUs have it (Ampere and later): it needs no loss scaling, because its range is that
    of fp32.

    Source: `_initialize_params` in `deepspeed/runtime/config.py`.
    """
    for path, message in refused_together(subject.config):
        if path[0] != ZERO:
            yield Hit(path, message, "Disable one of them")


@rule(
    "precision-off",
    severity="warning",
    bad={**ONE_SAMPLE, "bf16": {"check_grad_overflow": False}, **_STAGE_2},
    good={**ONE_SAMPLE, "bf16": {"enabled": True, "check_grad_overflow": False}, **_STAGE_2},
)
def precision_off(subject: Subject) -> Iterator[Hit]:
    """A 16-bit section that is not enabled

    `fp16`, `bf16` and `torch_autocast` are off unless `enabled` says otherwise, and their other keys then do
    nothing. Under the Trainer and accelerate it is worse: they switch on what `--bf16` or `mixed_precision`
    asks for where the section is absent or `enabled` is "auto". A section without `enabled` keeps the run in
    fp32, silently.

    Add `enabled`: "auto" for the Trainer and accelerate, true otherwise.

    Source: `deepspeed/runtime/precision_config.py`; `set_mixed_precision` in accelerate
    `utils/dataclasses.py`.
    """
    others = {"bf16": "fp16", "fp16": "bf16"}
    for name in (*_SWITCHES, "torch_autocast"):
        section = subject.written_value(name)
        if not isinstance(section, Mapping) or not subject.is_absent(name, "enabled"):
            continue
        if name in others and subject.written_value(others[name], "enabled") is True:
            continue
        filled = name in others and subject.run.target in ("trainer", "accelerate")
        if any(not is_comment(key) for key in section) or filled:
            outcome = ", whatever the script requests" if filled else ", and its keys do nothing"
            fix = (SetValue((name, "enabled"), AUTO),) if filled else ()
            value = '"auto"' if filled else "true"
            hint = f'Add "enabled": {value} to it, or remove the section'
            yield Hit((name,), f"'{name}' lacks 'enabled', so it is off{outcome}", hint, fix)


@rule(
    "fp32-training",
    severity="info",
    bad={**ONE_SAMPLE, **_STAGE_2},
    good={**_BF16, **_STAGE_2},
    given={"target": "deepspeed"},
)
def fp32_training(subject: Subject) -> Iterator[Hit]:
    """A config without a precision

    Without `bf16`, `fp16` and `torch_autocast` DeepSpeed leaves the model's weights in the format in which
    the script made them and takes it for fp32. In fp32 weights and gradients take twice the memory of 16
    bits, and matmuls run at a fraction of the speed.

    Add `"bf16": {"enabled": true}`, or `"bf16": {"enabled": false}` if fp32 is meant.

    Source: `get_data_types` in `deepspeed/runtime/engine.py`.
    """
    if subject.run.target == "deepspeed" and all(
        subject.is_absent(name) for name in ("bf16", "bfloat16", "fp16", "torch_autocast")
    ):
        message = "neither 'bf16' nor 'fp16' is given, so DeepSpeed trains in fp32"
        hint = 'Add "bf16": {"enabled": true}, or false if fp32 is meant'
        if subject.written_value("scheduler", "type") in TORCH_SCHEDULERS:  # torch-scheduler says why
            hint = 'Add "bf16": {"enabled": false}, or use bf16 and a schedule of DeepSpeed\'s'
        yield Hit((), message, hint)


_MASTERS = (
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
    ("fp16", "fp16_master_weights_and_grads"),
)


_AUTOCAST = "torch_autocast"
_IN_BF16 = {_AUTOCAST: {"enabled": True, "dtype": "bfloat16"}}
_IN_FP16 = {_AUTOCAST: {"enabled": True, "dtype": "float16"}}


def _is_on(subject: Subject) -> bool:
    return subject.value(_AUTOCAST, "enabled") is True


@rule(
    "autocast-and-precision",
    stops=True,
    severity="warning",
    bad={**zero(1), "bf16": {"enabled": True}, **_IN_BF16},
    good={**zero(1), "bf16": {"enabled": False}, **_IN_BF16},
)
def autocast_and_precision(subject: Subject) -> Iterator[Hit]:
    """Autocast together with bf16 or fp16

    `torch_autocast` keeps the weights in fp32 and casts them as they are used; `bf16` and `fp16` make the
    weights 16-bit ones. DeepSpeed takes both together, and then there is nothing left for autocast to spare.

    With a `dtype` of float16 it does harm. In stage 0 the first step fails: "No inf checks were recorded for
    this optimizer". In ZeRO with `fp16` gradients are scaled once and divided twice, by 65,536 each time, so
    that weights hardly change.

    Keep one of the two: `bf16` for the least memory, `torch_autocast` where fp32 weights are wanted.

    Source: `_take_model_step` in `deepspeed/runtime/engine.py`; `scale_if_loss` in
    `deepspeed/runtime/base_optimizer.py` and `_optimizer_step` in `deepspeed/runtime/zero/stage_1_and_2.py`.
    """
    section = next(
        (name for name in ("bf16", "fp16") if subject.written_value(name, "enabled") is True), None
    )
    if section is None or not _is_on(subject):
        return
    path = (_AUTOCAST, "enabled")
    hint = f"Remove 'torch_autocast', or set 'enabled' of '{section}' to false"
    in_fp16 = format_at(subject, _AUTOCAST, "dtype") == "fp16"
    if in_fp16 and subject.stage == 0:
        message = f"autocast in float16 with '{section}' fails at the first step in stage 0"
        yield Hit(path, message, hint, severity="error")
    elif in_fp16 and section == "fp16" and subject.stage in (1, 2, 3):
        message = "with 'fp16' and autocast in float16 gradients are divided by the loss scale twice"
        yield Hit(path, message, hint, severity="error", stops=False)
    else:
        message = f"'{section}' makes the weights 16-bit ones, which leaves nothing for autocast to do"
        yield Hit(path, message, hint)


@rule(
    "autocast-clipping",
    bad={**zero(1), **_IN_FP16, "gradient_clipping": 1.0},
    good={**zero(1), **_IN_FP16, "gradient_clipping": 0.0},
)
def autocast_clipping(subject: Subject) -> Iterator[Hit]:
    """Gradients clipped while they are still scaled

    With a `dtype` of float16 the loss is multiplied by the scale of PyTorch's `GradScaler`, 65,536 at first.
    ZeRO measures and clips the gradients before that factor is taken out again: a `gradient_clipping` of 1.0
    cuts them to 1 / 65,536, and the norm that is reported is 65,536 times too large. SGD then hardly moves;
    Adam hides it in part. `gradient_clipping` is 1.0 where it is absent.

    Use bfloat16, which needs no scaling, or set `gradient_clipping` to 0.

    Source: `unscale_and_clip_grads`, which comes before `torch_autocast_gradscaler.step`, in
    `deepspeed/runtime/zero/stage_1_and_2.py` and `stage3.py`.
    """
    if not _is_on(subject) or format_at(subject, _AUTOCAST, "dtype") != "fp16":
        return
    if subject.stage not in (1, 2, 3) or switch(subject, "fp16"):
        return
    given = subject.is_set("gradient_clipping")
    norm = subject.value("gradient_clipping") if given else default_clipping(subject)
    if isinstance(norm, int | float) and norm > 0 and not subject.is_uncertain("gradient_clipping"):
        place = ("gradient_clipping",) if subject.is_set("gradient_clipping") else (_AUTOCAST, "dtype")
        absent = "" if subject.is_set("gradient_clipping") else ", its default,"
        message = f"with autocast in float16 'gradient_clipping' {norm:g}{absent} cuts gradients still scaled"
        yield Hit(place, message, 'Use the dtype "bfloat16", or set "gradient_clipping" to 0')
