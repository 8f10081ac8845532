"""The output of ``zerokit checkpoint show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerokit.reporting.terminal import show as print_parts
from zerokit.reporting.terminal import show_rows
from zerokit.units import format_bytes, quantity

if TYPE_CHECKING:
    from zerokit.checkpoint.saved_states import CheckpointInfo
    from zerokit.checkpoint.summary import Summary


def as_data(summary: Summary) -> dict[str, Any]:
    facts, checkpoint = summary.facts, summary.checkpoint
    tensors = checkpoint.tensors() if checkpoint is not None else {}
    return {
        "folder": str(facts.folder),
        "complete": summary.problem is None,
        "missing": str(summary.problem) if summary.problem is not None else None,
        "zero_stage": facts.stage,
        "universal": facts.universal,
        "world_size": facts.num_ranks * facts.tensor_parallel * (facts.pipeline_stages or 1),
        "data_parallel": facts.num_ranks,
        "tensor_parallel": facts.tensor_parallel,
        "pipeline_stages": facts.pipeline_stages,
        "step": facts.step,
        "deepspeed_version": facts.version,
        "dtype": facts.dtype,
        "adapter": summary.is_adapter,
        "bytes": summary.nbytes,
        "num_parameters": sum(tensor.numel for tensor in tensors.values()),
        "num_trained_parameters": sum(one.numel for one in checkpoint.masters.values()) if checkpoint else 0,
        "tied": dict(checkpoint.aliases) if checkpoint else {},
        "tensors": [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in tensors.values()],
    }


def print_text(summary: Summary) -> None:
    facts, data = summary.facts, as_data(summary)
    kind = "universal" if facts.universal else f"ZeRO stage {facts.stage}" if facts.stage else "no ZeRO"
    rows = [
        ("folder", str(facts.folder)),
        ("kind", f"{kind}{', an adapter' if summary.is_adapter else ''}"),
        ("saved by", f"{_ranks(facts)}, DeepSpeed {facts.version or '(not said)'}"),
        ("step", f"{facts.step:,}" if facts.step is not None else "not said"),
        ("computes in", facts.dtype or "not said"),
        ("files", format_bytes(summary.nbytes)),
    ]
    if summary.checkpoint is not None:
        trained = data["num_trained_parameters"]
        types = sorted({tensor["dtype"] for tensor in data["tensors"]})
        rows += [
            ("tensors", f"{len(data['tensors']):,} ({data['num_parameters']:,} elements), in {', '.join(types)}"),
            ("trained", f"{trained:,} elements" if trained else "not said"),
            *(("tied", f"{name} is {of}") for name, of in data["tied"].items()),
            ("complete", "yes, by the headers of its files; 'zerokit checkpoint verify' reads all of them"),
        ]
    show_rows(rows)
    if summary.problem is not None:
        print_parts([f"not complete: {summary.problem}"])


def _ranks(facts: CheckpointInfo) -> str:
    tensors = f" x {facts.tensor_parallel} of tensor parallelism" if facts.tensor_parallel > 1 else ""
    stages = f" x {facts.pipeline_stages} of a pipeline" if facts.pipeline_stages is not None else ""
    return f"{quantity(facts.num_ranks, 'rank')}{tensors}{stages}"
