"""Chooses the mode of generation by memory, or checks the one that the options name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit import console
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import ConfigError, ZerokitError
from zerokit.generation.ds_config import Engine
from zerokit.generation.model import ModelFiles
from zerokit.generation.options import Options
from zerokit.generation.output import partial_path
from zerokit.generation.requests import Request, rows_at_once
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import gpu_of_torch
from zerokit.hardware.host_memory import host_memory_bytes
from zerokit.memory.generation import GenerationMode, GenerationRun
from zerokit.memory.model_states import ceil_div
from zerokit.models import ModelShape, load_model_shape
from zerokit.models.parallelism import DividedModel, parallelism_misfit
from zerokit.staging import make_folder
from zerokit.step_time.generation import ONE_GPU, Candidate, judge_modes, modes_for, reasons, traffic_per_pass
from zerokit.units import format_bytes, format_rate

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig

_SWAP = "zerokit-weights"
"""Folder for weights on NVMe, beside an output file, else in the current folder."""


@dataclass(frozen=True)
class Work:
    """What a run decodes, as far as memory depends on it."""

    prompt_tokens: int
    """Of the longest prompt."""
    new_tokens: int
    sequences: int
    """Completions of all prompts, each with its beams."""
    beams: int = 1
    """That are decoded for a completion."""

    @classmethod
    def of(cls, requests: Sequence[Request], config: GenerationConfig) -> Work:
        """Return the work of some requests."""
        longest = max(len(request.tokens) for request in requests)
        beams = ceil_div(config.num_beams or 1, config.num_return_sequences or 1)
        completions = sum(request.num_completions for request in requests)
        return cls(longest, config.max_new_tokens, completions * beams, beams)

    def per_rank(self, num_ranks: int) -> int:
        """Sequences of the rank that has most of them."""
        return ceil_div(self.sequences, num_ranks)


@dataclass(frozen=True)
class Free:
    """Free memory of a rank's device, its host's memory, and the card's name for torch."""

    device_bytes: int
    host_bytes: int
    card: str | None


def choose_mode(group: RankGroup, engine: Engine, model: ModelFiles, options: Options, work: Work) -> Engine:
    """Return the engine of the mode that the options name or, with ``auto``, of the fastest one that fits.

    All ranks choose the same; rank 0 prints the mode, what it needs, and why no faster one is possible.

    Raises:
        ConfigError: the model or the ranks cannot have the named mode, or NVMe cannot be used.
    """
    found = group.gather_objects(free_memory(group.ranks))
    least = min(found, key=lambda one: one.device_bytes)
    free = replace(least, host_bytes=min(one.host_bytes for one in found))
    modes = _modes(engine, options, free)
    shape = None if model.num_parameters is None else shape_of(model.config)
    if shape is None:
        _check_tensor(group.ranks, model, modes)
        return engine.in_mode(_mode_by_weights(model, engine, modes, free, group.ranks.world_size))
    run = _generation_run(group.ranks, shape, free, engine, options, work, modes[0])
    is_default = (options.batch_size, options.max_batch_tokens) == (Options.batch_size, None)
    share = work.per_rank(group.ranks.world_size)
    costs = CardCosts(run.cluster) if run.cluster.gpu is not None and run.cluster.gpu.tflops else None
    judged = judge_modes(
        run, free.device_bytes, costs=costs, modes=modes, is_running=True, most_sequences=share if is_default else 0
    )
    best = _best(judged, options)
    if group.ranks.is_main:
        console.note(f"zerokit: {describe(best, judged, free.device_bytes, work.beams)}")
    chosen = best.run.batch_size
    batch = options.batch_size if chosen == run.batch_size else max(1, chosen // work.beams)
    partial = None if options.output is None else partial_path(options.output)
    folder = (partial or Path(_SWAP)).absolute().with_name(_SWAP)

    def in_mode() -> Engine:
        if best.run.nvme:
            make_folder(folder)
        section = best.run.zero_section(pinned=free.card is not None, nvme_path=str(folder))
        return engine.in_mode(best.run.mode, section=section, batch_size=batch)

    return group.together(in_mode)


def _modes(engine: Engine, options: Options, free: Free) -> Sequence[GenerationMode]:
    """The modes to judge. On CPUs the host is the device, so that offload saves nothing."""
    zero = engine.ds_config["zero_optimization"] if options.ds_config else None
    modes = modes_for(options.mode, zero)
    if options.mode == "auto" and free.card is None:
        return [mode for mode in modes if mode != "offloaded"] or modes
    return modes


def _mode_by_weights(
    model: ModelFiles, engine: Engine, modes: Sequence[GenerationMode], free: Free, num_ranks: int
) -> GenerationMode:
    """The mode for a model whose KV cache and workspace cannot be counted."""
    if "replicated" not in modes:
        return modes[0]
    bytes_each = 4 if engine.precision == "fp32" else 2
    # ZeRO-3 cannot partition quantized weights, whose number is not known.
    fits = model.num_parameters is None or bytes_each * model.num_parameters < free.device_bytes
    return "sharded" if not fits and num_ranks > 1 and "sharded" in modes else "replicated"


def _check_tensor(ranks: Ranks, model: ModelFiles, modes: Sequence[GenerationMode]) -> None:
    """Refuse tensor parallelism that DeepSpeed has not; for models that zerokit cannot count."""
    if modes != ["tensor"]:
        return
    text = model.config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", 0)
    divided = DividedModel(text.model_type, heads, getattr(text, "num_key_value_heads", None) or heads)
    misfit = parallelism_misfit(Parallelism(tensor=ranks.world_size), model=divided)
    reason = ONE_GPU if ranks.world_size == 1 else misfit.message if misfit is not None else ""
    if reason:
        raise ConfigError(f"tensor is not possible: {reason}", where="--mode", hint="Use --mode auto")


def _generation_run(
    ranks: Ranks, shape: ModelShape, free: Free, engine: Engine, options: Options, work: Work, mode: GenerationMode
) -> GenerationRun:
    """What the judge of modes needs to know."""
    zero = engine.ds_config["zero_optimization"]
    card = None if free.card is None else gpu_of_torch(free.card)
    rows = rows_at_once(options.batch_size, options.max_batch_tokens, work.prompt_tokens + work.new_tokens)
    return GenerationRun(
        model=shape,
        cluster=Cluster(ranks.world_size, ranks.local_world_size, card, free.host_bytes),
        mode=mode,
        prompt_tokens=work.prompt_tokens,
        new_tokens=work.new_tokens,
        on_cpu=free.card is None,
        batch_size=min(work.beams * rows, max(1, work.per_rank(ranks.world_size))),
        precision=engine.precision,
        zero=zero if options.ds_config is not None and zero["stage"] == 3 else {},
        sequences=work.sequences,
    )


def _best(judged: Sequence[Candidate], options: Options) -> Candidate:
    """The best possible mode; if nothing certainly fits, the one that needs least. ConfigError for a named mode."""
    best = judged[0]
    if options.mode != "auto" and best.memory is None:
        raise ConfigError(f"{options.mode} is not possible: {best.reason}", where="--mode", hint="Use --mode auto")
    if not best.reason:
        return best
    return min((one for one in judged if one.memory), key=lambda one: one.memory.peak, default=best)  # type: ignore[union-attr]


def describe(best: Candidate, judged: Sequence[Candidate], device_bytes: int, beams: int = 1) -> str:
    """The mode in one line: memory, traffic per token, speed, and why faster modes are not possible."""
    run, memory, at_once = best.run, best.memory, max(1, best.run.batch_size // beams)
    assert memory is not None
    parts = [
        f"mode {best.name}, {at_once} at once: {format_bytes(memory.weights)} of weights, "
        f"{format_bytes(memory.kv_cache)} of KV cache and {format_bytes(memory.workspace)} of workspace, "
        f"of {format_bytes(device_bytes)} free per rank"
    ]
    if traffic := traffic_per_pass(run):
        parts.append(f"{format_bytes(traffic // at_once)} of traffic per token")
    if best.time is not None:
        parts.append(f"about {format_rate(best.time.tokens_per_second / beams)}")
    if best.reason:
        parts.append(f"it may not fit: {best.reason}")
    if others := reasons(judged):
        parts.append(f"not possible: {others}")
    return "; ".join(parts)


def shape_of(config: PretrainedConfig) -> ModelShape | None:
    """The model's dimensions; None if its memory cannot be counted."""
    with suppress(ZerokitError):
        return load_model_shape(config.to_dict(), allow_network=False, allow_torch=False)
    return None


def free_memory(ranks: Ranks) -> Free:
    """The free memory of this rank's GPU or, on CPUs, its part of the machine's."""
    import torch
    from deepspeed.accelerator import get_accelerator

    host = int(host_memory_bytes())
    if torch.cuda.is_available():
        free = int(torch.cuda.mem_get_info(ranks.local_rank)[0])
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # cached by torch
        return Free(free, host, torch.cuda.get_device_name(ranks.local_rank))
    return Free(int(min(get_accelerator().available_memory(), host)) // ranks.local_world_size, host, None)
