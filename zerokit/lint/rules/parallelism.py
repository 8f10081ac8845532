"""Sequence, tensor and pipeline parallelism, and the hybrid engine."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.findings import Remove
from zerokit.lint.examples import Facts, llama_8b, zero
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
