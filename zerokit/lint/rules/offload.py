"""Offload to the CPU, and what holds for NVMe alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerokit.config.base import ZERO
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules, unused_key
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


@rule(
    "offload-empty",
    severity="warning",
    bad=zero(2, offload_optimizer={"pin_memory": True}),
    good=zero(2, offload_optimizer={"device": "cpu", "pin_memory": True}),
)
def offload_empty(subject: Subject) -> Iterator[Hit]:
    """An offload section without a device

    The device is `none` unless it is given, whatever DeepSpeed's pages say, and `none` means that nothing is
    offloaded.

    Add `"device": "cpu"` or `"nvme"`, or remove the section.

    Source: `DeepSpeedZeroOffloadOptimizerConfig` and `DeepSpeedZeroOffloadParamConfig` in
    `deepspeed/runtime/zero/offload_config.py`.
    """
    for key in _SECTIONS:
        if isinstance(subject.written_value(ZERO, key), Mapping) and subject.is_absent(ZERO, key, "device"):
            message = f"'{key}' names no 'device', so nothing is offloaded"
            yield Hit((ZERO, key), message, f'Add "device": "cpu", or remove \'{key}\'')


@rule(
    "super-offload",
    stops=True,
    severity="warning",
    bad=zero(2, offload_optimizer={"device": "cpu", "super_offload": True}),
    good=zero(3, offload_optimizer={"device": "cpu", "super_offload": True}),
)
def super_offload(subject: Subject) -> Iterator[Hit]:
    """'super_offload' without effect

    SuperOffload is an optimizer of stage 3 that steps on the CPU while the backward pass still runs. Below
    stage 3 the key does nothing. In stage 3 it is obeyed even if the device is `none`, and then fails: it
    looks for states on the CPU that are not there. `cpuadam_cores_perc` is its share of CPU cores, and
    nothing else reads it.

    Source: `_configure_zero_optimizer` in `deepspeed/runtime/engine.py`, and
    `SuperOffloadOptimizer_Stage3._optimizer_step` (`subgroup_to_device`) in
    `deepspeed/runtime/superoffload/superoffload_stage3.py`.
    """
    section = subject.zero.offload_optimizer
    if section is None:
        return
    path = (ZERO, "offload_optimizer", "super_offload")
    if path in subject.unused:
        yield Hit(path, f"'super_offload' {subject.unused[path].reason}", "Use stage 3, or remove the key")
    elif subject.stage == 3 and section.super_offload and subject.value(*path[:2], "device") == "none":
        message = "'super_offload' fails unless the optimizer is offloaded, and the device is \"none\""
        yield Hit(path, message, 'Set "device" to "cpu", or remove the key', (), "error")
    yield from unused_key(subject, (ZERO, "offload_optimizer", "cpuadam_cores_perc"))


@rule(
    "partial-offload-optimizer",
    stops=True,
    bad={
        **zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
    },
    good={
        **zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    },
)
def partial_offload_optimizer(subject: Subject) -> Iterator[Hit]:
    """Partial optimizer offload with an optimizer other than Adam

    With a `ratio` below 1 a part of the states stays on the GPU, where PyTorch's AdamW updates them.
    DeepSpeed asserts when training starts that the optimizer on the CPU is its Adam.

    Source: the assertion 'Hybrid Optimizer Only Supports DeepSpeedCPUAdam' in
    `deepspeed/runtime/zero/stage3.py`.
    """
    section, optimizer = subject.offload_optimizer, subject.config.optimizer
    if subject.stage != 3 or section is None or section.ratio >= 1 or optimizer is None:
        return
    if optimizer.type.lower() not in ("adam", "adamw"):
        message = f"'ratio' {section.ratio:g} works with Adam and AdamW only, not with '{optimizer.type}'"
        yield Hit((ZERO, "offload_optimizer", "ratio"), message, "Remove the key, or use AdamW")


@rule(
    "pinned-in-spite",
    severity="info",
    bad=zero(3, offload_param={"device": "cpu", "pin_memory": False}),
    good=zero(3, offload_param={"device": "cpu"}),
)
def pinned_in_spite(subject: Subject) -> Iterator[Hit]:
    """Parameters that are pinned despite 'pin_memory' false

    `offload_param.pin_memory` is asked while the model is divided. The optimizer of stage 3 then moves all
    trainable parameters into one buffer on the host, and pins that buffer without asking. Only frozen
    parameters stay unpinned.

    Source: `_create_param_groups_fp16_flat_cpu_memory` in `deepspeed/runtime/zero/stage3.py`.
    """
    section = subject.offload_param
    if subject.stage == 3 and section is not None and not section.pin_memory:
        message = "DeepSpeed pins the buffer of trainable parameters in spite of 'pin_memory' false"
        hint = (
            "Reckon with 2 bytes per parameter of page-locked host memory, or raise the limit ('ulimit -l')"
        )
        yield Hit((ZERO, "offload_param", "pin_memory"), message, hint)
