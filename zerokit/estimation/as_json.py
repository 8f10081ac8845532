"""The JSON of `zerokit estimate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zerokit.estimation.advice import Advice
from zerokit.estimation.fit import Fit, Limits
from zerokit.memory import Estimate, Term
from zerokit.memory.settings import settings_of


def as_data(
    answer: Estimate, fit: Fit | None = None, limits: Limits | None = None, advice: Sequence[Advice] = ()
) -> dict[str, Any]:
    """One estimate. Bytes are of one GPU or one rank, except keys with `per_node`."""
    run, states, host = answer.run, answer.model_states, answer.host
    data: dict[str, Any] = {
        "model": {
            "name": str(run.model) if isinstance(run.model, int) else run.model.name,
            "num_parameters": answer.num_parameters,
            "num_trainable_parameters": answer.num_trainable_parameters,
        },
        "world_size": run.world_size,
        "zero_stage": "none" if run.without_deepspeed else run.zero_stage,
        "run": _run(answer),
        "model_states": {
            "parameters_bytes": states.parameters_bytes,
            "gradients_bytes": states.gradients_bytes,
            "optimizer_states_bytes": states.optimizer_states_bytes,
        },
        "device": _device(answer),
        "host": {
            "per_rank_bytes": host.peak_bytes,
            "per_node_bytes": host.per_node_bytes,
            "pinned_bytes": host.pinned_bytes,
            "steady_bytes": host.steady_bytes,
            "peak_phase": host.peak_phase,
            "per_node_pinned_bytes": host.per_node_pinned_bytes,
            "components": [
                {**_term(term), "pinned": term.device == "pinned"}
                for device in ("pinned", "pageable")
                for term in answer.terms_of(device)
            ],
        },
        "nvme": {
            "per_node_bytes": answer.nvme.per_node_bytes,
            "per_rank_bytes": answer.nvme.per_rank_bytes,
            "components": [_term(term) for term in answer.terms_of("nvme")],
        },
        "activations_counted": answer.activations_counted,
        "warnings": list(answer.warnings),
    }
    if fit is not None:
        data["fit"] = asdict(fit)
    if advice:
        data["advice"] = [
            {
                "changes": [change.what for change in one.changes],
                "options": [change.how for change in one.changes],
                "fit": asdict(one.fit),
            }
            for one in advice
        ]
    if limits is not None:
        data["largest"] = {
            "micro_batch_size": limits.micro_batch_size,
            "seq_len": limits.seq_len,
            "fewest_gpus": limits.num_gpus,
        }
    return data


def sweep_data(answers: list[tuple[Estimate, Fit | None]]) -> dict[str, Any]:
    return {"sweep": [as_data(answer, fit) for answer, fit in answers]}


def _run(answer: Estimate) -> dict[str, Any]:
    run, settings = answer.run, settings_of(answer.run)
    return {
        "gpu": None if run.cluster.gpu is None else run.cluster.gpu.name,
        "gpus_per_node": run.cluster.gpus_per_node,
        "sequence_parallel": run.parallelism.sequence,
        "tensor_parallel": run.parallelism.tensor,
        "micro_batch_size": run.micro_batch_size,
        "seq_len": run.seq_len,
        "gradient_accumulation_steps": settings.accumulation_steps,
        "gradient_checkpointing": run.gradient_checkpointing,
        "tiled_mlp": run.tiled_mlp,
        "activation_offloading": run.activation_offloading,
        "attention": run.attention_used,
        "attention_reason": run.attention_reason,
        "precision": settings.precision,
        "optimizer": settings.optimizer.kind,
        "optimizer_bytes_per_parameter": settings.optimizer_bytes,
        "offload_optimizer": settings.offload_optimizer,
        "offload_param": settings.offload_param,
        "lora_rank": None if run.lora is None else run.lora.rank,
        "dora": run.lora is not None and run.lora.dora,
        "ia3": run.ia3 is not None,
    }


def _device(answer: Estimate) -> dict[str, Any]:
    device = answer.device
    return {
        "steady_bytes": device.steady_bytes,
        "peak_bytes": device.peak_bytes,
        "peak_phase": device.peak_phase,
        "low_bytes": answer.device_low_bytes,
        "high_bytes": answer.device_high_bytes,
        "by_phase": dict(device.by_phase),
        "components": [_term(term) for term in answer.terms_of("gpu")],
        "overheads": [_term(term) for term in answer.overheads],
    }


def _term(term: Term) -> dict[str, Any]:
    return {
        "name": term.name,
        "bytes": term.bytes,
        "phase": term.phase,
        "formula": term.formula,
        "source": term.source,
        "certainty": term.certainty,
        "low_bytes": term.low,
        "high_bytes": term.high,
        "category": term.category,
        "versions": term.versions,
    }
