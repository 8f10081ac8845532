"""Number formats of weights."""

from collections.abc import Iterator, Mapping
from typing import Literal

from zerokit.config.base import AUTO, ZERO, is_comment
from zerokit.config.normal_form import refused_together
from zerokit.findings import SetValue
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject

_SWITCHES: tuple[Literal["bf16", "fp16"], ...] = ("bf16", "fp16")


@rule("bf16-and-fp16")
def bf16_and_fp16(subject: Subject) -> Iterator[Hit]:
    """bf16 and fp16 at the same time"""
    for path, message in refused_together(subject.config):
        if path[0] != ZERO:
            yield Hit(path, message, "Disable one of them")


@rule("precision-off")
def precision_off(subject: Subject) -> Iterator[Hit]:
    """A 16-bit section that is not enabled"""
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
