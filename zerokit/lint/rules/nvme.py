"""Buffers and places of NVMe offload, for a given model."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from zerokit.findings import SetValue
from zerokit.lint.examples import Given, llama_8b, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.lint.values_in_force import ZERO, in_force, model_dtype_bytes, share
from zerokit.units import format_count

rule = Rules("offload")
_NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
_LLAMA = Given(model=llama_8b, num_gpus=8)

_TENSORS = {"adam": 4, "adamw": 4, "adagrad": 3, "lion": 3}
"""Of an optimizer's step: the parameter, its gradient and the states."""

_SMALLEST_FILE_BYTES = 2**20
"""Tensors below it stay in memory: `MIN_AIO_BYTES` in `deepspeed/runtime/swap_tensor/utils.py`."""


def _goes_to_nvme(subject: Subject, elements: int) -> bool:
    """Whether a rank's share of a parameter is large enough for a file of its own.

    Source: `swappable_tensor` in `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`.
    """
    block = in_force(subject, "aio", "block_size")
    smallest = max(_SMALLEST_FILE_BYTES, block if isinstance(block, int) else 0)
    return elements * (model_dtype_bytes(subject) or 2) >= smallest


@rule(
    "nvme-buffer-size",
    stops=True,
    bad=zero(3, offload_param={**_NVME, "buffer_count": 12, "buffer_size": 5e7, "max_in_cpu": 0}),
    good=zero(3, offload_param={**_NVME, "buffer_count": 12, "buffer_size": 7e7, "max_in_cpu": 0}),
    given=_LLAMA,
    needs=("model", "num_gpus"),
)
def nvme_buffer_size(subject: Subject) -> Iterator[Hit]:
    """A buffer for NVMe that does not hold the largest parameter

    Each rank reads and writes its share of a parameter through one buffer of `offload_param.buffer_size`
    elements. The largest parameter is usually the token embedding. If its share does not fit, DeepSpeed stops
    while the model is divided: "More elements ... than buffer size ...".

    The share shrinks with the number of GPUs, so that a config can work on eight and fail on one.

    Source: `get_buffer` in `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`.
    """
    section, model = subject.offload_param, subject.run.model
    if subject.stage != 3 or section is None or section.device != "nvme" or model is None:
        return
    assert subject.cluster.num_gpus is not None
    path = (ZERO, "offload_param", "buffer_size")
    if subject.unsure(*path):
        return
    largest = model.largest_tensor
    needed = share(largest.elements, subject.cluster.num_gpus)
    if needed > section.buffer_size and _goes_to_nvme(subject, needed):
        message = (
            f"'buffer_size' {section.buffer_size:,} is less than a rank's share of '{largest.name}', "
            f"{needed:,} elements"
        )
        place = path if subject.sets(*path) else path[:2]
        yield Hit(place, message, f'Set "buffer_size" to {needed}', (SetValue(path, needed),))


@rule(
    "nvme-buffer-count",
    severity="warning",
    bad=zero(3, offload_param={**_NVME, "max_in_cpu": 0}),
    good=zero(3, offload_param={**_NVME, "buffer_count": 12, "max_in_cpu": 0}),
    given=_LLAMA,
    needs=("model", "num_gpus"),
)
def nvme_buffer_count(subject: Subject) -> Iterator[Hit]:
    """Fewer buffers for NVMe than a layer has large parameters

    A parameter keeps its buffer while it is in use. Where activations are recomputed, all parameters of a
    layer are in use at once, and the backward pass stops when the buffers run out: "Not enough buffers 0 for
    swapping 1". DeepSpeed's default of 5 does not last for the seven matrices of a usual decoder layer.

    12 buffers do. Each of them pins `buffer_size` elements on the host, for every rank.

    Source: `swap_in` in `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`; DeepSpeed issue 3062.
    """
    section, model = subject.offload_param, subject.run.model
    if subject.stage != 3 or section is None or section.device != "nvme" or model is None:
        return
    path = (ZERO, "offload_param", "buffer_count")
    if subject.unsure(*path) or model.num_hidden_layers is None:
        return
    assert subject.cluster.num_gpus is not None
    layer = sum(
        tensor.count // model.num_hidden_layers
        for tensor in model.tensors
        if tensor.count >= model.num_hidden_layers
        and _goes_to_nvme(subject, share(tensor.elements, subject.cluster.num_gpus))
    )
    if layer > section.buffer_count:
        message = (
            f"{section.buffer_count} buffers for {layer} large parameters in each layer: they may run out"
        )
        hint = f'Set "buffer_count" to {max(12, layer + 2)}'
        yield Hit(path if subject.sets(*path) else path[:2], message, hint)


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
    """Fewer buffers for NVMe than the optimizer has tensors

    To update a sub-group, DeepSpeed reads its parameters, its gradients and the optimizer's states into one
    buffer each: 4 for Adam, 3 for Lion and Adagrad. With fewer the step fails with an assertion. With
    `pipeline_read` the next sub-group's buffers are taken at the same time, and with `pipeline_write` the
    last one's are still in use, so that twice or three times as many are needed as soon as there are several
    sub-groups.

    Source: `swap_in_optimizer_state` in
    `deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py` and
    `deepspeed/runtime/swap_tensor/pipelined_optimizer_swapper.py`.
    """
    section, optimizer = subject.offload_optimizer, subject.config.optimizer
    if subject.stage != 3 or section is None or section.device != "nvme":
        return
    path = (ZERO, "offload_optimizer", "buffer_count")
    if subject.unsure(*path):
        return
    count = section.buffer_count
    one = _TENSORS.get(optimizer.type.lower(), 2) if optimizer is not None else 2
    all_of_them = one * (1 + section.pipeline_read + section.pipeline_write)
    place = path if subject.sets(*path) else path[:2]
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
    given=Given(model=llama_8b, num_gpus=16),
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
    section, model = subject.offload_param, subject.run.model
    if subject.stage != 3 or section is None or section.device != "nvme" or model is None:
        return
    path = (ZERO, "offload_param", "max_in_cpu")
    if subject.unsure(*path):
        return
    assert subject.cluster.num_gpus is not None
    held = sum(ceil(tensor.elements / subject.cluster.num_gpus) * tensor.count for tensor in model.tensors)
    if held <= section.max_in_cpu:
        message = (
            f"a rank's share of the model, {format_count(held)} elements, is below 'max_in_cpu' "
            f"{format_count(section.max_in_cpu)}, so all of it stays in the host's memory"
        )
        yield Hit(
            path if subject.sets(*path) else path[:2], message, 'Lower "max_in_cpu", or use the device "cpu"'
        )
