"""Trains at published sizes over eight ranks that divide a model or a sequence: ``large_roles.py KIND``.

``sequence``: Llama-3.1-8B by DeepSpeed's Ulysses for transformers, with ZeRO-3, checkpointing and a loss in
tiles, one sequence over all ranks. ``tensor``: the same model cut by AutoTP. ``expert``: blocks of
Mixtral-8x7B's sizes whose experts DeepSpeed lays one on each rank.
"""

from __future__ import annotations

import argparse
from typing import Any

import deepspeed
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss, UlyssesSPAttentionHF
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

RANKS, WIDTH, INNER, VOCABULARY = 8, 4096, 14336, 128256
LOSS_TILES = 64
COMMON: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}


def llama(layers: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=layers,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=2**20,
            attn_implementation="sdpa",
            use_cache=False,
        )
    )


class InTiles(nn.Module):
    """A causal language model whose logits are never there as a whole."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        hidden = self.model.model(input_ids=ids, position_ids=places).last_hidden_state
        head = self.model.lm_head

        def loss_of(_module: nn.Module, part: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            logits = head(part).float()
            return nn.functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))

        result: torch.Tensor = TiledFusedLogitsLoss.apply(
            loss_of, self, hidden, ids, None, LOSS_TILES, [head.weight], "mean"
        )
        return result


def sequence(tokens: int, layers: int) -> tuple[Any, dict[str, torch.Tensor]]:
    config = COMMON | {
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 1_000_000, "stage3_param_persistence_threshold": 0}
    }
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = llama(layers)
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model, "sdpa", RANKS, 1, seq_length=tokens, seq_length_is_variable=False
    )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    engine, *_ = deepspeed.initialize(model=InTiles(model), config=config, mpu=mpu)
    own = tokens // RANKS
    first = engine.global_rank % RANKS * own
    places = torch.arange(first, first + own, device=engine.device)[None]
    return engine, {"ids": places % VOCABULARY, "places": places}


def tensor(tokens: int, layers: int) -> tuple[Any, dict[str, torch.Tensor]]:
    config = COMMON | {"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": RANKS}}
    engine, *_ = deepspeed.initialize(model=llama(layers).bfloat16(), config=config)
    ids = torch.arange(tokens, device=engine.device)[None] % VOCABULARY
    return engine, {"input_ids": ids, "labels": ids}


class Experts(nn.Module):
    """Blocks of eight experts each, and the mean of the squares of what comes out as loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        expert = nn.Sequential(nn.Linear(WIDTH, 2 * INNER, bias=False), nn.GLU(), nn.Linear(INNER, WIDTH, bias=False))
        self.blocks = nn.ModuleList(
            MoE(WIDTH, expert, num_experts=RANKS, ep_size=RANKS, k=2, capacity_factor=1.0) for _ in range(layers)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = hidden + block(hidden)[0]
        return hidden.float().square().mean()


def expert(tokens: int, layers: int) -> tuple[Any, dict[str, torch.Tensor]]:
    config = COMMON | {"zero_optimization": {"stage": 1}}
    model = Experts(layers)
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
    hidden = torch.zeros(1, tokens, WIDTH, device=engine.device, dtype=torch.bfloat16)
    return engine, {"hidden": hidden}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["sequence", "tensor", "expert"])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=32)
    args = parser.parse_args()
    deepspeed.init_distributed()
    engine, batch = {"sequence": sequence, "tensor": tensor, "expert": expert}[args.kind](args.tokens, args.layers)
    for _ in range(2):
        output = engine(**batch)
        engine.backward(getattr(output, "loss", output))
        del output  # and with it the logits
        engine.step()


if __name__ == "__main__":
    main()
