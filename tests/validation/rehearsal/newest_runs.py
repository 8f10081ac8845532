"""How the newest published runs are rehearsed: their engines and configs, by where they were published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.validation.hardware.published_throughput import Row
from tests.validation.rehearsal import published_runs
from tests.validation.rehearsal.newest_models import newest_model, width_of
from tests.validation.rehearsal.published_runs import Run, by_deepspeed, machines_of, zero_of

_AWS_GBIT_S = 25
"""AWS lists g4dn.4xlarge and g5.4xlarge with up to 25 Gbit/s."""


def run_of(row: Row) -> Run | None:
    """How a row of any group is rehearsed; None if its model's sizes are not known here."""
    for word, make in _BY_SOURCE.items():
        if word in str(row["source"]):
            return make(row, newest_model(row))
    return published_runs.run_of(row)


def _offloaded(row: Row, *, pinned: bool) -> dict[str, Any]:
    """The sections of the config for what the row offloads."""
    section = {"device": "cpu", "pin_memory": pinned}
    return {f"offload_{what}": section for what in ("optimizer", "param") if row.get(f"offload_{what}")}


def _ran(row: Row, model: dict[str, Any], assumed: list[str], zero: Mapping[str, Any], **more: Any) -> Run:
    """DeepSpeed's engine by the row's precision and checkpoints; of these, all that torch 1 had.

    Args:
        zero: the config's section for ZeRO, without the stage.
        more: of `by_deepspeed`.
    """
    defaults: dict[str, Any] = {
        "precision": row["precision"],
        "attention": "eager",
        "checkpointing": "whole" if row["ckpt"] else "none",
        "machines": machines_of(row, gpus_per_node=row.get("gpus_per_node", 8)),
        "zero": {"stage": row["zero_stage"], **zero},
    }
    return by_deepspeed(row, model, row["zero_stage"], assumed, **(defaults | more))


def _sunzeyeah(row: Row, model: dict[str, Any]) -> Run:
    """Configs of its src/resources/config/deepspeed on 2023-03-31, five days before the figures came."""
    assumed = [
        "GPT-2's code in ChatGLM's sizes" if row["model"] == "ChatGLM-6B" else "OPT's code in Pangu's sizes",
        "attention written out, as the models' code has it",
        "its examples/train_sft.sh, which sets CUDA_LAUNCH_BLOCKING",
    ]
    if row["n_gpus"] > 1:
        assumed.append("NVLink between the cards")
    zero: dict[str, Any] = {"overlap_comm": False}
    if row["zero_stage"] == 2:
        zero |= {"allgather_bucket_size": row.get("allgather_bucket", 5e8), "reduce_bucket_size": 5e8}
        zero |= {"contiguous_gradients": True, "round_robin_gradients": True}
    if row["zero_stage"] == 3:
        most = row.get("max_live", 1e9)
        zero = zero_of(3, width_of(model)) | zero | {"sub_group_size": 1e12}
        zero |= {"stage3_max_live_parameters": most, "stage3_max_reuse_distance": most}
        del zero["contiguous_gradients"]
    if row["zero_stage"] < 2:
        zero = {}
    lora: dict[str, Any] = {"precision": "fp16", "lora_rank": row["lora_rank"]} if "lora_rank" in row else {}
    if lora:
        assumed.append("LoRA on all layers, in fp16")
    run = _ran(
        row | {"precision": row.get("precision", "fp16")}, model, assumed, zero | _offloaded(row, pinned=True), **lora
    )
    return replace(run, variables={"CUDA_LAUNCH_BLOCKING": "1"})


def _ray(row: Row, model: dict[str, Any]) -> Run:
    assumed = ["attention written out", f"a network of {_AWS_GBIT_S} Gbit/s, as AWS lists these machines"]
    machines = machines_of(row, gpus_per_node=1, network_gbit_s=_AWS_GBIT_S)
    zero = zero_of(3, width_of(model))
    if "Llama-2" in row["source"]:  # its deepspeed_configs/zero_3_llama_2_13b.json
        zero |= {"reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e8, "sub_group_size": 1e9}
        zero |= {"stage3_param_persistence_threshold": 1e6, "round_robin_gradients": True}
        assumed.append("DeepSpeedCPUAdam, which accelerate makes of torch's AdamW")
    clipping = 0.0 if "Vicuna" in row["source"] else 1.0
    run = _ran(row, model, assumed, zero | _offloaded(row, pinned=True), machines=machines, clipping=clipping)
    variables = {"OMP_NUM_THREADS": "8"} if row["model"] == "GPT-J-6B" else {}
    return replace(run, launcher="torchrun", variables=variables)


def _lightning(row: Row, model: dict[str, Any]) -> Run:
    """The config that pytorch_lightning's DeepSpeedStrategy writes."""
    zero = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "allgather_bucket_size": 2e8,
        "reduce_bucket_size": 2e8,
        "sub_group_size": 1e12,
    }
    assumed = ["attention written out", "Lightning's defaults for ZeRO-3"]
    run = _ran(row, model, assumed, zero | _offloaded(row, pinned=False), clipping=0.0)
    return replace(run, launcher="torchrun")


def _opt_benchmark(row: Row, model: dict[str, Any]) -> Run:
    assumed = ["attention written out", "DeepSpeedCPUAdam, which accelerate makes of torch's AdamW"]
    run = _ran(row, model, assumed, _offloaded(row, pinned=False), clipping=0.0)
    return replace(run, launcher="torchrun")


def _sdma(row: Row, model: dict[str, Any]) -> Run:
    """Its ds_config_zero3.json."""
    zero = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "allgather_bucket_size": 5e7,
        "reduce_bucket_size": 5e7,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persistence_threshold": 1e5,
        "sub_group_size": 1e12,
    }
    assumed = [] if row["model"] == "Qwen3-32B" else ["GPT-2's code in place of the example's own"]
    return _ran(row, model, [*assumed, "attention written out, as the scripts have it"], zero)


def _azure(row: Row, model: dict[str, Any]) -> Run:
    assumed = ["transformers' code in place of Megatron's", "attention written out", "no gradient accumulation"]
    return _ran(row, model, assumed, {"overlap_comm": True, "contiguous_gradients": True})


def _chat(row: Row, model: dict[str, Any]) -> Run:
    """The config of its utils/ds_utils.py in April 2023; stage 2 has DeepSpeed's defaults."""
    assumed = ["attention written out", "16 V100s of one machine"]
    if row["zero_stage"] == 0:
        assumed.append("the mean of all values in place of the loss of pairs")
        return _ran(row, model, assumed, {}, task="value")
    return _ran(row, model, assumed, {})


def _encoders(row: Row, model: dict[str, Any]) -> Run:
    """Its dsconfigs; run_glue.py fills its sequences up to their longest."""
    assumed = ["a node of 16 cards", "attention written out", "FusedAdam", "three classes"]
    return _ran(row, model, assumed, {}, clipping=1.0, task="classes")


def _issue_650(row: Row, model: dict[str, Any]) -> Run:
    """The ZeRO tutorial's config for stage 2."""
    zero = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e8,
        "allgather_bucket_size": 5e8,
    }
    assumed = ["GPT-2's code in place of Megatron's", "attention written out", "nodes of 8", "the default network"]
    return _ran(row, model, assumed, zero)


def _open_llama(row: Row, model: dict[str, Any]) -> Run:
    """Stages by accelerate's plugin, which leaves the other settings to DeepSpeed."""
    assumed = ["xformers' attention as torch's memory-efficient one", "the catalogue's network"]
    run = _ran(row, model, assumed, _offloaded(row, pinned=False), attention="efficient")
    return replace(run, launcher="torchrun")


_BY_SOURCE = {
    "sunzeyeah": _sunzeyeah,
    "Ray Train": _ray,
    "ColossalAI-Pytorch-lightning": _lightning,
    "OPT-Benchmark": _opt_benchmark,
    "sdma_allgather": _sdma,
    "DeepSpeed on Azure": _azure,
    "DeepSpeed-Chat": _chat,
    "autotuning/hf, encoders": _encoders,
    "DeepSpeed issue 650": _issue_650,
    "Open-Llama": _open_llama,
}
