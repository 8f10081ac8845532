"""What decides whether a rehearsed run is worth starting: warnings that stand below the verdict."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import HAS_BF16
from zerokit.hardware.non_torch_memory import EXPANDABLE_SEGMENTS
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.recording import RankFacts
from zerokit.rehearsal.report.report import DeviceMemory, Fit, RehearsalReport, TimeReport
from zerokit.reporting.verdicts import NEGATIVE, judge
from zerokit.units import GIB, format_bytes, format_seconds, format_span

IN_FP32 = "trains in fp32"
USE_BF16 = '"bf16": {"enabled": true}, with the Trainer bf16=True'
_MOSTLY = 0.5
"""Share of the operations of backward passes in fp32 from which on a run trains in fp32; and of a node's
memory in whole models."""
_LARGE_PART = 0.2
"""Share of a step in communication from which on the network's speed decides."""
_FRAGMENTED = 0.05
"""Share of the peak that expandable segments have to save, if they do not change the verdict."""
_DIFFERS = 0.1
"""Share of a step by which another network has to change it."""


def trains_in_fp32(facts: RankFacts, job: RehearsalJob) -> bool:
    """Whether most matmuls are in fp32 on a card that is faster in bf16."""
    return facts.fp32_share > _MOSTLY and job.device.capability >= HAS_BF16


def precision_line(facts: RankFacts) -> str:
    """The words for a run in fp32."""
    if facts.chooses_fp32:
        return f"{IN_FP32}, as the script or ds_config chooses; bf16 is faster, with half the activations"
    if facts.ds_config is None:
        why, how = "neither autocast nor 16-bit weights are used", "torch.autocast or mixed_precision: bf16"
    else:
        why, how = 'neither bf16 nor fp16 is set, so "auto" is off', USE_BF16
    return f"{IN_FP32}: {why}. Use {how}: it is faster, with half the activations"


def fragmentation_line(device: DeviceMemory, fit: Fit) -> tuple[str, bool] | None:
    """What expandable segments save, and whether they make the verdict better; None if they save little."""
    if device.segments == "expandable" or device.allocator.keys() != {"ordinary", "expandable"}:
        return None
    ordinary, expandable = device.allocator["ordinary"], device.allocator["expandable"]
    saved = ordinary.reserved_peak_bytes - expandable.reserved_peak_bytes
    high = fit.high_bytes - saved
    is_better = judge(fit.low_bytes, high, fit.gpu_memory_bytes) != judge(
        fit.low_bytes, fit.high_bytes, fit.gpu_memory_bytes
    )
    if saved <= 0 or not (is_better or saved > max(_FRAGMENTED * device.peak_bytes, GIB)):
        return None
    unused = format_bytes(ordinary.fragmentation_bytes)
    line = (
        f"torch's allocator reserves {unused} that the run does not use at its peak. Set "
        f"{EXPANDABLE_SEGMENTS}: the GPU then needs "
        f"{format_span(fit.low_bytes, high)}"
    )
    return line, is_better


def whole_model_line(report: RehearsalReport) -> str | None:
    """That the run does not fit because each rank makes the whole model before ZeRO-3 partitions it."""
    whole, host = report.run.whole_model_bytes, report.fit.host
    on_node = whole * report.gpus_per_node
    on_host = host is not None and host.verdict in NEGATIVE and on_node > _MOSTLY * report.host.per_node_peak_bytes
    on_gpu = report.fit.verdict in NEGATIVE and report.device.peak_phase == "init"
    if report.world_size == 1 or not whole or not (on_host or on_gpu):
        return None
    return (
        f"every rank makes the whole model, {format_bytes(whole)}, before ZeRO-3 partitions it: "
        f"{format_bytes(on_node)} on a node. Make TrainingArguments(deepspeed=...), or keep an "
        "HfDeepSpeedConfig(ds_config), before the model is made or loaded, so that transformers makes it in "
        "parts; without transformers make it in deepspeed.zero.Init()"
    )


def network_decides(time: TimeReport, costs: CardCosts) -> bool:
    """Whether a network that is not known may make most of a step's communication."""
    if costs.cluster.num_nodes == 1 or not costs.is_network_assumed:
        return False
    return time.breakdown.communication >= _LARGE_PART * time.step_seconds


def network_line(time: TimeReport, costs: CardCosts, by_network: Mapping[int, float]) -> str | None:
    """How long a step takes with other networks; None if they change little."""
    if not any(abs(taken - time.step_seconds) > _DIFFERS * time.step_seconds for taken in by_network.values()):
        return None
    share = time.breakdown.communication / time.step_seconds
    others = ", ".join(f"{_taken(seconds)} with {speed}" for speed, seconds in by_network.items())
    return (
        f"the network between nodes is assumed, {costs.network_gbit_s:g} Gbit/s of a node, and {share:.0%} "
        f"of the step is communication: it takes {_taken(time.step_seconds)}, or {others} Gbit/s. "
        "Give yours with --network"
    )


def _taken(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds < 1 else format_seconds(seconds)
