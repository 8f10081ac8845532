"""How published runs are rehearsed: their models and engines, by where they were published."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.validation.hardware.published_throughput import CARDS, Row
from tests.validation.rehearsal.published_machines import Machines
from tests.validation.rehearsal.published_models import model_of

_LONGEST_PLAYED = 2
"""Micro-batches of a step that are rehearsed one by one where all are alike."""


@dataclass(frozen=True)
class Plan:
    """A run as `scripts/published_model.py` makes it."""

    model: dict[str, Any]
    """Its config.json."""
    engine: Literal["deepspeed", "fsdp", "torch"]
    length: int
    """Tokens of a sequence."""
    micro_batch: int
    accumulated: list[int]
    """Micro-batches of each step."""
    attention: Literal["flash", "efficient", "eager"]
    checkpointing: Literal["none", "full", "whole", "products", "host"] = "none"
    """full: of each layer what its backward needs, as torch's checkpoints have it since 2.1; whole: also what
    comes last in it and is not needed, as all of them before, and those that torch calls reentrant, which
    transformers 4 has by default. products: every second product is kept. host: DeepSpeed's own, which keeps
    the inputs of layers in the host's memory and waits for the device before and after each."""
    ds_config: dict[str, Any] = field(default_factory=dict)
    waits_to_gather: bool = False
    """The host waits for all of the device before each gather of ZeRO-3, and for what it has gathered."""
    stage: int = 3
    """Of FSDP: 2 keeps the parameters gathered until backward."""
    reduced_in: Literal["float32", "bfloat16"] = "float32"
    """What FSDP reduces gradients in."""
    lora_rank: int = 0
    """0: all weights are trained."""
    compiled: bool = False
    """torch.compile of each layer."""
    task: Literal["causal", "classes", "value"] = "causal"
    """What is trained: a causal language model, a classifier of sequences, a reward model."""


@dataclass(frozen=True)
class Run:
    """How a row is rehearsed."""

    plan: Plan
    machines: Machines
    accumulation: int
    """Micro-batches of a step in the row."""
    assumed: tuple[str, ...]
    first: int = 0
    """The figure is the mean of so many first steps of a run; 0: of one that has settled."""
    environment: str = ""
    """Whose libraries ran another program than today's; empty: none is known to have."""
    launcher: Literal["deepspeed", "torchrun"] | None = None
    """None: deepspeed for its engine, torchrun for the others."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the ranks that the source sets."""


# ---- runs


def run_of(row: Row) -> Run | None:
    """How a row that says enough is rehearsed; None if its model's sizes are not known here."""
    model = model_of(row)
    if model is None:
        return None
    source = str(row["source"])
    for word, make in _BY_SOURCE.items():
        if word in source:
            return make(row, model)
    return None


def machines_of(row: Row, **more: Any) -> Machines:
    """The row's card and number of them; `more`: fields of `Machines`."""
    name = str(row["gpu"])
    return Machines(CARDS.get(name, name.partition(" ")[0].replace("-96", "")), row["n_gpus"], **more)


def _accumulation(row: Row) -> int:
    if row.get("global_batch"):
        return int(row["global_batch"]) // (int(row["micro_batch"]) * int(row["n_gpus"]))
    told = re.search(r"\bga=(\d+)", str(row.get("note") or ""))
    return int(row.get("ga") or (told[1] if told else 1))


def zero_of(stage: int, width: int) -> dict[str, Any]:
    """transformers' way of filling "auto" in stage 3."""
    sizes = {
        "reduce_bucket_size": width**2,
        "stage3_prefetch_bucket_size": int(0.9 * width**2),
        "stage3_param_persistence_threshold": 10 * width,
    }
    return {"stage": stage, "overlap_comm": True, "contiguous_gradients": True, **(sizes if stage == 3 else {})}


def _run(
    row: Row,
    model: dict[str, Any],
    engine: Literal["deepspeed", "fsdp", "torch"],
    assumed: Sequence[str],
    machines: Machines | None = None,
    first: int = 0,
    **plan: Any,
) -> Run:
    accumulation = _accumulation(row)
    # ZeRO-3 prefetches as it will from the third step on.
    # DeepSpeed takes a step of two at even micro-batches, and makes buffers for several in the first.
    alone = [2, *[1] * 4] if engine == "deepspeed" else [1] * 2
    steps = [*alone, 2] if accumulation > _LONGEST_PLAYED else [accumulation] * (first or 3)
    made = Plan(model, engine, row["seq_len"], row["micro_batch"], steps, **plan)
    return Run(made, machines or machines_of(row), accumulation, tuple(assumed), first)


def by_deepspeed(
    row: Row,
    model: dict[str, Any],
    stage: int,
    assumed: Sequence[str],
    *,
    precision: str = "bf16",
    clipping: float = 1.0,
    zero: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Run:
    """A run of DeepSpeed's engine.

    Args:
        precision: the section of the config that is enabled, or fp32 for none.
        zero: the config's section as the source has it; None: as transformers fills it.
        plan: fields of `Plan`, and `machines`.
    """
    config = {
        "train_micro_batch_size_per_gpu": row["micro_batch"],
        "gradient_clipping": clipping,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
        "zero_optimization": dict(zero or zero_of(stage, model.get("hidden_size") or model["n_embd"])),
    }
    return _run(row, model, "deepspeed", assumed, ds_config=config, **plan)


def _qwen(row: Row, model: dict[str, Any]) -> Run:
    lora = 64 if "LoRA" in str(row.get("method")) else 0
    assumed = ["Qwen2's code in Qwen's sizes", "finetune.py's defaults: checkpointing"]
    plan: dict[str, Any] = {"attention": "flash", "checkpointing": "whole", "lora_rank": lora}
    if lora:
        assumed.append("LoRA of rank 64 on all layers")
    if lora and row["n_gpus"] == 1:
        return _run(row, model, "torch", [*assumed, "weights in bf16"], **plan)
    # All parameters: finetune_ds.sh, the README's only script for them, which has ZeRO-3 on one GPU, too.
    return by_deepspeed(row, model, 3, assumed, **plan)


def _swift(row: Row, model: dict[str, Any]) -> Run:
    stage = int(row["zero_stage"])
    assumed = [f"ms-swift's defaults of May 2025: checkpointing, its zero{stage}.json", "FlashAttention 2"]
    zero = zero_of(stage, model["hidden_size"]) | {"overlap_comm": False}
    if stage == 2:
        zero |= dict.fromkeys(("allgather_bucket_size", "reduce_bucket_size"), int(2e8))
    run = by_deepspeed(row, model, stage, assumed, zero=zero, attention="flash", checkpointing="whole")
    # transformers 5 has one product for all experts; ms-swift of then asked for less than 4.53, which loops
    # over all of them, and told DeepSpeed of no leaf modules before October.
    return replace(run, environment="transformers 4.52") if "num_experts" in model else run


def _internevo(row: Row, model: dict[str, Any]) -> Run:
    assumed = [
        "DeepSpeed's stage 1 with overlap_comm in place of InternEvo's own ZeRO-1",
        "Llama's code in InternLM's sizes",
        "4 network cards of 100 Gbit/s a node",
    ]
    if "8" in str(row["zero_stage"]) and row["n_gpus"] > 8:
        assumed.append("optimizer states cut among all ranks: DeepSpeed's stage 1 cannot among those of a node")
    return by_deepspeed(
        *(row, model, 1, assumed),
        machines=machines_of(row, network_gbit_s=400),
        attention="flash",
        checkpointing="whole" if row.get("ckpt") else "none",
    )


_SWEPT_WITH_FLASH = ("MPT-1b", "MPT-3b", "MPT-7b", "MPT-70b")
"""llm-foundry's scripts/train/benchmarking/sweep.py of January 2024, with which its table was published."""


def _foundry(row: Row, model: dict[str, Any]) -> Run:
    network = 1600 if str(row["gpu"]).startswith("a100") else None  # the README's headings
    # Its table of 128 and more H100s is of sweep.py, which says the kernel of each size.
    is_swept = row["gpu"] == "h100_80gb" and row["n_gpus"] >= 128
    has_flash = is_swept and row["model"] in _SWEPT_WITH_FLASH
    kernel = (
        "FlashAttention 2, as sweep.py has it"
        if has_flash
        else f"Triton's attention, {'as sweep.py has it' if is_swept else 'the default of the scripts'}"
    )
    # Its A100s ran torch 1.13.1, the H100s 2.1: the images of its sweeps.
    again = "full" if row["gpu"] == "h100_80gb" else "whole"
    return _run(
        *(row, model, "fsdp"),
        ["FSDP 2 in place of FSDP 1", "GPT-2's code in MPT's sizes", kernel, "torch's AdamW in place of Composer's"],
        machines_of(row, network_gbit_s=network),
        attention="flash" if has_flash else "efficient",
        checkpointing=again if row.get("ckpt") else "none",
        stage=int(str(row["zero_stage"])[0]),
        reduced_in="bfloat16" if row.get("mp_mode") == "PURE" else "float32",
    )


def _titan(row: Row, model: dict[str, Any]) -> Run:
    # benchmarks/llama3_h100_202412_torchtitan.md, "Hardware"
    bandwidth = 2400 if "H100-96" in str(row["gpu"]) else None
    return _run(
        *(row, model, "fsdp"),
        ["transformers' Llama in place of torchtitan's", "FlashAttention 2"],
        machines_of(row, bandwidth_gb_s=bandwidth),
        attention="flash",
        checkpointing="full" if row.get("ckpt") == "full" else "products",
        compiled="compile" in str(row.get("note")),
    )


def _fms(row: Row, model: dict[str, Any]) -> Run:
    return _run(
        *(row, model, "fsdp"),
        ["FSDP 2 in place of FSDP 1", "transformers' Llama in place of FMS's"],
        machines_of(row, network_gbit_s=row["network_gbit_s"]),
        attention="flash",  # its README: "SDPA Flash v2"
        checkpointing="full",
        reduced_in="bfloat16",  # policies/mixed_precision.py: bfSixteen
    )


def _bigscience(row: Row, model: dict[str, Any]) -> Run:
    assumed = [
        *("nodes of 4 cards", "attention written out", "checkpointing"),
        "a network of which an all-reduce gets 54 Gbit/s, as measured on these nodes, not of 400 Gbit/s",
        "the host waits for the device around each gather, as in DeepSpeed 0.3.16",
        "all steps as a first one: that release skipped its prefetching and kept nothing (issue 1069)",
    ]
    checkpointing = "whole"
    if "Megatron" in str(row["source"]):
        assumed.append("transformers' code in place of Megatron's")
        checkpointing = "host"  # meg_ds_zero_gpt2_perf_n16.slurm: PA_CPU, SYNCHRONIZE
    return by_deepspeed(
        *(row, model, 3, assumed),
        # Its experiments/bandwidth of these 16 nodes in the same month; a ring is taken to get 0.93 of it.
        machines=machines_of(row, gpus_per_node=4, network_gbit_s=round(54 / 0.93)),
        attention="eager",
        checkpointing=checkpointing,
        precision="fp16",
        waits_to_gather=True,
        first=1,
    )


def _examples(row: Row, model: dict[str, Any]) -> Run:
    return by_deepspeed(
        *(row, model, 3, ["GPT-2's code in place of the example's own, its baseline.json"]),
        zero={
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 5e7,
            "stage3_param_persistence_threshold": 0,
        },
        clipping=0.0,
        attention="eager",  # nn.MultiheadAttention that is asked for its weights
        checkpointing="full",
    )


def _autotuned(row: Row, model: dict[str, Any]) -> Run:
    return by_deepspeed(
        *(row, model, 1, ["a node of 16 cards", "attention written out", "FusedAdam", "no checkpointing"]),
        zero={"stage": 1},  # dsconfigs/ds_config_fp16_z1.json
        clipping=0.0,
        precision="fp16",
        machines=machines_of(row, gpus_per_node=16),
        attention="eager",
    )


def _gist(row: Row, model: dict[str, Any]) -> Run:
    stage = int(row["zero_stage"])
    zero = zero_of(stage, model["hidden_size"])
    for what in ("optimizer", "param"):
        if row.get(f"offload_{what}"):
            zero[f"offload_{what}"] = {"device": "cpu", "pin_memory": True}
    assumed = ["FlashAttention 2", "overlap_comm", "sequences per second of all GPUs"]
    if row.get("offload_optimizer"):
        assumed.append("ranks that deepspeed starts, each with threads for all cores")
    return by_deepspeed(
        *(row, model, stage, assumed),
        zero=zero,
        attention="flash",
        checkpointing="whole" if row.get("ckpt") else "none",
    )


def _xtuner(row: Row, model: dict[str, Any]) -> Run:
    assumed = ["stage 3", "FlashAttention 2", "checkpointing", "a network of 400 Gbit/s"]
    return by_deepspeed(
        *(row, model, 3, assumed),
        zero={"stage": 3, "overlap_comm": True},  # xtuner/configs/deepspeed/deepspeed_zero3.json
        machines=machines_of(row, network_gbit_s=400),
        attention="flash",
        checkpointing="whole",
    )


def _zenflow(row: Row, model: dict[str, Any]) -> Run:
    return by_deepspeed(
        *(row, model, 2, ["FlashAttention 2", "no checkpointing"]),
        zero={"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
        attention="flash",
    )


def _flagperf(row: Row, model: dict[str, Any]) -> Run:
    """The configs are FlagPerf's, training/benchmarks/MODEL/deepspeed/ds_config.json."""
    precision = row.get("precision") or "bf16"
    if row["zero_stage"] == 1:
        return by_deepspeed(
            *(row, model, 1, ["Llama's code in Baichuan's sizes", "attention written out, as its page says"]),
            zero={"stage": 1, "overlap_comm": True},
            precision=precision,
            machines=machines_of(row, network_gbit_s=row["network_gbit_s"]),
            attention="eager",
            checkpointing="whole",
        )
    zero = {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "stage3_prefetch_bucket_size": 1e7,
        "reduce_bucket_size": 1e7,
        "sub_group_size": 1e9,
    }
    assumed = ["FlashAttention 2"]
    if row["model"] == "ChatGLM3-6B":
        assumed.append("Llama's code in ChatGLM3's sizes")
    return by_deepspeed(row, model, 3, assumed, zero=zero, precision=precision, attention="flash")


def _colossal(row: Row, model: dict[str, Any]) -> Run:
    assumed = ["FlashAttention 2", "no checkpointing", "ZeRO-3 as transformers fills it"]
    return by_deepspeed(row, model, 3, assumed, attention="flash")


_BY_SOURCE = {
    "QwenLM/Qwen README": _qwen,
    "ms-swift": _swift,
    "InternEvo": _internevo,
    "llm-foundry": _foundry,
    "torchtitan": _titan,
    "fms-fsdp": _fms,
    "bigscience": _bigscience,
    "bf16_master_weight": _examples,
    "autotuning/hf": _autotuned,
    "chenyaofo": _gist,
    "xtuner": _xtuner,
    "zenflow": _zenflow,
    "FlagPerf": _flagperf,
    "ColossalAI": _colossal,
}
