"""Offload to the CPU, and what holds for NVMe alike."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.sections import OffloadOptimizer, OffloadParam
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject


def in_use(subject: Subject) -> Iterator[tuple[str, OffloadOptimizer | OffloadParam]]:
    """The offload sections whose device is `cpu` or `nvme`, under the key that the file gives.

    The deprecated `cpu_offload` and `cpu_offload_param` are such keys.
    """
    if subject.offload_optimizer is not None:
        written = subject.is_set(ZERO, "offload_optimizer")
        yield "offload_optimizer" if written else "cpu_offload", subject.offload_optimizer
    if subject.offload_param is not None:
        written = subject.is_set(ZERO, "offload_param")
        yield "offload_param" if written else "cpu_offload_param", subject.offload_param


@rule("offload-without-zero")
def offload_without_zero(subject: Subject) -> Iterator[Hit]:
    """Offload although ZeRO is off"""
    if subject.stage != 0 or not subject.is_set(ZERO, "stage"):
        return
    for key, _ in in_use(subject):
        message = f"'{key}' has no ZeRO stage to act in: the stage is 0"
        stages = "3" if "param" in key else "1, 2 or 3"
        yield Hit((ZERO, key), message, f"Use stage {stages}, or remove '{key}'", stops="param" not in key)


@rule("offload-param-stage")
def offload_param_stage(subject: Subject) -> Iterator[Hit]:
    """Parameters offloaded below stage 3"""
    if subject.stage not in (1, 2):
        return
    for key, _ in in_use(subject):
        if "param" in key:
            message = f"'{key}' needs ZeRO stage 3; in stage {subject.stage} DeepSpeed ignores it silently"
            yield Hit((ZERO, key), message, f"Use stage 3, or remove '{key}'")
