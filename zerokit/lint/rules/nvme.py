"""Offload to NVMe: the stage, the folder, the keys, and the buffers for a given model."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.conditions import FAST_INIT, NVME
from zerokit.config.optimizers import optimizer_spec
from zerokit.findings import Remove, SetValue, Severity
from zerokit.lint.examples import Facts, llama_8b, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.rules.offload import in_use
from zerokit.lint.subject import Subject, nvme_buffers, offload_param_at_the_run
from zerokit.resolving.nvme_buffers import NvmeBuffers
from zerokit.units import format_count

rule = Rules("offload")
_NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
_LLAMA = Facts(model=llama_8b, num_gpus=8)


def _buffers(subject: Subject) -> NvmeBuffers | None:
    """What the model takes of buffers for parameters; None where none go to NVMe, or no model is given."""
    section = subject.offload_param
    if subject.stage != 3 or section is None or section.device != "nvme":
        return None
    return nvme_buffers(subject)


def _recomputes(subject: Subject) -> bool:
    """Whether the run surely recomputes activations."""
    recipe = subject.run.recipe
    given = subject.run.given if recipe is None else recipe.training
    return given.get("gradient_checkpointing") is True


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
    stages it does not read the path.

    Source: `nvme_path` in `deepspeed/runtime/zero/offload_config.py`; `_validate_remote_device` in
    `deepspeed/runtime/zero/partition_parameters.py`; `_configure_tensor_swapping` in
    `deepspeed/runtime/zero/stage3.py`.
    """
    for key, section in in_use(subject):
        if section.device == "nvme" and subject.is_absent(ZERO, key, "nvme_path"):
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
        acts = (ZERO, key, "nvme_path") not in subject.unused
        if section.device == "nvme" and acts and path and path != "auto" and not path.startswith("/"):
            message = f"'nvme_path' \"{path}\" is relative to the folder in which each process was started"
            yield Hit((ZERO, key, "nvme_path"), message, "Write the whole path of a folder on a local drive")


@rule(
    "nvme-key",
    severity="warning",
    bad=zero(3, offload_param={"device": "cpu", "max_in_cpu": 1e9}),
    good=zero(3, offload_param={"device": "cpu"}),
)
def nvme_key(subject: Subject) -> Iterator[Hit]:
    """An NVMe option although nothing goes to NVMe

    `nvme_path`, the buffers, `max_in_cpu`, `pipeline_read`, `pipeline_write` and `fast_init` are read
    when the device is `nvme` and the stage 3, and only then. With `cpu` all of the tensors are in the host's
    memory: no key keeps a part of them there.

    Source: `deepspeed/runtime/zero/stage3.py` (`_configure_offloading`, `_configure_tensor_swapping` and
    `_create_param_groups_fp16_flat_cpu_memory`) and
    `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`.
    """
    for path, idle in subject.unused.items():
        nowhere = idle.acts.when is FAST_INIT and subject.value(*map(str, path[:-1]), "device") != "nvme"
        if idle.acts.when is NVME or nowhere:
            yield Hit(path, f"'{path[-1]}' {idle.reason}", "Remove the key", fix=(Remove(path),))


@rule(
    "nvme-buffer-size",
    stops=True,
    bad=zero(3, offload_param={**_NVME, "buffer_count": 12, "buffer_size": 5e7, "max_in_cpu": 0}),
    good=zero(3, offload_param={**_NVME, "buffer_count": 12, "buffer_size": 7e7, "max_in_cpu": 0}),
    given=_LLAMA,
    needs=("model", "num_gpus"),
)
def nvme_buffer_size(subject: Subject) -> Iterator[Hit]:
    """An NVMe buffer smaller than the largest parameter

    Each rank reads and writes its share of a parameter through one buffer of `offload_param.buffer_size`
    elements. The largest parameter is usually the token embedding. If its share does not fit, DeepSpeed stops
    while the model is divided: "More elements ... than buffer size ...".

    The share shrinks with the number of GPUs, so that a config can work on eight and fail on one.

    Source: `get_buffer` in `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`.
    """
    section, buffers = offload_param_at_the_run(subject), _buffers(subject)
    path = (ZERO, "offload_param", "buffer_size")
    if section is None or buffers is None or subject.is_uncertain(*path):
        return
    if section.buffer_size < buffers.least_size:
        message = (
            f"'buffer_size' {section.buffer_size:,} is less than a rank's share of '{buffers.largest.name}', "
            f"{buffers.size:,} elements"
        )
        place = path if subject.is_set(*path) else path[:2]
        yield Hit(place, message, f'Set "buffer_size" to {buffers.size}', (SetValue(path, buffers.size),))


@rule(
    "nvme-buffer-count",
    severity="warning",
    stops=True,
    bad=zero(3, offload_param={**_NVME, "max_in_cpu": 0}),
    good=zero(3, offload_param={**_NVME, "buffer_count": 12, "max_in_cpu": 0}),
    given=_LLAMA,
    needs=("model", "num_gpus"),
)
def nvme_buffer_count(subject: Subject) -> Iterator[Hit]:
    """Fewer NVMe buffers than a layer has large parameters

    A parameter keeps its buffer while it is in use. Where activations are recomputed (the Trainer's
    `gradient_checkpointing`), all parameters of a layer are in use at once, and the backward pass stops when
    the buffers run out: "Not enough buffers 0 for swapping 1". DeepSpeed's default of 5 does not last for the
    seven matrices of a usual decoder layer. This is an error where a recipe or the arguments of the run ask
    for it.

    `zerokit config` writes as many as the model takes, and `zerokit train` adds them to a ds_config that does
    not say how many. Each of them pins `buffer_size` elements on the host, for every rank.

    Source: `swap_in` in `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`; DeepSpeed issue 3062.
    """
    section, buffers = offload_param_at_the_run(subject), _buffers(subject)
    path = (ZERO, "offload_param", "buffer_count")
    if section is None or buffers is None or subject.is_uncertain(*path):
        return
    if buffers.of_layer <= section.buffer_count:
        return
    stops = _recomputes(subject) and section.buffer_count < buffers.least_count(section.max_in_cpu)
    message = (
        f"{section.buffer_count} buffers for {buffers.of_layer} large parameters in each layer: they "
        f"{'run' if stops else 'may run'} out"
    )
    hint = f'Set "buffer_count" to {buffers.count}'
    fix = (SetValue(path, buffers.count),) if stops else ()
    place = path if subject.is_set(*path) else path[:2]
    yield Hit(place, message, hint, fix, "error" if stops else None)


@rule(
    "nvme-optimizer-buffers",
    stops=True,
    bad={
        **zero(3, offload_optimizer={**_NVME, "buffer_count": 3}),
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    },
    good={
        **zero(3, offload_optimizer={**_NVME, "buffer_count": 4}),
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    },
)
def nvme_optimizer_buffers(subject: Subject) -> Iterator[Hit]:
    """Fewer NVMe buffers than the optimizer has tensors

    To update a sub-group, DeepSpeed reads its parameters, its gradients and the optimizer's states into one
    buffer each: 4 for Adam, 3 for Lion and Adagrad. With fewer the step fails with an assertion. With
    `pipeline_read` the next sub-group's buffers are taken at the same time, and with `pipeline_write` the
    last one's are still in use, so that twice or three times as many are needed as soon as there are several
    sub-groups.

    Source: `swap_in_optimizer_state` in
    `deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py` and
    `deepspeed/runtime/swap_tensor/pipelined_optimizer_swapper.py`.
    """
    section = subject.offload_optimizer
    if subject.stage != 3 or section is None or section.device != "nvme":
        return
    path = (ZERO, "offload_optimizer", "buffer_count")
    if subject.is_uncertain(*path):
        return
    count = section.buffer_count
    optimizer = None if subject.config.optimizer is None else optimizer_spec(subject.config.optimizer.type)
    one = 2 + (optimizer.host_states if optimizer is not None else 0)  # the parameter and its gradient
    all_of_them = one * (1 + section.pipeline_read + section.pipeline_write)
    place = path if subject.is_set(*path) else path[:2]
    if count < one:
        message = f"the optimizer's step reads {one} tensors from NVMe, and 'buffer_count' is {count}"
        yield Hit(place, message, f'Set "buffer_count" to {all_of_them}', (SetValue(path, all_of_them),))
    elif count < all_of_them:
        message = f"reading or writing ahead takes {all_of_them} buffers, and 'buffer_count' is {count}"
        yield Hit(place, message, f'Set "buffer_count" to {all_of_them}', (), "warning")


@rule(
    "nvme-unused",
    severity="warning",
    bad=zero(3, offload_param={**_NVME, "buffer_count": 12}),
    good=zero(3, offload_param={**_NVME, "buffer_count": 12, "max_in_cpu": 0}),
    given=Facts(model=llama_8b, num_gpus=16),
    needs=("model", "num_gpus"),
)
def nvme_unused(subject: Subject) -> Iterator[Hit]:
    """Parameters that never go to NVMe

    Of the parameters that are offloaded to NVMe, the first `max_in_cpu` elements of every rank stay in the
    host's memory, 1e9 unless the file says otherwise. Where that is more than a rank's share of the model,
    the drive is not used for trainable parameters at all.

    Lower `max_in_cpu`, or use the device `cpu`, which is simpler and does the same as what happens now.

    Source: `_create_param_groups_fp16_flat_cpu_memory` and `_move_to_flat_buffer` in
    `deepspeed/runtime/zero/stage3.py`.
    """
    section, buffers = subject.offload_param, _buffers(subject)
    path = (ZERO, "offload_param", "max_in_cpu")
    if section is None or buffers is None or subject.is_uncertain(*path):
        return
    held = sum(buffers.share(tensor) * tensor.count for tensor in buffers.model.tensors)
    if held <= section.max_in_cpu:
        message = (
            f"a rank's share of the model, {format_count(held)} elements, is below 'max_in_cpu' "
            f"{format_count(section.max_in_cpu)}, so all of it stays in the host's memory"
        )
        yield Hit(
            path if subject.is_set(*path) else path[:2],
            message,
            'Lower "max_in_cpu", or use the device "cpu"',
        )
