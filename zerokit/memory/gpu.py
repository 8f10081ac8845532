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
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.recording import Passes, RecordedRun
from zerokit.memory.replay import Switches, recorded_pass
from zerokit.memory.same_object import SameObject
from zerokit.memory.settings import Settings
from zerokit.memory.sizes import Sizes
from zerokit.memory.stage import PlainTorch, Stage, Stage0
from zerokit.memory.stage_1_2 import Stage1And2, ranks_that_differ
from zerokit.memory.stage_3 import Stage3
from zerokit.memory.term import kinds_of
from zerokit.memory.tiled_mlp import with_tiled_mlps
from zerokit.memory.timeline import Held, Timeline
from zerokit.memory.training_run import TrainingRun
from zerokit.models import ModelShape
from zerokit.reporting.phases import Phase

WORKSPACE_BYTES = 33_554_432
"""32 MiB on Hopper (aten/src/ATen/cuda/CUDABlas.cpp getChosenWorkspaceSize, rounded by the allocator)."""
KINDS = kinds_of(__file__)
WORKSPACE = KINDS.WORKSPACE

MOST_ACCUMULATION_STEPS = 3
"""From as many on, the micro-batches in the middle are alike."""


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


def replay_fullest(run: TrainingRun, layout: Layout, settings: Settings) -> GpuReplay:
    """Replay a step of the run's rank, or of the rank with the fullest GPU."""
    ranks: Sequence[int] = [(run.rank or 0) // run.parallelism.tensor]
    if run.rank is None and settings.wrapper == "zero_1_2" and run.zero_ranks > 1:
        ranks = ranks_that_differ(layout.unpacked, run.zero_ranks)
    sizes = sizes_of_run(run, settings)
    calls = calls_of(run, layout, settings, sizes)
    played = ((rank, *_replay(run, layout, settings, rank, sizes, calls)) for rank in ranks)
    rank, timeline, first = max(played, key=lambda one: max(one[1].peak_bytes, one[2].peak_bytes))
    fullest = timeline.fullest
    if first.peak_bytes > timeline.peak_bytes:
        fullest["first pass"] = first.fullest_of_all
    return GpuReplay(timeline.held, fullest, calls, sizes, rank)


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
) -> tuple[Timeline, Timeline]:
    switches = Switches(
        e=settings.parameter_bytes,
        checkpointing=run.gradient_checkpointing,
        offloads_checkpoints=run.activation_offloading,
        chunked_loss=run.chunked_loss,
        replaces_linear=settings.replaces_linear,
    )
    parameters = SameObject(layout.unpacked.parameters)
    gathers = settings.stage == 3 and not run.without_deepspeed
    passes = [recorded_pass(model_calls, sizes, parameters, switches, gathers=gathers)]
    if sizes is not None and run.eval_batch_size is not None:
        batch = dataclasses.replace(sizes, batch=run.eval_batch_size)
        passes.append(recorded_pass(model_calls, batch, parameters, switches, gathers=gathers, trains=False))
    of_stage = _recorded_run(
        SameObject(layout),
        dataclasses.replace(settings, accumulation_steps=min(settings.accumulation_steps, MOST_ACCUMULATION_STEPS)),
        rank,
        Passes(*passes),
        has_workspace=sizes is not None,
        double_quant=run.double_quant,
        engine_makes_optimizer=run.optimizer is None,
        autocast=run.autocast,
        without_deepspeed=run.without_deepspeed,
    )
    step, first_pass = (one.play(*passes) for one in of_stage)
    return step, first_pass


@lru_cache(maxsize=512)
def _recorded_run(
    same_layout: SameObject[Layout],
    settings: Settings,
    rank: int,
    passes: Passes,
    *,
    has_workspace: bool,
    double_quant: bool,
    **switches: bool,
) -> tuple[RecordedRun, RecordedRun]:
    """What a stage does until the second step ends, from which on optimizer states exist; and in its first pass."""
    layout = same_layout.value
    train, *evaluation = passes.each
    packed = replicated_bytes(layout, settings.stage, double_quant=double_quant)

    def begin(*, is_first: bool = False) -> tuple[RecordedRun, Stage]:
        run = RecordedRun()
        calls = train.fetched
        stage = _stage(run, layout, settings, rank, calls, is_first=is_first, **switches)
        run.hold(PACKED if settings.stage < 3 else PACKED_CONSTANTS, 1, packed)
        stage.start()
        run.hold(WORKSPACE, WORKSPACE_BYTES, 2 * has_workspace)
        return run, stage

    def enter_pass(run: RecordedRun, stage: Stage, phase: Phase, *, boundary: bool = False) -> None:
        run.enter(phase)
        stage.begin_pass(boundary=boundary)

    run, stage = begin()
    run.enter("forward")
    stage.make_states()
    before: object = None
    count = settings.accumulation_steps
    for number in range(1, count + 1):
        enter_pass(run, stage, "forward", boundary=number == count)
        if before is not None and before == stage.state:
            break
        before = stage.state
        run.play_pass(stage, train)
        stage.end_backward(boundary=number == count)
    run.enter("step")
    stage.step()
    for number, one in enumerate(evaluation, 1):
        enter_pass(run, stage, "evaluation")
        run.play_pass(stage, one, number)
    run.act("end")

    first_pass = RecordedRun()
    if stage.gathers:
        first_pass, stage = begin(is_first=True)
        enter_pass(first_pass, stage, "forward")
        first_pass.play_pass(stage, train)
        stage.end_backward(boundary=False)
    first_pass.act("end")
    return run, first_pass


def _stage(
    timeline: Timeline,
    layout: Layout,
    settings: Settings,
    rank: int,
    calls: tuple[ModuleCall, ...],
    *,
    is_first: bool,
    engine_makes_optimizer: bool,
    autocast: bool,
    without_deepspeed: bool,
) -> Stage:
    unpacked = layout.unpacked
    if without_deepspeed:
        return PlainTorch(timeline, unpacked, settings, autocast=autocast)
    if settings.stage == 0:
        return Stage0(timeline, unpacked, settings)
    if settings.wrapper == "bf16":
        return Bf16Optimizer(timeline, unpacked, settings)
    if settings.stage < 3:
        return Stage1And2(timeline, unpacked, settings, rank, engine_makes_optimizer=engine_makes_optimizer)
    return Stage3(timeline, stored_layout(layout, settings.parameter_bytes), settings, calls, is_first=is_first)


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
