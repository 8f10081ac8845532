"""GPU memory of an estimate: replay a step on a ZeRO stage and keep the largest moment of each phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.memory.bf16_optimizer import Bf16Optimizer
from zerokit.memory.bnb_4bit import PACKED, PACKED_CONSTANTS, StoredLayout, replicated_bytes
from zerokit.memory.layout import Layout
from zerokit.memory.leaf_modules import with_leaf_modules
from zerokit.memory.model_blocks import ModelCalls, model_calls_of
from zerokit.memory.replay import Replay
from zerokit.memory.settings import Settings
from zerokit.memory.sizes import Sizes
from zerokit.memory.stage import PlainTorch, Stage, Stage0
from zerokit.memory.stage_1_2 import Stage1And2, ranks_that_differ
from zerokit.memory.stage_3 import Stage3
from zerokit.memory.term import TermKind
from zerokit.memory.timeline import Held, Timeline
from zerokit.memory.training_run import TrainingRun
from zerokit.reporting.phases import Phase

WORKSPACE_BYTES = 33_554_432
"""32 MiB on Hopper (aten/src/ATen/cuda/CUDABlas.cpp getChosenWorkspaceSize, rounded by the allocator)."""
WORKSPACE = TermKind(
    "cuBLAS workspaces",
    "other",
    unit="32 MiB",
    count="2",
    source="torch aten/src/ATen/cuda/CUDABlas.cpp (Hopper): threads of the forward and of the backward pass",
    certainty="modelled",
)


@dataclass(frozen=True)
class GpuReplay:
    """The result of the replay."""

    steady: Held
    """Held between two steps."""
    fullest: dict[Phase, Held]
    """Held at the largest moment of each phase."""
    model_calls: ModelCalls | None
    sizes: Sizes | None
    partition: int
    """Elements of the optimizer states on one rank."""
    rank: int
    peak_bytes: int
    """The maximum."""


def replay_fullest(run: TrainingRun, layout: Layout, settings: Settings) -> GpuReplay:
    """Replay a step of the run's rank, or of the rank with the fullest GPU."""
    ranks: Sequence[int] = [run.rank or 0]
    if run.rank is None and settings.wrapper == "zero_1_2" and run.world_size > 1:
        ranks = ranks_that_differ(layout.unpacked, run.world_size)
    sizes = sizes_of_run(run, settings)
    calls = _calls_of(run, layout, settings, sizes)
    return max(
        (_replay(run, layout, settings, rank, sizes, calls) for rank in ranks),
        key=lambda found: found.peak_bytes,
    )


def _calls_of(run: TrainingRun, layout: Layout, settings: Settings, sizes: Sizes | None) -> ModelCalls | None:
    """The module calls of the model; None if activations are not counted."""
    if sizes is None or isinstance(run.model, int):
        return None
    calls = model_calls_of(
        run.model,
        layout,
        sizes,
        replaces_linear=settings.replaces_linear,
        checkpointing=run.gradient_checkpointing,
    )
    if settings.stage < 3:
        return calls
    leaves = run.ds_config.zero_optimization.leaf_module
    return with_leaf_modules(calls, layout, run.model.model_type, leaves)


def _replay(
    run: TrainingRun,
    layout: Layout,
    settings: Settings,
    rank: int,
    sizes: Sizes | None,
    model_calls: ModelCalls | None,
) -> GpuReplay:
    stage: Stage
    stored = StoredLayout(layout, settings.parameter_bytes)
    whole = replicated_bytes(layout, settings.stage, double_quant=run.double_quant)
    layout = layout.unpacked

    def replay(timeline: Timeline, stage: Stage, sizes: Sizes | None = sizes) -> Replay:
        switches: dict[str, Any] = {
            "checkpointing": run.gradient_checkpointing,
            "chunked_loss": run.chunked_loss,
            "replaces_linear": settings.replaces_linear,
        }
        e, parameters = settings.parameter_bytes, layout.parameters
        return Replay(timeline, stage, model_calls, sizes, e=e, parameters=parameters, **switches)

    def start(timeline: Timeline, stage: Stage) -> None:
        timeline.hold(PACKED if settings.stage < 3 else PACKED_CONSTANTS, 1, whole)
        stage.start()
        if sizes is not None:
            timeline.hold(WORKSPACE, WORKSPACE_BYTES, 2)

    timeline, first = Timeline(), Timeline()
    if run.without_deepspeed:
        stage = PlainTorch(timeline, layout, settings, autocast=run.autocast)
        partition = layout.num_trainable
    elif settings.stage == 0:
        stage, partition = Stage0(timeline, layout, settings), layout.num_trainable
    elif settings.wrapper == "bf16":
        divided = Bf16Optimizer(timeline, layout, settings)
        stage, partition = divided, divided.partition
    elif settings.stage < 3:
        flat = Stage1And2(timeline, layout, settings, rank, engine_makes_optimizer=run.optimizer is None)
        stage, partition = flat, flat.partition
    else:
        calls = replay(timeline, Stage()).calls() if model_calls is not None else ()
        shards = Stage3(timeline, stored, settings, calls)
        stage, partition = shards, shards.partition
        beginner = Stage3(first, stored, settings, ())
        start(first, beginner)
        replay(first, beginner).first_pass()
    start(timeline, stage)
    replay(timeline, stage).train(settings.accumulation_steps)
    if sizes is not None and run.eval_batch_size is not None:
        replay(timeline, stage, dataclasses.replace(sizes, batch=run.eval_batch_size)).evaluate()
    fullest = timeline.fullest
    if first.peak_bytes > timeline.peak_bytes:
        fullest["first pass"] = first.fullest_of_all
    peak_bytes = max(first.peak_bytes, timeline.peak_bytes)
    return GpuReplay(timeline.held, fullest, model_calls, sizes, partition, rank, peak_bytes)


def _embedded(run: TrainingRun) -> int:
    """Learned tokens that go through all layers."""
    learned = run.learned_tokens
    return 0 if learned is None or learned.cached else learned.count


def sizes_of_run(run: TrainingRun, settings: Settings) -> Sizes | None:
    """The sizes of a micro-batch; None if activations are not counted."""
    model = run.model
    if isinstance(model, int) or run.seq_len is None:
        return None
    heads, hidden = model.num_attention_heads, model.hidden_size
    if heads is None or hidden is None or model.intermediate_size is None or model.vocab_size is None:
        return None  # not a text model
    batch = run.micro_batch_size
    if batch is None:
        given = run.ds_config.train_micro_batch_size_per_gpu
        batch = given if isinstance(given, int) else 1
    head = model.head_dim or hidden // heads
    return Sizes(
        e=2 if run.autocast else settings.parameter_bytes,
        h=hidden,
        f=model.intermediate_size,
        q=heads * head,
        kv=(model.num_key_value_heads or heads) * head,
        a=heads,
        vocabulary=model.vocab_size,
        batch=batch,
        seq=run.seq_len + _embedded(run),
        attention=run.attention_used,
        packed=run.packing,
    )
