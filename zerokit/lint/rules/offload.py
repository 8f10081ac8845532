"""Offload to the CPU, and what holds for NVMe alike."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("offload")
_SECTIONS = ("offload_optimizer", "offload_param")
_NVME = {"device": "nvme", "nvme_path": "/local_nvme"}


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


@rule(
    "offload-without-zero",
    stops=True,
    bad=zero(0, offload_optimizer={"device": "cpu"}),
    good=zero(2, offload_optimizer={"device": "cpu"}),
)
def offload_without_zero(subject: Subject) -> Iterator[Hit]:
    """Offload although ZeRO is off

    Offload is a part of ZeRO. In stage 0 `offload_param` is not read, and `offload_optimizer` does half
    of its work: DeepSpeed builds its optimizer for the CPU and leaves the parameters on the GPU, so that the
    first step fails with an assertion, after the model has been loaded.

    Use stage 2 to offload the optimizer, stage 3 for parameters.

    Source: `zero_use_cpu_optimizer` in `deepspeed/runtime/engine.py`; `DeepSpeedCPUAdam.step` in
    `deepspeed/ops/adam/cpu_adam.py`.
    """
    if subject.stage != 0 or not subject.is_set(ZERO, "stage"):
        return
    for key, _ in in_use(subject):
        message = f"'{key}' has no ZeRO stage to act in: the stage is 0"
        stages = "3" if "param" in key else "1, 2 or 3"
        yield Hit((ZERO, key), message, f"Use stage {stages}, or remove '{key}'", stops="param" not in key)


@rule(
    "offload-param-stage",
    bad=zero(2, offload_param={"device": "cpu"}),
    good=zero(3, offload_param={"device": "cpu"}),
)
def offload_param_stage(subject: Subject) -> Iterator[Hit]:
    """Parameters offloaded below stage 3

    In stages 1 and 2 every GPU keeps all parameters, because they are not divided; DeepSpeed does not read
    `offload_param` there and reports nothing. It saves no memory.

    Use stage 3, or remove the section.

    Source: the arguments of both optimizers in `_configure_zero_optimizer`,
    `deepspeed/runtime/engine.py`.
    """
    if subject.stage not in (1, 2):
        return
    for key, _ in in_use(subject):
        if "param" in key:
            message = f"'{key}' needs ZeRO stage 3; in stage {subject.stage} DeepSpeed ignores it silently"
            yield Hit((ZERO, key), message, f"Use stage 3, or remove '{key}'")
