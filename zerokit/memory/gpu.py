"""GPU memory of an estimate: replay a step on a ZeRO stage and keep the largest moment of each phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from zerokit.config.sections import LeafModule
from zerokit.memory.bf16_optimizer import Bf16Optimizer
from zerokit.memory.bnb_4bit import PACKED, PACKED_CONSTANTS, replicated_bytes, stored_layout
from zerokit.memory.layout import Layout
from zerokit.memory.leaf_modules import with_leaf_modules
from zerokit.memory.model_blocks import ModelCalls, model_calls_of
from zerokit.memory.model_states import ceil_div
from zerokit.memory.recording import RecordedStage, Recorder
from zerokit.memory.replay import Replay, Switches
from zerokit.memory.same_object import SameObject
from zerokit.memory.settings import Settings
from zerokit.memory.sizes import Sizes
from zerokit.memory.stage import PlainTorch, Stage, Stage0
from zerokit.memory.stage_1_2 import Stage1And2, ranks_that_differ
from zerokit.memory.stage_3 import Stage3
from zerokit.memory.term import TERM_KINDS
from zerokit.memory.tiled_mlp import with_tiled_mlps
from zerokit.memory.timeline import Held, Timeline
from zerokit.memory.training_run import TrainingRun
from zerokit.models import ModelShape
from zerokit.reporting.phases import Phase

WORKSPACE_BYTES = 33_554_432
"""32 MiB on Hopper (aten/src/ATen/cuda/CUDABlas.cpp getChosenWorkspaceSize, rounded by the allocator)."""
WORKSPACE = TERM_KINDS["gpu.WORKSPACE"]


@dataclass(frozen=True)
class GpuReplay:
    steady: Held
    """Held between two steps."""
    fullest: dict[Phase, Held]
    """Held at the largest moment of each phase."""
    model_calls: ModelCalls | None
    sizes: Sizes | None
    rank: int
    """Among the ranks of ZeRO."""
    peak_bytes: int
    """The maximum."""


def replay_fullest(run: TrainingRun, layout: Layout, settings: Settings) -> GpuReplay:
    """Replay a step of the run's rank, or of the rank with the fullest GPU."""
    ranks: Sequence[int] = [(run.rank or 0) // run.parallelism.tensor]
    if run.rank is None and settings.wrapper == "zero_1_2" and run.zero_ranks > 1:
        ranks = ranks_that_differ(layout.unpacked, run.zero_ranks)
    sizes = sizes_of_run(run, settings)
    calls = calls_of(run, layout, settings, sizes)
    return max(
        (_replay(run, layout, settings, rank, sizes, calls) for rank in ranks), key=lambda found: found.peak_bytes
    )


def calls_of(run: TrainingRun, layout: Layout, settings: Settings, sizes: Sizes | None) -> ModelCalls | None:
    """The module calls of the model; None if activations are not counted."""
    if sizes is None or isinstance(run.model, int):
        return None
    leaves = run.ds_config.zero_optimization.leaf_module if settings.stage == 3 else None
    return _model_calls(
        *(SameObject(run.model), layout, sizes, leaves and leaves.model_dump_json()),
        replaces_linear=settings.replaces_linear,
        checkpointing=run.gradient_checkpointing,
        tiled=run.tiled_mlp,
    )


@lru_cache(maxsize=128)
def _model_calls(
    model: SameObject[ModelShape], layout: Layout, sizes: Sizes, leaves: str | None, *, tiled: bool, **switches: bool
) -> ModelCalls:
    calls = model_calls_of(model.value, layout, sizes, **switches)
    if tiled:
        calls = with_tiled_mlps(calls, model.value, sizes)
    section = None if leaves is None else LeafModule.model_validate_json(leaves)
    return with_leaf_modules(calls, layout, model.value.model_type, section)


def _replay(
    run: TrainingRun,
    layout: Layout,
    settings: Settings,
    rank: int,
    sizes: Sizes | None,
    model_calls: ModelCalls | None,
) -> GpuReplay:
    stage: Stage
    stored = stored_layout(layout, settings.parameter_bytes)
    whole = replicated_bytes(layout, settings.stage, double_quant=run.double_quant)
    layout = layout.unpacked

    switches = Switches(
        e=settings.parameter_bytes,
        checkpointing=run.gradient_checkpointing,
        offloads_checkpoints=run.activation_offloading,
        chunked_loss=run.chunked_loss,
        replaces_linear=settings.replaces_linear,
    )

    def replay(timeline: Timeline, stage: Stage, sizes: Sizes | None = sizes) -> Replay:
        return Replay(timeline, stage, model_calls, sizes, layout.parameters, switches)

    def start(timeline: Timeline, stage: Stage) -> None:
        timeline.hold(PACKED if settings.stage < 3 else PACKED_CONSTANTS, 1, whole)
        stage.start()
        if sizes is not None:
            timeline.hold(WORKSPACE, WORKSPACE_BYTES, 2)

    timeline, first = Timeline(), Timeline()
    if run.without_deepspeed:
        stage = PlainTorch(timeline, layout, settings, autocast=run.autocast)
    elif settings.stage == 0:
        stage = Stage0(timeline, layout, settings)
    elif settings.wrapper == "bf16":
        stage = Bf16Optimizer(timeline, layout, settings)
    elif settings.stage < 3:
        stage = Stage1And2(timeline, layout, settings, rank, engine_makes_optimizer=run.optimizer is None)
    else:
        calls = replay(timeline, RecordedStage(Recorder(), gathers=True)).recording.fetched
        stage = Stage3(timeline, stored, settings, calls)
        beginner = Stage3(first, stored, settings, calls, is_first=True)
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
    return GpuReplay(timeline.held, fullest, model_calls, sizes, rank, peak_bytes)


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
    sequence, tensor = run.parallelism.sequence, run.parallelism.tensor
    return Sizes(
        e=2 if run.autocast else settings.parameter_bytes,
        h=hidden,
        f=ceil_div(model.intermediate_size, tensor),
        q=heads * head // tensor,
        kv=(model.num_key_value_heads or heads) * head // tensor,
        a=heads // tensor,
        # A tied output matrix stays divided up to the loss; another one gathers the logits.
        vocabulary=ceil_div(model.vocab_size, tensor if run.divides_tied_head else 1),
        batch=batch,
        seq=ceil_div(run.seq_len + _embedded(run), sequence),
        attention=run.attention_used,
        packed=run.packing,
        sequence=sequence,
        tensor=tensor,
    )
