"""What a rule may take for granted about a config: values in force, and a rank's share of things."""

from __future__ import annotations

from math import ceil
from typing import Any

from zerokit.config.base import AUTO
from zerokit.config.base import ZERO as ZERO
from zerokit.config.conditions import Known
from zerokit.config.offload import OffloadParam
from zerokit.lint.subject import Subject
from zerokit.resolving.nvme_buffers import NvmeBuffers


def in_force(subject: Subject, *path: str) -> Any:
    """The value that DeepSpeed reads at `path`: the file's, or else DeepSpeed's default.

    None if a section on the way is absent, if the value is "auto", or if it may stand in a key that was not
    understood: a rule that gets None has nothing to say.
    """
    return Known(subject.config, subject.unsure).value(*path)


def is_set_to(subject: Subject, value: object, *path: str) -> bool:
    """Whether the file itself gives exactly `value` at `path`; ``True`` is not 1."""
    written = subject.written_at(*path)
    return written == value and type(written) is type(value)


def model_dtype_bytes(subject: Subject) -> int | None:
    """Bytes of a parameter or gradient while it trains: 2 in bf16 and fp16, 4 in fp32.

    None where it is "auto" or not certain. transformers and accelerate add a section that is absent.
    Source: `get_data_types` in `deepspeed/runtime/engine.py`.
    """
    if subject.run.target != "deepspeed" and not subject.sets("bf16") and not subject.sets("fp16"):
        return None
    flags = []
    for section in ("bf16", "fp16"):
        if subject.unsure(section, "enabled"):
            return None
        value = getattr(getattr(subject.config, section, None), "enabled", False)
        if value == AUTO:
            return None
        flags.append(value)
    return 2 if any(flags) else 4


def nvme_buffers(subject: Subject) -> NvmeBuffers | None:
    """What the model takes of buffers for parameters on NVMe; None where it or the ranks are not known."""
    model, ranks = subject.run.model, subject.cluster.num_gpus
    if model is None or ranks is None:
        return None
    return NvmeBuffers.under(subject.config.dump(), model, ranks, model_dtype_bytes(subject) or 2)


def offload_param_at_the_run(subject: Subject) -> OffloadParam | None:
    """`subject.offload_param`, for a recipe with the buffers that `zerokit train` adds for its model."""
    section, buffers = subject.offload_param, nvme_buffers(subject)
    if section is None or buffers is None or subject.run.recipe is None:
        return section
    return section.model_copy(update=buffers.missing(subject.config.dump()))


def offloads_optimizer(subject: Subject) -> bool | None:
    """Whether optimizer states leave the GPU; None if the device is "auto" or not certain."""
    device = Known(subject.config, subject.unsure).device("offload_optimizer")
    return None if device is None else device != "none"


def share(elements: int, ranks: int) -> int:
    """One rank's part, in elements, where DeepSpeed pads to a multiple of the number of ranks."""
    return ceil(elements / ranks)


def autotp_size(subject: Subject) -> int:
    """Tensor-parallel ranks; 1 where `tensor_parallel` is absent or off."""
    size = subject.written_at("tensor_parallel", "autotp_size")
    return size if isinstance(size, int) and size > 1 else 1
