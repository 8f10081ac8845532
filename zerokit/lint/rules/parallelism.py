"""Sequence, tensor and pipeline parallelism, and the hybrid engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import ZERO
from zerokit.config.expert_parallel import ExpertParallel
from zerokit.findings import Remove
from zerokit.lint.examples import Facts, llama_8b, mixture_of_experts, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.units import quantity

rule = Rules("parallelism")


@rule(
    "sequence-parallel-size",
    stops=True,
    bad={**zero(1), "sequence_parallel_size": 3},
    good={**zero(1), "sequence_parallel_size": 4},
    given={"num_gpus": 8},
    needs=("num_gpus",),
)
def sequence_parallel_size(subject: Subject) -> Iterator[Hit]:
    """A sequence-parallel size that does not divide the number of GPUs

    Under sequence parallelism as many ranks as `sequence_parallel_size` work on one sequence, and the rest of
    the GPUs see other samples. DeepSpeed divides one number by the other without looking at the remainder: 8
    GPUs and a size of 3 make 2.667 data-parallel ranks, and batch sizes that are no whole numbers. With
    `data_parallel_size` set too, the product of both has to be the number of GPUs, or DeepSpeed stops when
    training starts.

    Source: `DeepSpeedConfig.__init__` in `deepspeed/runtime/config.py`; `initialize` in
    `deepspeed/__init__.py`.
    """
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


@rule(
    "tensor-parallel-sizes",
    stops=True,
    bad={**zero(1), "tensor_parallel": {"autotp_size": 4, "tp": {"tp_size": 2}}},
    good={**zero(1), "tensor_parallel": {"autotp_size": 4}},
)
def tensor_parallel_sizes(subject: Subject) -> Iterator[Hit]:
    """Two different tensor-parallel sizes

    Training reads `tensor_parallel.autotp_size`, and refuses a `tp.tp_size` that is neither 1 nor the same.
    Without `autotp_size` the model is not divided at all, whatever `tp.tp_size` says.

    Source: `_apply_autotp_partitioning` in `deepspeed/runtime/engine.py`.
    """
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


@rule(
    "tensor-parallel-heads",
    severity="warning",
    bad={**zero(1), "tensor_parallel": {"autotp_size": 16}},
    good={**zero(1), "tensor_parallel": {"autotp_size": 8}},
    given=Facts(model=llama_8b),
    needs=("model",),
)
def tensor_parallel_heads(subject: Subject) -> Iterator[Hit]:
    """More tensor-parallel ranks than key-value heads

    AutoTP divides attention by its key-value heads. Ranks beyond their number hold no part of attention and
    wait for the others in every layer. The result is correct, and DeepSpeed's log mentions it.

    Source: `_apply_autotp_partitioning` in `deepspeed/runtime/engine.py`.
    """
    size, model = subject.value("tensor_parallel", "autotp_size"), subject.run.model
    heads = model.num_key_value_heads if model is not None else None
    if isinstance(size, int) and heads is not None and size > heads:
        message = f"'autotp_size' {size} exceeds the model's {heads} key-value heads: the other ranks wait"
        yield Hit(("tensor_parallel", "autotp_size"), message, f"Use at most {heads}")


_HPZ = (ZERO, "zero_hpz_partition_size")
_QGZ = (ZERO, "zero_quantized_gradients")


@rule(
    "hpz-divides",
    stops=True,
    bad=zero(3, zero_hpz_partition_size=3),
    good=zero(3, zero_hpz_partition_size=8),
    given={"num_gpus": 16},
    needs=("num_gpus",),
)
def hpz_divides(subject: Subject) -> Iterator[Hit]:
    """A secondary partition size that does not divide the number of GPUs

    `zero_hpz_partition_size` GPUs share a second copy of the parameters. DeepSpeed asserts that it divides
    the number of GPUs, when training starts. A size above that number becomes that number.

    Source: `_create_zero_param_parallel_group` in `deepspeed/utils/groups.py`.
    """
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


@rule(
    "hpz-node",
    severity="warning",
    bad=zero(3, zero_hpz_partition_size=16),
    good=zero(3, zero_hpz_partition_size=8),
    given={"num_gpus": 32, "gpus_per_node": 8},
    needs=("num_gpus",),
)
def hpz_node(subject: Subject) -> Iterator[Hit]:
    """A secondary partition (hpZ) without a benefit

    The second copy of the parameters is there so that the backward pass gathers them inside a node, over
    NVLink rather than over the network. Groups larger than a node gather over the network again, and on a
    single node the second copy saves no network and costs memory: a second share of the model on each GPU.

    Set it to the number of GPUs of a node, and leave it out on a single node.

    Source: `_partition_param_sec` in `deepspeed/runtime/zero/partition_parameters.py`; the ZeRO++ paper,
    section 3.2.
    """
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


@rule(
    "quantized-gradients-node",
    severity="warning",
    bad=zero(3, zero_quantized_gradients=True),
    good=zero(3),
    given={"num_gpus": 8, "gpus_per_node": 8},
    needs=("num_gpus",),
)
def quantized_gradients_node(subject: Subject) -> Iterator[Hit]:
    """Quantized gradients on a single node

    DeepSpeed reduces gradients in 4 bits only if the run has more than one node. On one node it uses the
    ordinary reduce-scatter and reports nothing. On several it counts as many GPUs for each as this process
    sees, and fails if they do not come out even.

    Source: `__avg_scatter_grads` in `deepspeed/runtime/zero/stage3.py`; `_get_local_all_to_all_group` in
    `deepspeed/utils/groups.py`.
    """
    gpus, node = subject.cluster.num_gpus, subject.cluster.gpus_per_node
    if subject.stage != 3 or not subject.zero.zero_quantized_gradients or gpus is None:
        return
    if gpus <= node:
        message = f"on one node of {quantity(gpus, 'GPU')} gradients are not quantised"
        yield Hit(_QGZ, message, "Remove the key; if nodes have fewer GPUs, say --gpus-per-node")
    elif gpus % node:
        message = f"quantised gradients need full nodes: {gpus} GPUs are no multiple of {node} per node"
        yield Hit(_QGZ, message, f"Use a multiple of {node} GPUs, or remove the key")


_SECTION = ("expert_parallel",)


def _with(**keys: Any) -> dict[str, Any]:
    return {**zero(1), "expert_parallel": {"enabled": True, **keys}}


def _enabled(subject: Subject) -> ExpertParallel | None:
    section = subject.config.expert_parallel
    return section if section is not None and section.enabled else None


@rule(
    "expert-parallel-experts",
    stops=True,
    bad=_with(autoep_size=3),
    good=_with(autoep_size=8),
    given=Facts(model=mixture_of_experts),
    needs=("model",),
)
def expert_parallel_experts(subject: Subject) -> Iterator[Hit]:
    """An expert-parallel size that does not divide the number of experts

    Each rank holds equally many whole experts, so `autoep_size` has to divide their number. DeepSpeed refuses
    it otherwise once it has inspected the model's layers. A dense model has none to divide.

    Source: `validate_autoep_post_detection` in `deepspeed/module_inject/auto_ep_config.py`.
    """
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
