"""The model, the data and the hyperparameters of matrix.py. Sizes are odd, so that padding shows."""

from __future__ import annotations

import torch
from transformers import LlamaConfig

MICRO_BATCH = 2
SEQUENCE = 161
VOCABULARY = 3001
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01


def model_config() -> LlamaConfig:
    """4.7 million parameters; attention of plain matrix products, which the CPU can compute."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=264,
        intermediate_size=706,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=66,
        max_position_embeddings=256,
        attn_implementation="eager",
        use_cache=False,
    )


def batch(rank: int, device: str | torch.device) -> torch.Tensor:
    """Token ids of shape (MICRO_BATCH, SEQUENCE), the same in every step, others on every rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE), generator=generator).to(device)
