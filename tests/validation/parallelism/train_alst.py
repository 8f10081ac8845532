"""Trains on very long sequences with DeepSpeed's pieces of ALST, as the file given as the only argument says.

It runs with the versions that alst_lengths.py installs. Settings are those of the recipes in ArcticTraining's
projects/sequence-parallelism: ZeRO-3, Adam on the CPU, flash attention 2, checkpointed layers whose inputs are
copied to pageable host memory, TiledMLP, and Liger's loss, rotary embeddings and norms. Liger is applied before the
model is made, as by AutoLigerKernelForCausalLM, so that it replaces the norms of queries and keys, too. Short
documents are packed.
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
from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP, UlyssesSPAttentionHF
from liger_kernel.transformers.monkey_patch import _apply_liger_kernel
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM


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


def main() -> None:
    file = Path(sys.argv[1])
    point = json.loads(file.read_text(encoding="utf-8"))
    ranks, length = point["gpus"], point["length"]
    deepspeed.init_distributed()
    config = AutoConfig.from_pretrained(file.parent)
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
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=file.parent,
        core_attn_implementation="flash_attention_2",
        sequence_parallel_size=ranks,
        max_length=length,
        micro_batch_size=1,
    )
    _apply_liger_kernel(config.model_type, swiglu=False)
    with deepspeed.zero.Init(config_dict_or_path=ds_config):
        model: Any = AutoModelForCausalLM.from_config(
            config, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2"
        )
    tile_mlps(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.model._gradient_checkpointing_func = offloaded_checkpoint
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=DeepSpeedCPUAdam(model.parameters(), lr=1e-5), config=ds_config, mpu=mpu
    )
    part = length // ranks
    start = part * (engine.global_rank % ranks)
    for _ in range(2):
        ids = torch.randint(0, 100, (1, part), device=engine.device)
        places = torch.arange(start, start + part, device=engine.device)[None] % point["document"]
        labels = {"labels" if ranks == 1 else "shift_labels": ids}
        engine.backward(engine(input_ids=ids, position_ids=places, use_cache=False, **labels).loss)
        engine.step()


if __name__ == "__main__":
    main()
