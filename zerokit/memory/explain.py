"""The formula and the source of each name that a replay holds bytes under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zerokit.memory import coordinator, gpu, host, replay, stage, stage_1_2, stage_1_bf16, stage_3
from zerokit.memory.gpu import GpuReplay
from zerokit.memory.layout import Layout
from zerokit.memory.settings import Settings
from zerokit.memory.term import Certainty, Device, Term
from zerokit.reporting.phases import Phase

_ENGINE = "deepspeed/runtime/engine.py"
_STAGE_1_2 = "deepspeed/runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
_PARTITION = "deepspeed/runtime/zero/partition_parameters.py"
_FUSED = "deepspeed/runtime/fp16/fused_optimizer.py"
_MODELS = "transformers models/*/modeling_*.py, saved tensors"
_LOSS = "transformers loss/loss_utils.py ForCausalLMLoss"


@dataclass(frozen=True)
class Formula:
    """How a number of bytes came to be."""

    symbols: str
    unit: int
    """Bytes of one of the things that are counted."""
    source: str
    certainty: Certainty = "exact"
    numbers: str = ""
    """Where the number is not `unit` times a count."""


class Explainer:
    """Makes terms of what a replay held."""

    def __init__(self, layout: Layout, settings: Settings, found: GpuReplay) -> None:
        self._layout, self._settings, self._found = layout, settings, found

    def gpu_term(self, name: str, number: int, phase: Phase) -> Term:
        """A term on the GPU."""
        formula = self._gpu(name, phase)
        return _term(name, number, phase, "gpu", formula)

    def host_term(self, name: str, number: int, phase: Phase, device: Device) -> Term:
        """A term in a rank's host memory or files; `name` without the device."""
        return _term(name, number, phase, device, self._host(name, device))

    def _gpu(self, name: str, phase: Phase) -> Formula:
        maker = _GPU.get(name)
        if maker is not None:
            return maker(self._settings)
        if name == stage.PARAMETERS:
            return self._parameters()
        if name == stage.OPTIMIZER_STATES:
            return self._states()
        if name == stage.GRADIENTS:
            return self._gradients()
        if name == replay.ACTIVATIONS:
            return self._activations(phase)
        if name == replay.LOGITS:
            return self._logits(phase)
        return Formula("bytes", 1, "replay of the step", "modelled")

    def _parameters(self) -> Formula:
        settings, e = self._settings, self._settings.parameter_bytes
        if settings.stage == 3:
            return Formula("e·Σ⌈size/N⌉", e, f"{_PARTITION} Init._partition_param")
        source = f"{_ENGINE} _configure_distributed_model"
        return Formula("e·Φ", e, source if settings.stage == 0 else f"{_STAGE_1_2} __init__")

    def _states(self) -> Formula:
        settings = self._settings
        divided = {0: "Φ", 1: "Φ/N", 2: "Φ/N", 3: "Σ⌈size/N⌉"}[settings.stage]
        master = settings.master_bytes if settings.has_master else 0
        source = {
            0: f"{_FUSED} __init__",
            1: f"{_STAGE_1_2} __init__",
            2: f"{_STAGE_1_2} __init__",
            3: f"{_STAGE_3} _create_fp32_partitions",
        }[settings.stage]
        return Formula(
            f"({master} + {settings.state_bytes})·{divided}",
            settings.optimizer_bytes,
            f"{source}; {settings.optimizer.source}",
            settings.optimizer.certainty,
        )

    def _gradients(self) -> Formula:
        settings, e = self._settings, self._settings.parameter_bytes
        if settings.stage == 3:
            source = f"{_STAGE_3} _setup_for_real_optimizer"
            return Formula("g·Σ⌈size/N⌉", settings.accumulation_bytes, source)
        if settings.stage == 0:
            return Formula("e·Φ", e, _ENGINE)
        return Formula("e·Σ sizes that touch the partition", e, f"{_STAGE_1_2} copy_grads_in_partition")

    def _activations(self, phase: Phase) -> Formula:
        model_calls, sizes = self._found.model_calls, self._found.sizes
        assert model_calls is not None
        assert sizes is not None
        layers = [block for block in model_calls.blocks if block.is_layer]
        parts = [part.symbols for step in layers[0].steps for part in step.saved] if layers else []
        symbols = f"b·s·(L·({' + '.join(parts)}) + final norm)"
        per_layer = int(layers[0].saved_bytes) if layers else 0
        numbers = f"{sizes.batch}·{sizes.seq:,}·({len(layers)}·{per_layer:,} + final norm)"
        if phase == "backward":
            numbers += ", as far as it is still held"
        certainty: Certainty = "modelled" if model_calls.known else "guess"
        return Formula(symbols, 1, _MODELS, certainty, numbers)

    def _logits(self, phase: Phase) -> Formula:
        sizes, e = self._found.sizes, self._settings.parameter_bytes
        assert sizes is not None
        count = f"b·s·V = {{}}·{sizes.batch}·{sizes.seq:,}·{sizes.vocabulary:,}"
        factor = {"forward": "(e + 4)", "loss": "(e + 4 + 4)", "backward": "3·4"}.get(phase, "e")
        if e == 4:
            factor = {"forward": "4", "loss": "(4 + 4)", "backward": "3·4"}.get(phase, "4")
        value = {"(e + 4)": e + 4, "(e + 4 + 4)": e + 8, "3·4": 12, "(4 + 4)": 8, "4": 4, "e": e}[factor]
        symbols, _, numbers = count.partition(" = ")
        return Formula(f"{factor}·{symbols}", 1, _LOSS, "modelled", numbers.format(value))

    def _host(self, name: str, device: Device) -> Formula:
        settings = self._settings
        e, master = settings.parameter_bytes, settings.master_bytes
        divided = "Σ⌈size/N⌉" if settings.stage == 3 else "Φ/N"
        source = f"{_STAGE_3 if settings.stage == 3 else _STAGE_1_2} __init__"
        rounded = ", to a power of two" if device == "pinned" else ""
        table = {
            host.MODEL_COPY: Formula(
                "e·Φ", e, "the script: a model is made on the host before it is moved", "modelled"
            ),
            host.UNTIED: Formula("e·V·h", e, "transformers modeling_utils.py tie_weights", "modelled"),
            host.EARLY_STATES: Formula(
                "e·Φ", e, f"{settings.optimizer.source}, made before the model is moved"
            ),
            host.MASTER: Formula(f"{master}·{divided}{rounded}", master, source),
            host.BIT16: Formula(f"e·Φ/N{rounded}", e, source),
            host.MOMENTS: Formula(
                f"{settings.state_bytes}·{divided}",
                settings.state_bytes or 1,
                settings.optimizer.source,
                settings.optimizer.certainty,
            ),
            host.FP32_GRADIENTS: Formula(
                f"{master}·{divided}{rounded}", master, f"{source.split()[0]} initialize_optimizer_states"
            ),
            host.GRADIENT_SHARDS: Formula(
                f"g·{divided}{rounded}", settings.accumulation_bytes, f"{_STAGE_3} _setup_for_real_optimizer"
            ),
            host.ONE_GRADIENT: Formula(f"e·largest parameter{rounded}", e, source),
            host.ACCUMULATED: Formula(
                f"e·Σ sizes that touch the partition{rounded}",
                e,
                f"{_STAGE_1_2} async_accumulate_grad_in_cpu_via_gpu",
            ),
            host.PARAMETER_SHARDS: Formula(
                f"e·{divided}{rounded}", e, f"{_STAGE_3} _create_param_groups_fp16_flat_cpu_memory"
            ),
            host.SINGLE_SHARDS: Formula(
                f"e·Σ⌈size/N⌉{', each' + rounded[1:] if rounded else ''}",
                e,
                f"{_PARTITION} Init._partition_param",
            ),
            host.CACHED: Formula("what was pinned and freed", 1, "torch CachingHostAllocator"),
            host.OVERFLOW: Formula(
                f"(g + 1)·{divided}", settings.accumulation_bytes + 1, f"{_STAGE_3} has_overflow"
            ),
            host.STEP: Formula(f"2·{master}·{divided}", master, settings.optimizer.source, "modelled"),
            host.STAGING: Formula("what is copied before it is pinned or moved", 1, source),
        }
        if device == "nvme":
            return self._file(name)
        table |= self._swapping()
        return table.get(name, Formula("bytes", 1, source))

    def _swapping(self) -> dict[str, Formula]:
        e = self._settings.parameter_bytes
        swapper = "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py"
        return {
            host.SWAP_BUFFERS: Formula(
                "buffer_count·4·largest sub-group",
                4,
                "deepspeed/runtime/swap_tensor/utils.py SwapBufferManager",
            ),
            host.PARAMETER_BUFFERS: Formula("buffer_count·e·buffer_size", e, swapper),
            host.WRITE_BUFFER: Formula(
                "e·Σ whole sizes of the largest sub-group",
                e,
                f"{swapper} reserve_partitioned_swap_space",
            ),
        }

    def _file(self, name: str) -> Formula:
        settings, e = self._settings, self._settings.parameter_bytes
        files = "deepspeed/runtime/swap_tensor/optimizer_utils.py"
        table = {
            "parameters": Formula(
                "e·Σ⌈size/N⌉ of shards from 1 MiB",
                e,
                "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py",
            ),
            "optimizer states": Formula(
                f"{settings.optimizer_bytes}·Σ⌈size/N⌉", settings.optimizer_bytes, files
            ),
            "gradients": Formula("4·Σ⌈size/N⌉ of shards from 1 MiB", 4, files),
        }
        return table[name]


def _term(name: str, number: int, phase: Phase, device: Device, formula: Formula) -> Term:
    numbers = formula.numbers
    if not numbers:
        numbers = f"{formula.unit}·{number // formula.unit:,}" if formula.unit > 1 else f"{number:,}"
    return Term(
        name, number, phase, formula.symbols, numbers, formula.source, device, certainty=formula.certainty
    )


_GPU: dict[str, Callable[[Settings], Formula]] = {
    stage.NEW_GRADIENT: lambda s: Formula("e·size", s.parameter_bytes, "autograd"),
    stage.STEP_GRADIENTS: lambda s: Formula(
        {0: "(4 + 4)·Φ", 1: "(e + cast)·Φ/N", 2: "(e + cast)·Φ/N", 3: "(e + cast)·min(sub_group_size, Φ/N)"}[
            s.stage
        ],
        1,
        {0: f"{_FUSED} step", 1: f"{_STAGE_1_2} step", 2: f"{_STAGE_1_2} step"}.get(
            s.stage, f"{_STAGE_3} _prepare_fp32_grad_for_sub_group"
        ),
    ),
    stage.OPTIMIZER_STEP: lambda s: Formula(
        "temporary copies of states", 4, s.optimizer.source, s.optimizer.certainty
    ),
    stage.FLAT_COPY: lambda s: Formula(
        {0: "e·min(Φ, 5e8)"}.get(s.stage, "e·elements in the bucket"),
        s.parameter_bytes,
        {
            0: f"{_ENGINE} allreduce_bucket",
            3: "deepspeed/runtime/comm/coalesced_collectives.py reduce_scatter_coalesced",
        }.get(s.stage, f"{_STAGE_1_2} allreduce_bucket"),
    ),
    stage_1_2.REDUCE_BUCKET: lambda s: Formula(
        "2·e·B" if s.stage < 3 and s.overlap_comm else "e·B",
        s.parameter_bytes,
        f"{_STAGE_3} _setup_for_real_optimizer" if s.stage == 3 else f"{_STAGE_1_2} setup_buckets",
    ),
    stage_1_2.NORM: lambda s: Formula(
        "8·largest gradient slice", 8, f"{_STAGE_3 if s.stage == 3 else _STAGE_1_2} get_grad_norm_direct"
    ),
    stage_1_2.OFFLOAD_BUFFER: lambda s: Formula(
        "e·largest parameter", s.parameter_bytes, f"{_STAGE_1_2} __init__"
    ),
    stage_1_2.FLAT: lambda s: Formula(
        "e·Φ", s.parameter_bytes, f"{_STAGE_1_2} flatten_dense_tensors_aligned"
    ),
    stage_1_2.FIRST_STATES: lambda s: Formula(
        "e·Φ",
        s.parameter_bytes,
        f"{_ENGINE} basic_optimizer, which is kept after {_STAGE_1_2} has made another",
    ),
    stage_1_2.COMPACT: lambda s: Formula("4·Φ/N", 4, f"{_STAGE_1_2} _build_compact_grad_partition_buffer"),
    stage_1_bf16.WHOLE_GRADIENTS: lambda s: Formula(
        "4·Φ", s.accumulation_bytes, "deepspeed/runtime/bf16_optimizer.py _setup_for_real_optimizer"
    ),
    stage_1_bf16.CAST: lambda s: Formula(
        "4·largest parameter", s.accumulation_bytes, "deepspeed/runtime/bf16_optimizer.py _update_hp_grad"
    ),
    "clones of parameters": lambda s: Formula("2·e·Φ", s.parameter_bytes, f"{_FUSED} __init__"),
    stage_3.PERSISTENT: lambda s: Formula(
        f"e·Σ sizes up to {s.persistence_threshold:,}",
        s.parameter_bytes,
        "deepspeed/runtime/zero/parameter_offload.py mark_persistent_parameters",
    ),
    stage_3.OVERFLOW: lambda s: Formula("(g + 1)·Φ/N", s.accumulation_bytes + 1, f"{_STAGE_3} has_overflow"),
    stage_3.OFFLOADED_GRADIENTS: lambda s: Formula(
        "shards of a bucket, cast", 1, f"{_STAGE_3} partition_grads"
    ),
    coordinator.GATHERED: lambda s: Formula(
        "e·Σ sizes gathered at that moment",
        s.parameter_bytes,
        f"{_COORDINATOR} fetch_sub_module, release_sub_module",
    ),
    coordinator.KEPT_BY_AUTOGRAD: lambda s: Formula(
        "e·Σ sizes of experts and other weights outside torch.nn.Linear",
        s.parameter_bytes,
        "autograd; deepspeed/runtime/zero/linear.py LinearFunctionForZeroStage3 saves others from it",
    ),
    coordinator.GATHER_BUFFERS: lambda s: Formula(
        "e·Σ sizes in flight", s.parameter_bytes, f"{_PARTITION} all_gather_coalesced"
    ),
    coordinator.COPIES_TO_GPU: lambda s: Formula(
        "e·Σ⌈size/N⌉ in flight", s.parameter_bytes, f"{_PARTITION} all_gather_coalesced"
    ),
    replay.CHECKPOINTS: lambda s: Formula(
        "L·e·b·s·h", s.parameter_bytes, "torch utils/checkpoint.py", "modelled"
    ),
    replay.WORK: lambda s: Formula("results of one call that are not kept", 1, _MODELS, "modelled"),
    replay.ACTIVATION_GRADIENTS: lambda s: Formula("gradients within one call", 1, _MODELS, "modelled"),
    replay.TIED_GRADIENT: lambda s: Formula(
        "e·V·h", s.parameter_bytes, "autograd: it waits for that of the embedding"
    ),
    gpu.WORKSPACE: lambda s: Formula(
        "2·32 MiB", 1, "torch aten/src/ATen/cuda/CUDABlas.cpp (Hopper)", "modelled"
    ),
}
