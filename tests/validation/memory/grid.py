"""The grid on which estimates are compared with rehearsals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.validation.memory.rehearsed import Point

LLAMA_1B = "meta-llama/Llama-3.2-1B"
LLAMA_3B = "meta-llama/Llama-3.2-3B"
LLAMA_8B = "meta-llama/Llama-3.1-8B"
QWEN2 = "Qwen/Qwen2.5-1.5B"
QWEN2_7B = "Qwen/Qwen2.5-7B"
QWEN3 = "Qwen/Qwen3-0.6B"
QWEN_MOE = "Qwen/Qwen1.5-MoE-A2.7B"
GPT2 = "openai-community/gpt2-xl"
MISTRAL = "mistralai/Mistral-7B-v0.1"
CPU = {"device": "cpu"}
CPU_PAGEABLE = {"device": "cpu", "pin_memory": False}
NVME = {"device": "nvme", "nvme_path": "/tmp/zerokit-nvme"}
PARAM_NVME = {**NVME, "buffer_count": 60, "buffer_size": 70_000_000}
LORA = {"rank": 16, "target_modules": ["q_proj", "v_proj"]}
WIDE_LORA = {"rank": 64, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]}

ALL_LINEAR = {"rank": 16, "target_modules": "all-linear"}


def trainer_auto(stage: int, hidden: int, **more: Any) -> dict[str, Any]:
    """What transformers' Trainer makes of "auto" (HfTrainerDeepSpeedConfig.trainer_config_finalize)."""
    return {
        "stage": stage,
        "overlap_comm": True,
        "reduce_bucket_size": hidden * hidden,
        "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
        "stage3_param_persistence_threshold": 10 * hidden,
        **more,
    }


def points() -> list[Point]:
    """All of it."""
    return [
        *_dense(),
        *_edges(),
        *_offloaded(),
        *_both_offloaded(),
        *_adapters(),
        *_qlora(),
        *_optimizers(),
        *_families(),
        *_other_types(),
    ]


def _dense() -> Iterator[Point]:
    for stage in (0, 1, 2, 3):
        yield Point(f"llama-1b stage {stage}", LLAMA_1B, {"stage": stage})
        yield Point(
            f"llama-1b stage {stage}, checkpointing, accumulation 4, 4 GPUs",
            LLAMA_1B,
            {"stage": stage},
            num_gpus=4,
            seq_len=4096,
            accumulation=4,
            checkpointing=True,
        )
        yield Point(
            f"llama-8b stage {stage}, checkpointing, 64 GPUs",
            LLAMA_8B,
            {"stage": stage},
            num_gpus=64,
            seq_len=4096,
            checkpointing=True,
        )
        yield Point(
            f"qwen2-1.5b stage {stage}, micro batch 4, fp16",
            QWEN2,
            {"stage": stage},
            micro_batch_size=4,
            seq_len=512,
            precision="fp16",
            num_gpus=4,
        )
    for stage in (1, 2, 3):
        yield Point(
            f"llama-8b stage {stage}, Trainer's auto",
            LLAMA_8B,
            trainer_auto(stage, 4096),
            seq_len=2048,
            checkpointing=True,
        )
        yield Point(
            f"llama-3b stage {stage}, accumulation 4, overlap",
            LLAMA_3B,
            {"stage": stage, "overlap_comm": True},
            accumulation=4,
            num_gpus=64,
            seq_len=1024,
            micro_batch_size=2,
        )


def _edges() -> Iterator[Point]:
    yield Point("llama-1b stage 2, one GPU", LLAMA_1B, {"stage": 2}, num_gpus=1)
    yield Point("llama-1b stage 3, one GPU", LLAMA_1B, {"stage": 3}, num_gpus=1)
    yield Point("llama-1b stage 3, fp32, 2 GPUs", LLAMA_1B, {"stage": 3}, num_gpus=2, precision="fp32")
    yield Point("llama-1b stage 2, fp32, 2 GPUs", LLAMA_1B, {"stage": 2}, num_gpus=2, precision="fp32")
    yield Point("llama-1b stage 0, fp32", LLAMA_1B, {"stage": 0}, num_gpus=2, precision="fp32")
    yield Point(
        "llama-8b stage 3, few live parameters",
        LLAMA_8B,
        {"stage": 3, "stage3_max_live_parameters": 300_000_000, "stage3_max_reuse_distance": 300_000_000},
        num_gpus=16,
        seq_len=4096,
        checkpointing=True,
    )
    yield Point(
        "llama-8b stage 3, small sub-groups", LLAMA_8B, {"stage": 3, "sub_group_size": 100_000_000}, seq_len=1024
    )


def _offloaded() -> Iterator[Point]:
    for stage in (1, 2, 3):
        for accumulation in (1, 4):
            yield Point(
                f"llama-1b stage {stage}, optimizer on the host, accumulation {accumulation}",
                LLAMA_1B,
                {"stage": stage, "offload_optimizer": CPU},
                accumulation=accumulation,
                checkpointing=accumulation == 4,
            )
    yield Point(
        "llama-8b stage 2, optimizer on pageable host",
        LLAMA_8B,
        {"stage": 2, "offload_optimizer": CPU_PAGEABLE},
        checkpointing=True,
        num_gpus=4,
    )
    yield Point(
        "llama-8b stage 3, both on pageable host",
        LLAMA_8B,
        {"stage": 3, "offload_optimizer": CPU_PAGEABLE, "offload_param": CPU_PAGEABLE},
        checkpointing=True,
        num_gpus=4,
    )


def _both_offloaded() -> Iterator[Point]:
    for gpus in (1, 8):
        yield Point(
            f"llama-8b stage 3, both on the host, {gpus} GPUs",
            LLAMA_8B,
            {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU},
            checkpointing=True,
            num_gpus=gpus,
        )
    yield Point("llama-1b stage 3, parameters on the host", LLAMA_1B, {"stage": 3, "offload_param": CPU}, num_gpus=4)
    yield Point(
        "llama-8b stage 3, optimizer on NVMe", LLAMA_8B, {"stage": 3, "offload_optimizer": NVME}, checkpointing=True
    )
    for most, where in ((1_000_000_000, "parameters staying in memory"), (100_000_000, "few of them in memory")):
        yield Point(
            f"llama-1b stage 3, both on NVMe, {where}",
            LLAMA_1B,
            {
                "stage": 3,
                "offload_optimizer": NVME,
                "offload_param": {**PARAM_NVME, "max_in_cpu": most},
                "sub_group_size": 60_000_000,
            },
            checkpointing=True,
            num_gpus=4,
        )
    yield Point(
        "qwen2-1.5b stage 3, optimizer on NVMe, accumulation 4",
        QWEN2,
        {"stage": 3, "offload_optimizer": NVME, "sub_group_size": 100_000_000},
        accumulation=4,
    )


def _adapters() -> Iterator[Point]:
    for stage in (0, 2, 3):
        yield Point(f"llama-8b stage {stage}, LoRA", LLAMA_8B, {"stage": stage}, lora=LORA, checkpointing=True)
        yield Point(f"qwen2-1.5b stage {stage}, wide LoRA", QWEN2, {"stage": stage}, lora=WIDE_LORA, seq_len=1024)
    yield Point(
        "llama-8b stage 3, LoRA, both on the host",
        LLAMA_8B,
        {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU},
        lora=LORA,
        checkpointing=True,
    )


def _qlora() -> Iterator[Point]:
    """The layers of 7B and 8B models, two of each, with few words so that layers make the peak."""
    few: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 1000}
    packed: dict[str, Any] = {"lora": ALL_LINEAR, "load_in_4bit": True, "double_quant": True}
    for stage in (0, 1, 2):
        yield Point(
            f"llama-8b stage {stage}, QLoRA, whole",
            LLAMA_8B,
            {"stage": stage},
            checkpointing=True,
            optimizer="paged_adamw_8bit",
            **packed,
        )
    yield Point(
        "llama-8b stage 2, QLoRA, 2 GPUs, 4096 tokens",
        LLAMA_8B,
        {"stage": 2},
        num_gpus=2,
        seq_len=4096,
        checkpointing=True,
        changes=few,
        optimizer="paged_adamw_32bit",
        **packed,
    )
    yield Point(
        "llama-8b stage 0, QLoRA, one GPU, constants in fp32",
        LLAMA_8B,
        {"stage": 0},
        num_gpus=1,
        checkpointing=True,
        changes=few,
        optimizer="adamw_8bit",
        **{**packed, "double_quant": False},
    )
    yield Point(
        "qwen2-7b stage 2, QLoRA, fp16, accumulation 4",
        QWEN2_7B,
        {"stage": 2, "reduce_bucket_size": 50_000_000},
        num_gpus=4,
        seq_len=512,
        micro_batch_size=4,
        accumulation=4,
        precision="fp16",
        checkpointing=True,
        changes={**few, "layer_types": ["full_attention"] * 2},
        **packed,
    )
    yield Point(
        "llama-8b stage 2, QLoRA without checkpointing",
        LLAMA_8B,
        {"stage": 2, "reduce_bucket_size": 50_000_000},
        num_gpus=2,
        seq_len=1024,
        changes=few,
        **packed,
    )


def _optimizers() -> Iterator[Point]:
    for optimizer in ("adamw", "adamw_fused", "sgd", "sgd_momentum", "adagrad"):
        for stage in (2, 3):
            yield Point(
                f"llama-1b stage {stage}, {optimizer}", LLAMA_1B, {"stage": stage}, optimizer=optimizer, seq_len=1024
            )
    for optimizer in ("adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "paged_lion_8bit"):
        for stage in (0, 2, 3):
            yield Point(
                f"llama-1b stage {stage}, {optimizer}",
                LLAMA_1B,
                {"stage": stage},
                optimizer=optimizer,
                changes={"num_hidden_layers": 2},
                seq_len=512,
            )
    yield Point("llama-1b stage 0, adamw", LLAMA_1B, {"stage": 0}, optimizer="adamw")
    yield Point(
        "llama-1b stage 2, Adagrad of the ds_config", LLAMA_1B, {"stage": 2}, ds_optimizer="Adagrad", seq_len=1024
    )
    for kind in ("Lion", "Lamb"):
        yield Point(f"llama-1b stage 2, {kind}", LLAMA_1B, {"stage": 2}, ds_optimizer=kind, seq_len=1024)
    yield Point(
        "llama-1b stage 1, fp32 accumulation",
        LLAMA_1B,
        {"stage": 1},
        extra={"data_types": {"grad_accum_dtype": "fp32"}},
    )
    for stage in (2, 3):
        yield Point(
            f"llama-1b stage {stage}, fp32 accumulation",
            LLAMA_1B,
            {"stage": stage},
            extra={"data_types": {"grad_accum_dtype": "fp32"}},
            accumulation=4,
        )


def _families() -> Iterator[Point]:
    for stage in (0, 1, 2, 3):
        yield Point(f"gpt2-xl stage {stage}", GPT2, {"stage": stage}, seq_len=1024, num_gpus=8)
    yield Point(
        "gpt2-xl stage 2, checkpointing", GPT2, {"stage": 2}, seq_len=1024, checkpointing=True, micro_batch_size=8
    )
    yield Point("gpt2-xl stage 3, eager", GPT2, {"stage": 3}, seq_len=1024, attention="eager")
    yield Point("qwen2-7b stage 3", QWEN2_7B, {"stage": 3}, seq_len=1024, num_gpus=16)
    yield Point("qwen2-7b stage 2, checkpointing", QWEN2_7B, {"stage": 2}, checkpointing=True)
    yield Point("qwen3-0.6b stage 2", QWEN3, {"stage": 2}, micro_batch_size=4)
    yield Point("qwen3-0.6b stage 3, checkpointing", QWEN3, {"stage": 3}, micro_batch_size=4, checkpointing=True)
    yield Point("mistral-7b stage 3, eager", MISTRAL, {"stage": 3}, seq_len=1024, attention="eager")
    yield Point("mistral-7b stage 2, checkpointing", MISTRAL, {"stage": 2}, seq_len=4096, checkpointing=True)
    yield Point("llama-1b stage 2, eager", LLAMA_1B, {"stage": 2}, seq_len=1024, attention="eager")
    for stage in (2, 3):
        yield Point(f"qwen-moe stage {stage}", QWEN_MOE, {"stage": stage}, seq_len=1024, num_gpus=16)
        yield Point(
            f"qwen-moe stage {stage}, checkpointing", QWEN_MOE, {"stage": stage}, seq_len=2048, checkpointing=True
        )
    yield Point(
        "qwen3-moe stage 3, half depth",
        "Qwen/Qwen3-30B-A3B",
        {"stage": 3},
        seq_len=1024,
        num_gpus=64,
        changes={"num_hidden_layers": 24},
        checkpointing=True,
    )


def _other_types() -> Iterator[Point]:
    yield Point("pythia-1.4b stage 2", "EleutherAI/pythia-1.4b", {"stage": 2}, seq_len=1024)
    yield Point("phi-3-mini stage 2", "microsoft/Phi-3-mini-4k-instruct", {"stage": 2}, seq_len=1024)
    yield Point("gemma-2b stage 2", "google/gemma-2b", {"stage": 2}, seq_len=1024)
    yield Point("gemma-2-2b stage 2", "google/gemma-2-2b", {"stage": 2}, seq_len=1024, attention="eager")
    yield Point("opt-1.3b stage 2", "facebook/opt-1.3b", {"stage": 2}, seq_len=1024)
    yield Point("falcon-7b stage 3", "tiiuae/falcon-7b", {"stage": 3}, seq_len=1024)
    yield Point("phi-2 stage 2", "microsoft/phi-2", {"stage": 2}, seq_len=1024)
    yield Point(
        "mixtral stage 3, quarter depth",
        "mistralai/Mixtral-8x7B-v0.1",
        {"stage": 3},
        seq_len=1024,
        num_gpus=32,
        changes={"num_hidden_layers": 8},
    )
    yield Point("olmo-2-7b stage 2", "allenai/OLMo-2-1124-7B", {"stage": 2}, seq_len=1024)
