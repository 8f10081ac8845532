"""The seconds of generation, and which mode of it is the fastest that fits.

A pass makes one token of each sequence: it reads all weights and the KV cache, and under ZeRO-3 gathers the
weights from other ranks or copies them from the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from zerokit.config.dtypes import TORCH_NAMES
from zerokit.errors import ZerokitError
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.memory.generation import (
    GenerationMemory,
    GenerationMode,
    GenerationRun,
    cached_layers,
    cached_widths,
    generation_memory,
)
from zerokit.memory.settings import settings_of
from zerokit.step_time.layers import Batch
from zerokit.step_time.step import forward_seconds
from zerokit.units import format_bytes

MODES: tuple[GenerationMode, ...] = ("replicated", "tensor", "sharded", "offloaded")
"""Modes to choose from for a model of files, in the order in which they usually are fast."""
_MOST_SEQUENCES = 4096

ONE_GPU = "there is one GPU"
"""Why a mode that divides weights is not possible."""


@dataclass(frozen=True)
class GenerationTime:
    """Seconds of the two kinds of passes."""

    prefill_seconds: float
    """The forward pass of a batch of prompts."""
    pass_seconds: float
    """A pass that makes a token of each sequence, the mean over all of them."""
    tokens_per_second: float
    """New tokens of all ranks, prefill included. Fewer sequences than fit at once leave ranks or rows idle."""


def generation_time(run: GenerationRun, costs: CardCosts) -> GenerationTime:
    """Predict the seconds of a batch that runs to its maximum length.

    Raises:
        ZerokitError: the card's speed is not known, or see :class:`GenerationRun`.
    """
    # Gathered weights are whole in each pass.
    training = (replace(run, mode="replicated", zero={}) if run.mode == "gathered" else run).training_run
    e = 4 if run.precision == "fp32" else 2
    dtype = TORCH_NAMES[run.precision]
    prompts, tokens = (Batch(run.batch_size, length, dtype, last_only=True) for length in (run.prompt_tokens, 1))
    prefill = forward_seconds(training, costs, prompts)
    cached = run.prompt_tokens + run.new_tokens / 2
    ranks = training.parallelism.tensor
    cache = e * run.batch_size * cached * cached_layers(run.model) * sum(cached_widths(run.model)) / ranks
    one = forward_seconds(training, costs, tokens, moved_bytes=cache)
    at_once = run.batch_size * run.cluster.world_size // ranks
    sequences = run.sequences or at_once
    seconds = -(-sequences // at_once) * (prefill + (run.new_tokens - 1) * one)
    return GenerationTime(prefill, one, sequences * run.new_tokens / seconds)


def traffic_per_pass(run: GenerationRun) -> int:
    """Bytes that a rank gets over links, or from the host, in each pass: weights under ZeRO-3, else sums of layers."""
    settings, ranks = settings_of(run.training_run), run.cluster.world_size
    e, model = settings.parameter_bytes, run.model
    if run.mode == "tensor":
        return 2 * (model.num_hidden_layers or 0) * 2 * e * run.batch_size * (model.hidden_size or 0)
    if settings.stage < 3 or run.mode == "gathered":
        return 0
    weights = e * model.num_parameters
    return weights if settings.offload_param != "none" else weights * (ranks - 1) // ranks


@dataclass(frozen=True)
class Candidate:
    """A mode with what it needs, or why it is not possible."""

    run: GenerationRun
    memory: GenerationMemory | None = None
    """None: the model cannot be divided that way."""
    largest_batch: int | None = None
    """Sequences of a rank that fit; None: not known, or not even one."""
    time: GenerationTime | None = None
    """None: the card's speed is not known."""
    reason: str = ""
    """Why it is not possible; empty if it is."""

    @property
    def name(self) -> str:
        """The mode, and whether its weights are on NVMe."""
        return f"{self.run.mode} (NVMe)" if self.run.nvme else self.run.mode


def judge_modes(
    run: GenerationRun,
    device_bytes: int | None,
    *,
    costs: CardCosts | None = None,
    modes: Sequence[GenerationMode] = MODES,
    is_running: bool = False,
    most_sequences: int = 0,
) -> list[Candidate]:
    """Judge each mode; the best possible mode comes first.

    The estimate, a real run and a rehearsed run ask this function.

    Args:
        run: with any mode.
        device_bytes: memory of a GPU, or what is free of it; None: enough.
        costs: of the cluster's cards, if their speed is known. Without it the order of `modes` decides.
        modes: to judge.
        is_running: the CUDA context and the buffers of communication already exist.
        most_sequences: offloaded weights get the largest batch that fits, but no more than this. Ranks of
            tensor parallelism together get the batch of all of them.
    """
    found = []
    for mode in modes:
        one = replace(run, mode=mode, zero=run.zero if mode == run.mode else {}, nvme=False)
        judged = _judge(one, device_bytes, costs, is_running=is_running, most_sequences=most_sequences)
        host = judged.memory and judged.memory.host
        if mode == "offloaded" and not run.zero and host and host.verdict != "fits":
            one = replace(one, nvme=True)
            judged = _judge(one, device_bytes, costs, is_running=is_running, most_sequences=most_sequences)
        found.append(judged)
    return sorted(found, key=lambda one: (bool(one.reason), -one.time.tokens_per_second if one.time else 0.0))


def _judge(
    run: GenerationRun, device_bytes: int | None, costs: CardCosts | None, *, is_running: bool, most_sequences: int
) -> Candidate:
    ranks = run.cluster.world_size
    if ranks == 1 and run.mode in ("sharded", "tensor"):
        return Candidate(run, reason=ONE_GPU)
    if run.mode == "tensor" and run.cluster.num_nodes > 1:
        return Candidate(run, reason="the GPUs are in several machines")

    def needed(batch: int) -> int:
        memory = generation_memory(replace(run, batch_size=batch))
        return memory.fragmented if is_running else memory.high

    try:
        memory = generation_memory(run)
    except ZerokitError as error:
        return Candidate(run, reason=error.message)
    largest = None if device_bytes is None else _largest(needed, device_bytes)
    wanted = most_sequences if run.mode == "offloaded" else ranks * run.batch_size if run.mode == "tensor" else 0
    wanted = min(wanted, run.sequences or wanted)
    if wanted and (largest or device_bytes is None):  # one pass over the weights serves more sequences
        run = replace(run, batch_size=min(largest or wanted, wanted))
        memory = generation_memory(run)
    reason = ""
    need = memory.fragmented if is_running else memory.high
    if device_bytes is not None and need > device_bytes:
        reason = f"needs {format_bytes(need)} of {format_bytes(device_bytes)}"
    elif memory.host.verdict != "fits":
        reason = f"needs {format_bytes(memory.host.needed_high_bytes)} of each host"
    time = None if costs is None else generation_time(run, costs)
    return Candidate(run, memory, largest, time, reason)


def _largest(needed: Callable[[int], int], memory: int) -> int | None:
    """The largest batch that fits `memory`, up to :data:`_MOST_SEQUENCES`; None if none does.

    The need is nearly the maximum of straight lines (blocks of the allocator are rounded): the line between a batch
    that fits and one that does not is mostly above it, and its batch mostly fits too.
    """
    low, high = 1, _MOST_SEQUENCES
    same = 0  # times in a row that the upper end stayed
    least, most = needed(low), needed(high)
    if least > memory:
        return None
    if most <= memory:
        return high
    while high - low > 1:
        step = (memory - least) * (high - low) // (most - least) if same < 4 else (high - low) // 2
        batch = low + min(max(step, 1), high - low - 1)
        more = needed(batch)
        if more > memory:
            high, most, same = batch, more, 0
        else:
            low, least, same = batch, more, same + 1
    return low


def modes_for(mode: GenerationMode | Literal["auto"], zero: Mapping[str, Any] | None) -> Sequence[GenerationMode]:
    """The modes to judge.

    Args:
        mode: as the options name it.
        zero: the section `zero_optimization` of a given ds_config; its stage decides.
    """
    if mode != "auto" or zero is None:
        return MODES if mode == "auto" else [mode]
    if zero.get("stage", 0) == 0:
        return ["replicated"]
    offloads = zero.get("offload_param", {}).get("device", "none") != "none"
    return ["offloaded"] if offloads else ["gathered", "sharded"]


def reasons(judged: Sequence[Candidate]) -> str:
    """Why each mode that usually is faster than the best one is not possible; empty if none is."""
    before = MODES[: MODES.index(judged[0].run.mode)] if judged[0].run.mode in MODES else ()
    return "; ".join(f"{one.name}: {one.reason}" for one in judged if one.reason and one.run.mode in before)
