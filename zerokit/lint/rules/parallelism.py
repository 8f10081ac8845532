"""Sequence, tensor and pipeline parallelism, and the hybrid engine."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.sections import ExpertParallel
from zerokit.findings import Remove
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.units import quantity


@rule("sequence-parallel-size")
def sequence_parallel_size(subject: Subject) -> Iterator[Hit]:
    """A sequence-parallel size that does not divide the number of GPUs"""
    sequence, data = subject.config.sequence_parallel_size, subject.config.data_parallel_size
    gpus = subject.cluster.num_gpus
    if sequence is None or gpus is None:
        return
    path = ("sequence_parallel_size",)
    if gpus % sequence:
        hint = f"Choose a divisor of {gpus}, or another number of GPUs"
        yield Hit(path, f"'sequence_parallel_size' {sequence} does not divide {quantity(gpus, 'GPU')}", hint)
    elif data is not None and data * sequence != gpus:
        product = f"'data_parallel_size' {data} x 'sequence_parallel_size' {sequence}"
        message = f"{product} is not {quantity(gpus, 'GPU')}"
        yield Hit(("data_parallel_size",), message, f"Write {gpus // sequence}")


@rule("tensor-parallel-sizes")
def tensor_parallel_sizes(subject: Subject) -> Iterator[Hit]:
    """Two different tensor-parallel sizes"""
    size = subject.value("tensor_parallel", "autotp_size")
    other = subject.value("tensor_parallel", "tp", "tp_size")
    path = ("tensor_parallel", "tp", "tp_size")
    if not isinstance(size, int) or not isinstance(other, int) or other in (1, size):
        return
    if size > 1:
        message = f"'tp.tp_size' {other} differs from 'autotp_size' {size}"
        yield Hit(path, message, "Remove the key", fix=(Remove(path),))
    else:
        message = f"'tp.tp_size' {other} {subject.unused[path].reason}"
        yield Hit(path, message, f'Write "autotp_size": {other} in its place', (), "warning")


@rule("tensor-parallel-heads")
def tensor_parallel_heads(subject: Subject) -> Iterator[Hit]:
    """More tensor-parallel ranks than key-value heads"""
    size, model = subject.value("tensor_parallel", "autotp_size"), subject.run.model
    heads = model.num_key_value_heads if model is not None else None
    if isinstance(size, int) and heads is not None and size > heads:
        message = f"'autotp_size' {size} exceeds the model's {heads} key-value heads: the other ranks wait"
        yield Hit(("tensor_parallel", "autotp_size"), message, f"Use at most {heads}")


_HPZ = (ZERO, "zero_hpz_partition_size")


@rule("hpz-divides")
def hpz_divides(subject: Subject) -> Iterator[Hit]:
    """A secondary partition size that does not divide the number of GPUs"""
    size, gpus = subject.zero.zero_hpz_partition_size, subject.cluster.num_gpus
    if subject.stage != 3 or gpus is None or size <= 1:
        return
    if size > gpus:
        message = (
            f"'zero_hpz_partition_size' {size} is more than {quantity(gpus, 'GPU')}, so it becomes {gpus}"
        )
        yield Hit(_HPZ, message, "Use the number of GPUs of a node", (), "warning")
    elif gpus % size:
        message = f"'zero_hpz_partition_size' {size} does not divide {quantity(gpus, 'GPU')}"
        yield Hit(_HPZ, message, "Use the number of GPUs of a node")


@rule("hpz-node")
def hpz_node(subject: Subject) -> Iterator[Hit]:
    """A secondary partition (hpZ) without a benefit"""
    size, gpus, node = (
        subject.zero.zero_hpz_partition_size,
        subject.cluster.num_gpus,
        subject.cluster.gpus_per_node,
    )
    if subject.stage != 3 or gpus is None or not 1 < size <= gpus or gpus % size:
        return
    if size == gpus:
        message = f"a second copy divided among all {gpus} GPUs, as the first is, spares nothing"
        yield Hit(_HPZ, message, "Remove the key", fix=(Remove(_HPZ),))
    elif gpus <= node:
        message = f"a second copy of the parameters spares nothing on one node of {gpus} GPUs"
        yield Hit(_HPZ, message, f"Remove the key; if nodes have {size} GPUs, say --gpus-per-node {size}")
    elif size > node:
        message = f"groups of {size} GPUs span nodes of {node}, so parameters still cross the network"
        yield Hit(_HPZ, message, f'Set "zero_hpz_partition_size" to {node}')


_SECTION = ("expert_parallel",)


def _enabled(subject: Subject) -> ExpertParallel | None:
    section = subject.config.expert_parallel
    return section if section is not None and section.enabled else None


@rule("expert-parallel-experts")
def expert_parallel_experts(subject: Subject) -> Iterator[Hit]:
    """An expert-parallel size that does not divide the number of experts"""
    section, model = _enabled(subject), subject.run.model
    if section is None or model is None:
        return
    if model.experts is None:
        message = f"'expert_parallel' is enabled, and '{model.model_type}' has no experts"
        yield Hit(_SECTION, message, "Remove the section", (), "warning")
        return
    experts = model.experts.num_experts
    if experts % section.autoep_size:
        message = f"'autoep_size' {section.autoep_size} does not divide the model's {experts} experts"
        yield Hit((*_SECTION, "autoep_size"), message, f"Choose a divisor of {experts}")
