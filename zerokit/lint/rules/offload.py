"""Offload to the CPU and to NVMe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerokit.config.conditions import FAST_INIT, NVME
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.findings import Remove, Severity
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules, idle_at
from zerokit.lint.subject import Subject
from zerokit.lint.values_in_force import ZERO, in_force

rule = Rules("offload")
_SECTIONS = ("offload_optimizer", "offload_param")
_NVME = {"device": "nvme", "nvme_path": "/local_nvme"}


def in_use(subject: Subject) -> Iterator[tuple[str, OffloadOptimizer | OffloadParam]]:
    """The offload sections whose device is `cpu` or `nvme`, under the key that the file gives.

    The deprecated `cpu_offload` and `cpu_offload_param` are such keys.
    """
    if subject.offload_optimizer is not None:
        written = subject.sets(ZERO, "offload_optimizer")
        yield "offload_optimizer" if written else "cpu_offload", subject.offload_optimizer
    if subject.offload_param is not None:
        written = subject.sets(ZERO, "offload_param")
        yield "offload_param" if written else "cpu_offload_param", subject.offload_param


@rule(
    "offload-without-zero",
    stops=True,
    bad=zero(0, offload_optimizer={"device": "cpu"}),
    good=zero(2, offload_optimizer={"device": "cpu"}),
)
def offload_without_zero(subject: Subject) -> Iterator[Hit]:
    """Offload although ZeRO is off

    Offload is a part of ZeRO. In stage 0 `offload_param` is not looked at, and `offload_optimizer` does half
    of its work: DeepSpeed builds its optimizer for the CPU and leaves the parameters on the GPU, so that the
    first step fails with an assertion, after the model has been loaded.

    Use stage 2 to offload the optimizer, stage 3 for parameters.

    Source: `zero_use_cpu_optimizer` in `deepspeed/runtime/engine.py`; `DeepSpeedCPUAdam.step` in
    `deepspeed/ops/adam/cpu_adam.py`.
    """
    if subject.stage != 0 or not subject.sets(ZERO, "stage"):
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

    In stages 1 and 2 every GPU keeps all parameters, because they are not divided; DeepSpeed does not look at
    `offload_param` there and says nothing. The memory that it was to save is not saved.

    Use stage 3, or remove the section.

    Source: the arguments of both optimizers in `_configure_zero_optimizer`,
    `deepspeed/runtime/engine.py`.
    """
    if subject.stage not in (1, 2):
        return
    for key, _ in in_use(subject):
        if "param" in key:
            message = f"'{key}' needs ZeRO stage 3; in stage {subject.stage} DeepSpeed ignores it in silence"
            yield Hit((ZERO, key), message, f"Use stage 3, or remove '{key}'")


@rule(
    "nvme-stage",
    bad=zero(2, offload_optimizer=_NVME),
    good=zero(3, offload_optimizer=_NVME),
)
def nvme_stage(subject: Subject) -> Iterator[Hit]:
    """NVMe below stage 3

    The optimizer of stages 1 and 2 only asks whether the device is something else than `none`, and then keeps
    its states in the host's memory. `nvme` there means `cpu`: nothing is written to the drive, and the host
    runs out of memory where the drive was to help.

    Source: `DeepSpeedZeroOptimizer.__init__` in `deepspeed/runtime/zero/stage_1_and_2.py`.
    """
    section = subject.offload_optimizer
    if subject.stage in (1, 2) and section is not None and section.device == "nvme":
        message = (
            f"NVMe offload needs ZeRO stage 3; in stage {subject.stage} DeepSpeed uses the CPU in silence"
        )
        yield Hit((ZERO, "offload_optimizer", "device"), message, 'Use stage 3, or the device "cpu"')


@rule(
    "nvme-path",
    stops=True,
    bad=zero(3, offload_optimizer={"device": "nvme"}),
    good=zero(3, offload_optimizer=_NVME),
)
def nvme_path(subject: Subject) -> Iterator[Hit]:
    """NVMe without a folder

    DeepSpeed has no default folder, whatever its pages say. In stage 3 it stops when training starts: for
    parameters with an assertion, for the optimizer with a TypeError about a path that is None. In the other
    stages it does not look at the path.

    Source: `nvme_path` in `deepspeed/runtime/zero/offload_config.py`; `_validate_remote_device` in
    `deepspeed/runtime/zero/partition_parameters.py`; `_configure_tensor_swapping` in
    `deepspeed/runtime/zero/stage3.py`.
    """
    for key, section in in_use(subject):
        if section.device == "nvme" and subject.lacks(ZERO, key, "nvme_path"):
            message = f"'{key}' goes to NVMe, but 'nvme_path' is not given"
            severity: Severity | None = "warning" if subject.stage in (0, 1, 2) else None
            hint = 'Add "nvme_path": the folder to write to'
            yield Hit((ZERO, key, "device"), message, hint, (), severity)


@rule(
    "nvme-relative-path",
    severity="warning",
    bad=zero(3, offload_optimizer={"device": "nvme", "nvme_path": "./nvme_cache"}),
    good=zero(3, offload_optimizer=_NVME),
)
def nvme_relative_path(subject: Subject) -> Iterator[Hit]:
    """A relative 'nvme_path'

    Each process takes the path from the folder in which it was started, which a launcher or a cluster may
    choose, and which is often on a network drive. `~` and `$VARIABLES` are not expanded: DeepSpeed makes a
    folder of that name.

    Write the whole path of a folder on a local drive.

    Source: `_configure_aio` in `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py` and
    `_configure_tensor_swapping` in `deepspeed/runtime/zero/stage3.py`.
    """
    for key, section in in_use(subject):
        path = section.nvme_path
        if section.device == "nvme" and path and path != "auto" and not path.startswith("/"):
            message = f"'nvme_path' \"{path}\" is relative to the folder in which each process was started"
            yield Hit((ZERO, key, "nvme_path"), message, "Write the whole path of a folder on a local drive")


@rule(
    "nvme-key",
    severity="warning",
    bad=zero(3, offload_param={"device": "cpu", "max_in_cpu": 1e9}),
    good=zero(3, offload_param={"device": "cpu"}),
)
def nvme_key(subject: Subject) -> Iterator[Hit]:
    """A key for NVMe, and nothing goes to NVMe

    `nvme_path`, the buffers, `max_in_cpu`, `pipeline_read`, `pipeline_write` and `fast_init` are looked at
    when the device is `nvme` and the stage 3, and only then. With `cpu` all of the tensors are in the host's
    memory: no key keeps a part of them there.

    Source: `deepspeed/runtime/zero/stage3.py` (`_configure_offloading`, `_configure_tensor_swapping` and
    `_create_param_groups_fp16_flat_cpu_memory`) and
    `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`.
    """
    for path, idle in subject.idle.items():
        nowhere = idle.acts.when is FAST_INIT and in_force(subject, *map(str, path[:-1]), "device") != "nvme"
        if idle.acts.when is NVME or nowhere:
            yield Hit(path, f"'{path[-1]}' {idle.reason}", "Remove the key", fix=(Remove(path),))


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
        if isinstance(subject.written_at(ZERO, key), Mapping) and subject.lacks(ZERO, key, "device"):
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
    """'super_offload' where it does not act

    SuperOffload is an optimizer of stage 3 that steps on the CPU while the backward pass still runs. Below
    stage 3 the key does nothing. In stage 3 it is obeyed even if the device is `none`, and then fails: it
    looks for states on the CPU that nobody put there. `cpuadam_cores_perc` is its share of CPU cores, and
    nothing else reads it.

    Source: `_configure_zero_optimizer` in `deepspeed/runtime/engine.py`, and
    `SuperOffloadOptimizer_Stage3._optimizer_step` (`subgroup_to_device`) in
    `deepspeed/runtime/superoffload/superoffload_stage3.py`.
    """
    section = subject.zero.offload_optimizer
    if section is None:
        return
    path = (ZERO, "offload_optimizer", "super_offload")
    if path in subject.idle:
        yield Hit(path, f"'super_offload' {subject.idle[path].reason}", "Use stage 3, or remove the key")
    elif subject.stage == 3 and section.super_offload and in_force(subject, *path[:2], "device") == "none":
        message = "'super_offload' fails unless the optimizer is offloaded, and the device is \"none\""
        yield Hit(path, message, 'Set "device" to "cpu", or remove the key', (), "error")
    yield from idle_at(subject, (ZERO, "offload_optimizer", "cpuadam_cores_perc"))


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
    """A part of the optimizer on the GPU, with an optimizer other than Adam

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
    """Parameters that are pinned although the file says no

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


@rule(
    "aio-unused",
    severity="warning",
    bad={**zero(3, offload_optimizer={"device": "cpu"}), "aio": {"queue_depth": 32}},
    good={**zero(3, offload_optimizer=_NVME), "aio": {"queue_depth": 32}},
)
def aio_unused(subject: Subject) -> Iterator[Hit]:
    """Options of NVMe access, and nothing uses them

    The section `aio` is for tensors that are offloaded to NVMe, in stage 3, and for the fast writer of
    checkpoints (`checkpoint.writer`).

    Source: the uses of `aio_config` in `deepspeed/runtime/swap_tensor/` and
    `deepspeed/runtime/model_checkpointing/writer_factory.py`.
    """
    if ("aio",) in subject.idle:
        yield Hit(("aio",), f"'aio' {subject.idle['aio',].reason}", "Remove the section")


@rule(
    "fast-init",
    severity="warning",
    bad=zero(3, offload_optimizer={**_NVME, "fast_init": True}),
    good=zero(3, offload_optimizer={**_NVME, "fast_init": True}, offload_param=_NVME),
)
def fast_init(subject: Subject) -> Iterator[Hit]:
    """'fast_init' without parameters on NVMe

    `fast_init` makes the optimizer's copies of parameters on NVMe straight from the parameters' files there.
    It is asked only for parameters that are on NVMe themselves.

    Source: `_create_fp32_partitions` in `deepspeed/runtime/zero/stage3.py`.
    """
    section = subject.offload_optimizer
    if subject.stage != 3 or section is None or section.device != "nvme" or not section.fast_init:
        return
    hint = "Remove the key, or offload the parameters to NVMe"
    yield from idle_at(subject, (ZERO, "offload_optimizer", "fast_init"), hint)
