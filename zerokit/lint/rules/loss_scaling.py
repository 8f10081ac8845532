"""float16 and the factor on its loss."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.conditions import LOSS_SCALING
from zerokit.findings import Remove, Severity
from zerokit.lint.examples import ONE_SAMPLE
from zerokit.lint.number_formats import switch
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.releases.versions import NEWEST

rule = Rules("precision")
_STAGE_2 = {ZERO: {"stage": 2}}
_ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
_LARGEST_INT = 63
"""2 to this power still becomes a number of PyTorch; from the next one on Python's int is refused."""
_SKIPPED_FROM = 24
"""A scale that starts above 2 to this power has several steps skipped before any gradient fits fp16."""
_FITS = 16
"""2 to this power is where fp16 ends: a scale of that size leaves gradients up to 1."""


def _fp16(*, stage: int = 2, **keys: object) -> dict[str, object]:
    return {**ONE_SAMPLE, "fp16": {"enabled": True, **keys}, ZERO: {"stage": stage}}


def _may_be_on(subject: Subject) -> bool:
    """Whether fp16 is on, or "auto" in a config that is made for it."""
    if switch(subject, "fp16") is None:
        return subject.is_set("fp16", "enabled")
    return switch(subject, "fp16") is True


def _adapts(subject: Subject) -> bool:
    return bool(subject.value("fp16", "loss_scale") == 0)


@rule("loss-scale-range", stops=True, bad=_fp16(min_loss_scale=0), good=_fp16(min_loss_scale=1))
def loss_scale_range(subject: Subject) -> Iterator[Hit]:
    """A loss scale that cannot adapt

    With `loss_scale` 0 the scale adapts: it halves after overflows and doubles after `loss_scale_window`
    steps without one, but never falls below `min_loss_scale`. DeepSpeed refuses a window or a minimum below
    1 when fp16 is enabled. A start of 2^64 or more, which it does not check, stops ZeRO at the first step
    with "int too big to convert".

    Leave the keys out.

    Source: `_validate_dynamic_loss_scale_params` in `deepspeed/runtime/precision_config.py`;
    `scale_loss` in `deepspeed/runtime/fp16/loss_scaler.py`.
    """
    if not _may_be_on(subject) or not _adapts(subject):
        return
    fp16 = subject.config.fp16
    # Older releases take them, and adapt as they can.
    is_refused = switch(subject, "fp16") and subject.run.deepspeed_version in (None, NEWEST)
    severity: Severity | None = None if is_refused else "warning"
    for key in ("loss_scale_window", "min_loss_scale"):
        value = getattr(fp16, key)
        if value < 1:
            message = f"'{key}' is {value}, and must be at least 1 where fp16 adapts the loss scale"
            yield Hit(("fp16", key), message, "Remove the key", (Remove(("fp16", key)),), severity)
    power = fp16.initial_scale_power
    if power > _LARGEST_INT and subject.stage in (1, 2, 3):
        message = f"the loss scale starts at 2^{power}, which stops ZeRO at the first step"
        path = ("fp16", "initial_scale_power")
        yield Hit(path, message, "Remove the key: it then starts at 2^16", (Remove(path),), severity)


@rule(
    "loss-scale-start", severity="info", bad=_fp16(initial_scale_power=32), good=_fp16(initial_scale_power=16)
)
def loss_scale_start(subject: Subject) -> Iterator[Hit]:
    """A loss scale that starts far too high

    fp16 ends at 65,504, nearly 2^16. From a start of 2^32 the scale has to halve some sixteen times before
    gradients fit, and each time a step is skipped; with `hysteresis` the first overflows do not even halve
    it. Those samples are lost, and schedules in DeepSpeed wait as long.

    Leave the key out: the scale then starts at 2^16, and doubles by itself where there is room.

    Source: `DynamicLossScaler.update_scale` in `deepspeed/runtime/fp16/loss_scaler.py`.
    """
    power = subject.value("fp16", "initial_scale_power")
    if not isinstance(power, int) or not _SKIPPED_FROM < power <= _LARGEST_INT:
        return
    if _may_be_on(subject) and _adapts(subject):
        skipped = power - _FITS + max(0, subject.config.fp16.hysteresis - 1)
        message = f"the loss scale starts at 2^{power}, so that about {skipped} steps are skipped at first"
        yield Hit(("fp16", "initial_scale_power"), message, "Remove the key: it then starts at 2^16")


@rule(
    "loss-scale-floor",
    severity="warning",
    bad=_fp16(initial_scale_power=8, min_loss_scale=1024),
    good=_fp16(initial_scale_power=16, min_loss_scale=1024),
)
def loss_scale_floor(subject: Subject) -> Iterator[Hit]:
    """A minimum loss scale above the initial one

    The scale starts at 2^`initial_scale_power`. At an overflow DeepSpeed takes the larger of half the scale
    and `min_loss_scale`: with a floor above the start, an overflow raises the scale. At the next one ZeRO
    ends the run with "Current loss scale already at minimum".

    Lower `min_loss_scale`; 1, its default, is right for most models.

    Source: `DynamicLossScaler.update_scale` in `deepspeed/runtime/fp16/loss_scaler.py`.
    """
    fp16 = subject.config.fp16
    start, path = 2**fp16.initial_scale_power, ("fp16", "min_loss_scale")
    if _may_be_on(subject) and _adapts(subject) and fp16.min_loss_scale > start:
        message = f"'min_loss_scale' {fp16.min_loss_scale} is above the start, 2^{fp16.initial_scale_power}"
        yield Hit(path, message, "Remove the key", (Remove(path),))


@rule(
    "loss-scale-key",
    severity="warning",
    bad=_fp16(loss_scale=128, loss_scale_window=500),
    good=_fp16(loss_scale=0, loss_scale_window=500),
)
def loss_scale_key(subject: Subject) -> Iterator[Hit]:
    """A loss-scaling option without effect

    `initial_scale_power`, `loss_scale_window`, `hysteresis`, `consecutive_hysteresis` and `min_loss_scale`
    belong to the adaptive scale, which a `loss_scale` other than 0 switches off. `hysteresis` and
    `consecutive_hysteresis` belong to ZeRO: in stage 0 every overflow halves the scale.

    Values that are DeepSpeed's own defaults are ignored.

    Source: `CreateLossScaler` and `LossScaleConfig` in `deepspeed/runtime/fp16/loss_scaler.py`.
    """
    for path, idle in subject.unused.items():
        if idle.acts.when is LOSS_SCALING and _may_be_on(subject):
            yield Hit(path, f"'{path[-1]}' {idle.reason}", "Remove the key", (Remove(path),))


@rule(
    "fp16-off",
    severity="info",
    bad={**ONE_SAMPLE, "bf16": {"enabled": True}, "fp16": {"enabled": False, "loss_scale": 128}, **_STAGE_2},
    good={**ONE_SAMPLE, "bf16": {"enabled": True}, **_STAGE_2},
)
def fp16_off(subject: Subject) -> Iterator[Hit]:
    """Options of fp16 although fp16 is off

    With `enabled` false or absent nothing reads the loss scaling of the section. (`auto_cast` and
    `fp16_master_weights_and_grads` do act, and have rules of their own.)

    Values that are DeepSpeed's own defaults are ignored.

    Source: `deepspeed/runtime/precision_config.py`.
    """
    if switch(subject, "fp16") is not False:
        return
    if subject.is_absent("fp16", "enabled") and switch(subject, "bf16") is not True:
        return  # precision-off reports it
    idle = [str(path[-1]) for path, one in subject.unused.items() if one.acts.when is LOSS_SCALING]
    if idle:
        message = f"fp16 is off, so {_listed(idle)} {'does' if len(idle) == 1 else 'do'} nothing"
        yield Hit(("fp16",), message, "Remove the section, or enable it")


@rule("fp16-without-zero", bad={**_fp16(stage=0), **_ADAMW}, good={**_fp16(stage=1), **_ADAMW})
def fp16_without_zero(subject: Subject) -> Iterator[Hit]:
    """fp16 without ZeRO: gradients are divided by a loss scale that was never applied

    From 0.18.3 to 0.19.8 at least, DeepSpeed's `backward()` multiplies the loss by the loss scale in stages
    1, 2 and 3 only. In stage 0 the loss stays as it is, and the optimizer divides the gradients by the scale
    all the same: by 65,536 at first. SGD does not train at all. Adam, whose steps do not depend on the size
    of the gradients, nearly hides it: `eps` outweighs small gradients, those that underflow in fp16 are lost,
    and the norm that is reported is wrong.

    Use stage 1, which trains alike and takes less memory, or bf16. If stage 0 it must be, `"loss_scale": 1`
    divides by 1.

    Source: `backward` in `deepspeed/runtime/engine.py`, which treats `ZeROOptimizer` alone, against
    `unscale_and_clip_grads` in `deepspeed/runtime/fp16/fused_optimizer.py` and `unfused_optimizer.py`;
    deepspeedai/DeepSpeed#8393.
    """
    if subject.stage != 0 or switch(subject, "fp16") is not True:
        return
    from zerokit.lint.defects import KNOWN_DEFECTS

    version = subject.run.deepspeed_version
    if version is not None and not KNOWN_DEFECTS["stage0-fp16-unscaled"].affects(version):
        return
    scale = subject.value("fp16", "loss_scale")
    if not isinstance(scale, int | float) or scale == 1:
        return
    by = f"{scale:g}" if scale else f"2^{subject.config.fp16.initial_scale_power}"
    trains = subject.is_set("optimizer") or subject.run.target == "trainer" or subject.run.recipe is not None
    message = f"in stage 0 DeepSpeed does not scale the loss for fp16, but divides the gradients by {by}"
    severity: Severity | None = None if trains else "warning"
    yield Hit(("fp16", "enabled"), message, "Use ZeRO stage 1, or bf16", severity=severity)


def _listed(keys: list[str]) -> str:
    quoted = [f"'{key}'" for key in keys]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
