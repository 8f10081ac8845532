"""Sequence, tensor and pipeline parallelism, and the hybrid engine."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.findings import Remove
from zerokit.lint.examples import Facts, llama_8b, zero
from zerokit.lint.rule import Hit, Rules, unused_key
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
    "data-parallel-size",
    severity="warning",
    bad={**zero(1), "data_parallel_size": 4},
    good={**zero(1), "data_parallel_size": 4, "sequence_parallel_size": 2},
)
def data_parallel_size(subject: Subject) -> Iterator[Hit]:
    """'data_parallel_size' without 'sequence_parallel_size'

    The key is read together with `sequence_parallel_size` only, to lay out the ranks of both. By itself it
    changes nothing: all GPUs are data-parallel ranks.

    Source: `initialize` in `deepspeed/__init__.py`.
    """
    yield from unused_key(subject, ("data_parallel_size",))


@rule(
    "tensor-parallel-size",
    stops=True,
    bad={**zero(1), "tensor_parallel": {"autotp_size": 3}},
    good={**zero(1), "tensor_parallel": {"autotp_size": 4}},
    given={"num_gpus": 8},
    needs=("num_gpus",),
)
def tensor_parallel_size(subject: Subject) -> Iterator[Hit]:
    """A tensor-parallel size that does not divide the number of GPUs

    `tensor_parallel.autotp_size` ranks hold one copy of the model between them, so it has to divide the
    number of GPUs. Otherwise DeepSpeed cannot lay out the ranks and stops when training starts, in some cases
    with an assertion that has no text.

    Source: `_init_tp_mesh_device` in `deepspeed/utils/groups.py`.
    """
    size, gpus = subject.value("tensor_parallel", "autotp_size"), subject.cluster.num_gpus
    if isinstance(size, int) and size > 1 and gpus is not None and gpus % size:
        message = f"'autotp_size' {size} does not divide {quantity(gpus, 'GPU')}"
        hint = f"Choose a divisor of {gpus}, or another number of GPUs"
        yield Hit(("tensor_parallel", "autotp_size"), message, hint)


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


@rule(
    "pipeline-section",
    severity="warning",
    bad={**zero(3), "pipeline": {"activation_checkpoint_interval": 1}},
    good={**zero(1), "pipeline": {"activation_checkpoint_interval": 1}},
)
def pipeline_section(subject: Subject) -> Iterator[Hit]:
    """Pipeline options without a pipeline

    The section `pipeline` is read by the engine of a model that the script made a `PipelineModule`. That
    engine refuses ZeRO stages 2 and 3, because they divide gradients while a pipeline still adds to them. In
    any other engine, which includes the Trainer's and accelerate's, the section does nothing.

    Source: `PipelineEngine.__init__` in `deepspeed/runtime/pipe/engine.py`.
    """
    idle = subject.unused.get(("pipeline",))
    if idle is not None:
        hint = "Use stage 1, or remove the section" if idle.by_stage else "Remove the section"
        yield Hit(("pipeline",), f"'pipeline' {idle.reason}", hint)


@rule(
    "hybrid-engine-size",
    bad={**zero(3), "hybrid_engine": {"enabled": True, "inference_tp_size": 3}},
    good={**zero(3), "hybrid_engine": {"enabled": True, "inference_tp_size": 4}},
    given={"num_gpus": 8},
    needs=("num_gpus",),
)
def hybrid_engine_size(subject: Subject) -> Iterator[Hit]:
    """A hybrid-engine size that does not divide the number of GPUs

    For generation the hybrid engine puts ranks into groups of `inference_tp_size`. Ranks that are left over
    are in no group, and generation fails on them while the others wait.

    Source: `create_inference_module` in `deepspeed/runtime/hybrid_engine.py`.
    """
    size, gpus = subject.value("hybrid_engine", "inference_tp_size"), subject.cluster.num_gpus
    if subject.value("hybrid_engine", "enabled") is not True or not isinstance(size, int):
        return
    if gpus is not None and size > 1 and gpus % size:
        message = f"'inference_tp_size' {size} does not divide {quantity(gpus, 'GPU')}"
        yield Hit(("hybrid_engine", "inference_tp_size"), message, f"Choose a divisor of {gpus}")


@rule(
    "hybrid-engine-off",
    severity="warning",
    bad={**zero(3), "hybrid_engine": {"max_out_tokens": 1024}},
    good={**zero(3), "hybrid_engine": {"enabled": True, "max_out_tokens": 1024}},
)
def hybrid_engine_off(subject: Subject) -> Iterator[Hit]:
    """Options of a hybrid engine that is off

    The hybrid engine is off unless `enabled` is true. The section alone does not switch it on, and its other
    keys do nothing.

    Source: `HybridEngineConfig` in `deepspeed/runtime/config.py`; `initialize` in `deepspeed/__init__.py`.
    """
    if any(path[0] == "hybrid_engine" for path in subject.unused):
        message = "'hybrid_engine' is off without \"enabled\": true, and its other keys do nothing"
        yield Hit(("hybrid_engine",), message, 'Add "enabled": true, or remove the section')
