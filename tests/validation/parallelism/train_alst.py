"""Trains on very long sequences with DeepSpeed's pieces of ALST, as the file given as the only argument says.

Settings are those of the recipes in ArcticTraining's projects/sequence-parallelism: ZeRO-3, Adam on the CPU,
flash attention 2, Liger's norms and rotary embeddings (install liger-kernel), checkpointed layers whose inputs
are copied to pageable host memory, TiledMLP, the loss of Liger (or in tiles, or whole: `loss`).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch._dynamo  # its import fails within zero.Init, which replaces Tensor.__new__
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss, TiledMLP, UlyssesSPAttentionHF
from liger_kernel.transformers import _apply_liger_kernel_to_instance
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

LOGITS_BYTES = 2**30
"""Of a part of the logits in fp32, as in ArcticTraining's sft_trainer.py."""


def tile_mlps(model: torch.nn.Module) -> None:
    """As the example in the docstring of `TiledMLP`, with the same number of parts on each rank."""

    def of_part(mlp: Any, part: torch.Tensor) -> Any:
        return mlp.down_proj(mlp.act_fn(mlp.gate_proj(part)) * mlp.up_proj(part))

    def forward(mlp: Any, hidden: torch.Tensor) -> Any:
        weights = [mlp.down_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight]
        return TiledMLP.apply(of_part, mlp, hidden, math.ceil(hidden.shape[1] / hidden.shape[2]), weights)

    type(model.model.layers[0].mlp).forward = forward  # type: ignore[attr-defined]


def offloaded_checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Of a layer; what it saves is its input."""
    with save_on_cpu(pin_memory=False):
        return checkpoint(function, *args, use_reentrant=True, **kwargs)


def loss_of(model: Any, hidden: torch.Tensor, labels: torch.Tensor, *, tiled: bool) -> Any:
    """The sum of the losses of this rank's tokens."""
    vocabulary = model.config.vocab_size

    def of_part(model: Any, part: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model.lm_head(part).float()
        return torch.nn.functional.cross_entropy(logits.view(-1, vocabulary), labels.view(-1), reduction="sum")

    if not tiled:
        return of_part(model, hidden, labels)
    parts = math.ceil(labels.numel() * vocabulary * 4 / LOGITS_BYTES)
    return TiledFusedLogitsLoss.apply(of_part, model, hidden, labels, None, parts, [model.lm_head.weight], "sum")


def main() -> None:
    point = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    ranks = point["sequence_parallel"]
    deepspeed.init_distributed()
    config = AutoConfig.for_model(**point["config"])
    config.use_cache = False
    ds_config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "sequence_parallel_size": ranks,
        "seq_parallel_communication_data_type": "bf16",
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, **point["zero"]},
    }
    with deepspeed.zero.Init(config_dict_or_path=ds_config):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="flash_attention_2"
        )
    _apply_liger_kernel_to_instance(model, swiglu=False, fused_linear_cross_entropy=point["loss"] == "liger")
    mpu = UlyssesSPAttentionHF.register_with_transformers(model, "flash_attention_2", ranks, 1)
    if point["tiled_mlp"]:
        tile_mlps(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    if point["offload"]:
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = offloaded_checkpoint
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=DeepSpeedCPUAdam(model.parameters(), lr=1e-5), config=ds_config, mpu=mpu
    )
    length = point["length"] // ranks
    start = length * (engine.global_rank % ranks)
    for _ in range(2):
        ids = torch.randint(0, 100, (1, length), device=engine.device)
        places = torch.arange(start, start + length, device=engine.device)[None]
        if point["loss"] == "liger":
            loss = engine(input_ids=ids, position_ids=places, shift_labels=ids, use_cache=False).loss
        else:
            hidden = model.model(input_ids=ids, position_ids=places, use_cache=False).last_hidden_state
            loss = loss_of(model, hidden, ids, tiled=point["loss"] == "tiled") / point["length"]
            del hidden
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
