"""Training runs for tests, short to write."""

from __future__ import annotations

from typing import Any

from zerokit.config import DeepSpeedConfig
from zerokit.hardware.cluster import Cluster
from zerokit.memory import TrainingRun
from zerokit.models import ModelShape, load_model_shape

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


def shape(**changes: Any) -> ModelShape:
    """A small Llama."""
    return load_model_shape({**LLAMA, **changes})


def ds_config(stage: int, precision: str = "bf16", zero: dict[str, Any] | None = None, **more: Any) -> DeepSpeedConfig:
    """A ds_config with AdamW."""
    data: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, **(zero or {})},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        **more,
    }
    if precision != "fp32":
        data[precision] = {"enabled": True}
    return DeepSpeedConfig.model_validate(data)


def run(stage: int = 2, *, model: ModelShape | int | None = None, world_size: int = 4, **more: Any) -> TrainingRun:
    """A run of the small Llama by default."""
    zero, precision = more.pop("zero", None), more.pop("precision", "bf16")
    config = more.pop("config", None) or ds_config(stage, precision, zero)
    return TrainingRun(
        model=shape() if model is None else model,
        ds_config=config,
        cluster=Cluster(world_size, more.pop("gpus_per_node", 8)),
        seq_len=more.pop("seq_len", 1024),
        **more,
    )
