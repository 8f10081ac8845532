"""`torch_autocast`: PyTorch's mixed precision inside DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.lint.examples import zero
from zerokit.lint.number_formats import format_at, switch
from zerokit.lint.optimizer_facts import default_clipping
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("precision")
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
