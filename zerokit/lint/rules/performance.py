"""Settings that are legal and ruinous."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.units import format_count

rule = Rules("performance")

_SMALL_SUB_GROUP = 1_000_000
"""Elements of a sub-group that are updated in less time than it takes to start."""

_SMALL_BLOCK_BYTES = 131_072
_SMALL_QUEUE = 4
_MANY_ACCUMULATION_STEPS = 8


@rule(
    "no-prefetch",
    severity="warning",
    bad=zero(3, stage3_max_live_parameters=0),
    good=zero(3, stage3_max_live_parameters=1e9),
)
def no_prefetch(subject: Subject) -> Iterator[Hit]:
    """Stage 3 without prefetching

    While one module is computed, stage 3 gathers the parameters of the next. It gathers at most
    `stage3_prefetch_bucket_size` elements, and no more than `stage3_max_live_parameters` leaves free. With 0
    in either, each module waits for its own parameters to arrive.

    Neither saves more memory than a small number does; 1e7 is one matrix ahead.

    Source: `fetch_sub_module` in `deepspeed/runtime/zero/partitioned_param_coordinator.py`.
    """
    if subject.stage != 3:
        return
    for key in ("stage3_prefetch_bucket_size", "stage3_max_live_parameters"):
        if subject.is_set(ZERO, key) and subject.value(ZERO, key) == 0:
            message = f"'{key}' is 0, so that every module waits for its parameters"
            yield Hit((ZERO, key), message, "Remove the key for DeepSpeed's default, or write 1e7 or more")


@rule("sequential-gather", severity="warning", bad=zero(3, stage3_allgather_sequential=True), good=zero(3))
def sequential_gather(subject: Subject) -> Iterator[Hit]:
    """Parameters gathered one by one

    `stage3_allgather_sequential` sends a message for each parameter, and DeepSpeed sets
    `stage3_prefetch_bucket_size` to 1, whatever the file says. It is for models that otherwise do not fit.

    Source: `_configure_zero_optimizer` in `deepspeed/runtime/engine.py`.
    """
    path, prefetch = (ZERO, "stage3_allgather_sequential"), (ZERO, "stage3_prefetch_bucket_size")
    if subject.stage == 3 and subject.is_set(*path, to=True):
        message = "'stage3_allgather_sequential' gathers each parameter by itself"
        size = subject.value(*prefetch)
        if subject.is_set(*prefetch) and isinstance(size, int) and size != 1:
            message += f", and 'stage3_prefetch_bucket_size' {format_count(size)} becomes 1"
        yield Hit(path, message, "Remove the key, if the model fits without it")


@rule("small-sub-groups", severity="warning", bad=zero(3, sub_group_size=1), good=zero(3, sub_group_size=1e9))
def small_sub_groups(subject: Subject) -> Iterator[Hit]:
    """An optimizer that steps tensor by tensor

    Stage 3 updates `sub_group_size` elements at a time. A small number makes every tensor a group of its own,
    with a step of the optimizer, and under offload transfers, for each. 0 does the same; it does not mean
    "all". A number beyond the size of the model makes one group.

    Source: `_create_fp16_sub_groups` in `deepspeed/runtime/zero/stage3.py`.
    """
    path = (ZERO, "sub_group_size")
    size = subject.value(*path)
    if subject.stage == 3 and subject.is_set(*path) and isinstance(size, int) and size < _SMALL_SUB_GROUP:
        message = f"'sub_group_size' {size:,} makes the optimizer step tensor by tensor"
        yield Hit(path, message, "Remove the key for DeepSpeed's default, 1e9")


@rule(
    "no-persistence",
    severity="info",
    bad=zero(3, stage3_param_persistence_threshold=0),
    good=zero(3, stage3_param_persistence_threshold=1e5),
)
def no_persistence(subject: Subject) -> Iterator[Hit]:
    """Norms and biases gathered at every use

    Parameters below `stage3_param_persistence_threshold` elements stay whole on every GPU. With 0 each norm
    and bias is gathered before each use: a message for some kilobytes. Keeping them takes a few megabytes.

    Source: `mark_persistent_parameters` in `deepspeed/runtime/zero/parameter_offload.py`.
    """
    path = (ZERO, "stage3_param_persistence_threshold")
    if subject.stage == 3 and subject.is_set(*path) and subject.value(*path) == 0:
        message = f"'{path[1]}' is 0, so that even norms and biases are gathered for each use"
        yield Hit(path, message, "Remove the key for DeepSpeed's default, 1e5")


@rule("overlap-off", severity="info", bad=zero(3, overlap_comm=False), good=zero(3))
def overlap_off(subject: Subject) -> Iterator[Hit]:
    """Communication that does not overlap, in stage 3

    `overlap_comm` is true in stage 3 unless the file says otherwise. With false the backward pass stops for
    each reduction of gradients. Some set it because of defects of older releases; the last of them were fixed
    in 0.18.8.

    Source: `DeepSpeedZeroConfig.overlap_comm_valid` in `deepspeed/runtime/zero/config.py`; DeepSpeed's pull
    request 7898.
    """
    path = (ZERO, "overlap_comm")
    if subject.run.deepspeed_version is not None and subject.run.deepspeed_version < (0, 18, 8):
        return
    if subject.stage == 3 and subject.is_set(*path, to=False):
        message = "'overlap_comm' false makes the backward pass wait for each reduction"
        yield Hit(path, message, "Remove the key: stage 3 overlaps by default")


@rule("scattered-gradients", severity="info", bad=zero(2, contiguous_gradients=False), good=zero(2))
def scattered_gradients(subject: Subject) -> Iterator[Hit]:
    """Gradients that are not in one contiguous buffer

    `contiguous_gradients`, true by default, copies gradients into one buffer as they are made. Without it
    they lie scattered among the activations, and the holes that these leave cannot be used for anything
    large: memory that is free and of no use.

    Source: `setup_buckets` and `copy_grads_in_partition` in `deepspeed/runtime/zero/stage_1_and_2.py`.
    """
    path = (ZERO, "contiguous_gradients")
    if subject.stage in (1, 2, 3) and subject.is_set(*path, to=False) and not subject.offloads_optimizer:
        message = "'contiguous_gradients' false saves one buffer and fragments the GPU's memory"
        yield Hit(path, message, "Remove the key")


@rule("one-gpu", severity="warning", bad=zero(3), good=zero(0), given={"num_gpus": 1}, needs=("num_gpus",))
def one_gpu(subject: Subject) -> Iterator[Hit]:
    """ZeRO on a single GPU, with nothing offloaded

    ZeRO divides among GPUs. On one there is nothing to divide: stage 3 gathers and releases parameters that
    are all there, and pays for it in every module; stages 1 and 2 keep flat copies. Only offload makes ZeRO
    worth while on one GPU, and stage 2 will do unless parameters are offloaded.

    Source: `deepspeed/runtime/zero/parameter_offload.py`, whose hooks run whatever the number of ranks.
    """
    if subject.cluster.num_gpus != 1 or subject.stage not in (1, 2, 3) or subject.offload_param is not None:
        return
    offloaded = subject.offloads_optimizer
    if offloaded is None or subject.is_uncertain(ZERO, "offload_param"):
        return
    path = (ZERO, "stage")
    if subject.stage == 3:
        message = "stage 3 on one GPU has no parameters to divide, and none are offloaded"
        hint = "Use stage 2" if offloaded else "Use stage 0, or offload"
        yield Hit(path, message, hint, severity="info" if offloaded else None)
    elif not offloaded:
        message = f"stage {subject.stage} on one GPU has nothing to divide"
        yield Hit(path, message, "Use stage 0, or offload the optimizer", severity="info")


@rule(
    "quantized-weights-node",
    severity="info",
    bad=zero(3, zero_quantized_weights=True),
    good=zero(3),
    given={"num_gpus": 8},
    needs=("num_gpus",),
)
def quantized_weights_node(subject: Subject) -> Iterator[Hit]:
    """Quantized weights on a single node

    `zero_quantized_weights` gathers parameters in 8 bits, to halve what goes between nodes. Inside a node
    the GPUs' own links are so fast that quantising costs more than it saves, and the rounding stays.

    Source: the ZeRO++ paper (Wang et al., 2023), section 3; `all_gather_coalesced` in
    `deepspeed/runtime/zero/partition_parameters.py`.
    """
    path = (ZERO, "zero_quantized_weights")
    gpus = subject.cluster.num_gpus
    on_one_node = gpus is not None and gpus <= subject.cluster.gpus_per_node
    if subject.stage == 3 and on_one_node and subject.is_set(*path, to=True):
        message = f"'zero_quantized_weights' saves nothing on one node; there are {gpus} GPUs"
        yield Hit(path, message, "Remove the key, unless the node has no fast links between GPUs")


@rule(
    "reduction-per-micro-batch",
    severity="info",
    bad={**zero(2), "gradient_accumulation_steps": 16},
    good={**zero(1), "gradient_accumulation_steps": 16},
)
def reduction_per_micro_batch(subject: Subject) -> Iterator[Hit]:
    """Gradients reduced for every micro batch

    Stage 2 keeps only a rank's share of the gradients, so it must reduce them after every micro batch. Stage
    1 adds them up where they are and reduces once per step. With many accumulation steps and a model whose
    gradients fit, stage 1 sends a fraction as much.

    Source: `overlapping_partition_gradients_reduce_epilogue` and `allreduce_gradients` in
    `deepspeed/runtime/engine.py` and `deepspeed/runtime/zero/stage_1_and_2.py`.
    """
    steps = subject.value("gradient_accumulation_steps")
    if subject.stage != 2 or subject.cluster.num_gpus == 1 or subject.offloads_optimizer is not False:
        return
    if isinstance(steps, int) and steps >= _MANY_ACCUMULATION_STEPS:
        message = f"stage 2 reduces gradients in each of {steps} micro batches, stage 1 once"
        yield Hit(("gradient_accumulation_steps",), message, "Try stage 1, if the gradients fit")


@rule(
    "slow-nvme-access",
    severity="warning",
    bad={
        **zero(3, offload_param={"device": "nvme", "nvme_path": "/local_nvme"}),
        "aio": {"block_size": 4096, "queue_depth": 1},
    },
    good={
        **zero(3, offload_param={"device": "nvme", "nvme_path": "/local_nvme"}),
        "aio": {"block_size": 1048576, "queue_depth": 32},
    },
)
def slow_nvme_access(subject: Subject) -> Iterator[Hit]:
    """NVMe access in small blocks or single requests

    A drive reaches its speed with large blocks (`block_size`, in bytes, 1048576 by default) and many requests
    at once (`queue_depth`, 8 by default). With 4 KiB or a single request it gives a small part of it, and the
    whole training waits. `ds_nvme_tune` finds good values for a machine.

    Source: `deepspeed/runtime/swap_tensor/constants.py` for the defaults; `csrc/aio/` for the use.
    """
    uses_nvme = any(
        section is not None and section.device == "nvme"
        for section in (subject.offload_optimizer, subject.offload_param)
    )
    if not uses_nvme or subject.stage != 3:
        return
    for key, least, default in (
        ("block_size", _SMALL_BLOCK_BYTES, "1048576 or more"),
        ("queue_depth", _SMALL_QUEUE, "8 or more"),
    ):
        value = subject.value("aio", key)
        if subject.is_set("aio", key) and isinstance(value, int) and value < least:
            message = f"'{key}' {value} slows NVMe down"
            yield Hit(("aio", key), message, f"Write {default}")


@rule(
    "autotuning-left-on",
    severity="warning",
    bad={**zero(2), "autotuning": {"enabled": True}},
    good={**zero(2), "autotuning": {"enabled": False}},
)
def autotuning_left_on(subject: Subject) -> Iterator[Hit]:
    """Autotuning, which ends every run after a few steps

    With `autotuning.enabled` the engine measures the steps from `start_profile_step` to `end_profile_step`
    (3 and 5 unless given), writes what it found, and calls `exit()`. That is for the trial runs of
    `deepspeed --autotuning`. Training started with the same file ends after 6 steps, without an error.

    Source: `_autotuning_exit` in `deepspeed/runtime/engine.py`.
    """
    path = ("autotuning", "enabled")
    if subject.is_set(*path, to=True):
        last = subject.value("autotuning", "end_profile_step")
        steps = f"after {last + 1} steps" if isinstance(last, int) else "after a few steps"
        message = f"'autotuning' ends every run {steps}"
        yield Hit(path, message, "Set it to false once tuning is done")
