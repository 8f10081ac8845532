"""Offload to NVMe: the stage, the folder, the keys, and the buffers for a given model."""

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.optimizers import optimizer_spec
from zerokit.findings import SetValue
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject, nvme_buffers, offload_param_at_the_run
from zerokit.resolving.nvme_buffers import NvmeBuffers
from zerokit.units import format_count


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


@rule("nvme-relative-path")
def nvme_relative_path(subject: Subject) -> Iterator[Hit]:
    """A relative 'nvme_path'"""
    for key, section in subject.offloads.items():
        path = section.nvme_path
        acts = (ZERO, key, "nvme_path") not in subject.unused
        if section.device == "nvme" and acts and path not in (None, "auto") and not path.startswith("/"):
            message = f"'nvme_path' \"{path}\" is relative to the folder in which each process was started"
            yield Hit((ZERO, key, "nvme_path"), message, "Write the whole path of a folder on a local drive")


@rule("nvme-buffer-size")
def nvme_buffer_size(subject: Subject) -> Iterator[Hit]:
    """An NVMe buffer smaller than the largest parameter"""
    section, buffers = offload_param_at_the_run(subject), _buffers(subject)
    path = (ZERO, "offload_param", "buffer_size")
    if section is None or buffers is None or subject.is_uncertain(*path):
        return
    if section.buffer_size < buffers.least_size:
        message = (
            f"'buffer_size' {section.buffer_size:,} is less than a rank's share of '{buffers.largest.name}', "
            f"{buffers.size:,} elements"
        )
        fix = (SetValue(path, buffers.size),)
        yield Hit(subject.nearest_set(*path), message, f'Set "buffer_size" to {buffers.size}', fix)


@rule("nvme-buffer-count")
def nvme_buffer_count(subject: Subject) -> Iterator[Hit]:
    """Fewer NVMe buffers than a layer has large parameters"""
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
    yield Hit(subject.nearest_set(*path), message, hint, fix, "error" if stops else None)


@rule("nvme-optimizer-buffers")
def nvme_optimizer_buffers(subject: Subject) -> Iterator[Hit]:
    """Fewer NVMe buffers than the optimizer has tensors"""
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
    place = subject.nearest_set(*path)
    if count < one:
        message = f"the optimizer's step reads {one} tensors from NVMe, and 'buffer_count' is {count}"
        yield Hit(place, message, f'Set "buffer_count" to {all_of_them}', (SetValue(path, all_of_them),))
    elif count < all_of_them:
        message = f"reading or writing ahead takes {all_of_them} buffers, and 'buffer_count' is {count}"
        yield Hit(place, message, f'Set "buffer_count" to {all_of_them}', (), "warning")


@rule("nvme-unused")
def nvme_unused(subject: Subject) -> Iterator[Hit]:
    """Parameters that never go to NVMe"""
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
        yield Hit(subject.nearest_set(*path), message, 'Lower "max_in_cpu", or use the device "cpu"')
