"""float16 and the factor on its loss."""

from collections.abc import Iterator

from zerokit.config.conditions import LOSS_SCALING
from zerokit.findings import Remove, Severity
from zerokit.lint.number_formats import fp16_may_be_on, switch
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.releases.versions import NEWEST
from zerokit.units import listed

_LARGEST_INT = 63
"""2 to this power still becomes a number of PyTorch; from the next one on Python's int is refused."""
_SKIPPED_FROM = 24
"""A scale that starts above 2 to this power has several steps skipped before any gradient fits fp16."""
_FITS = 16
"""2 to this power is where fp16 ends: a scale of that size leaves gradients up to 1."""


def _adapts(subject: Subject) -> bool:
    return bool(subject.value("fp16", "loss_scale") == 0)


@rule("loss-scale-range")
def loss_scale_range(subject: Subject) -> Iterator[Hit]:
    """A loss scale that cannot adapt"""
    if not fp16_may_be_on(subject) or not _adapts(subject):
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


@rule("loss-scale-start")
def loss_scale_start(subject: Subject) -> Iterator[Hit]:
    """A loss scale that starts far too high"""
    power = subject.value("fp16", "initial_scale_power")
    if not isinstance(power, int) or not _SKIPPED_FROM < power <= _LARGEST_INT:
        return
    if fp16_may_be_on(subject) and _adapts(subject):
        skipped = power - _FITS + max(0, subject.config.fp16.hysteresis - 1)
        message = f"the loss scale starts at 2^{power}, so that about {skipped} steps are skipped at first"
        yield Hit(("fp16", "initial_scale_power"), message, "Remove the key: it then starts at 2^16")


@rule("fp16-off")
def fp16_off(subject: Subject) -> Iterator[Hit]:
    """Options of fp16 although fp16 is off"""
    if switch(subject, "fp16") is not False:
        return
    if subject.is_absent("fp16", "enabled") and switch(subject, "bf16") is not True:
        return  # precision-off reports it
    idle = [f"'{path[-1]}'" for path, one in subject.unused.items() if one.acts.when is LOSS_SCALING]
    if idle:
        message = f"fp16 is off, so {listed(idle)} {'does' if len(idle) == 1 else 'do'} nothing"
        yield Hit(("fp16",), message, "Remove the section, or enable it")


@rule("fp16-without-zero")
def fp16_without_zero(subject: Subject) -> Iterator[Hit]:
    """fp16 without ZeRO: gradients are divided by a loss scale that was never applied"""
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
