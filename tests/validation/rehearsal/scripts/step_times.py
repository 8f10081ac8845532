"""Trains a small Llama by deepspeed.initialize and prints what its steps take: ``step_times.py PLAN.json``.

The plan's keys are those of `tests.validation.calibration.whole_steps.Plan`. It runs on processors as on
GPUs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch._dynamo  # its import fails within zero.Init, which replaces Tensor.__new__
from deepspeed.accelerator import get_accelerator
from transformers import LlamaConfig, LlamaForCausalLM


def engine_of(plan: dict[str, Any]) -> Any:
    """DeepSpeed's, in fp32."""
    zero: dict[str, Any] = {
        "stage": plan["stage"],
        "overlap_comm": False,
        "reduce_bucket_size": 4_000_000,
        "allgather_bucket_size": 4_000_000,
    }
    if plan["offload"]:
        zero["offload_optimizer"] = {"device": "cpu"}
    ds_config = {"train_micro_batch_size_per_gpu": plan["batch"], "gradient_clipping": 1.0, "zero_optimization": zero}
    config = LlamaConfig(
        hidden_size=plan["hidden_size"],
        intermediate_size=plan["hidden_size"] * 11 // 4,
        num_hidden_layers=plan["layers"],
        num_attention_heads=plan["hidden_size"] // 64,
        num_key_value_heads=plan["hidden_size"] // 64,
        vocab_size=4096,
        max_position_embeddings=1024,
        use_cache=False,
        pad_token_id=None,
    )
    with deepspeed.zero.Init(config_dict_or_path=ds_config, enabled=plan["stage"] == 3):
        model = LlamaForCausalLM(config)
    if plan["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if plan["offload"]:
        ds_config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-5}}
        return deepspeed.initialize(model=model, config=ds_config)[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)[0]


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    engine = engine_of(plan)
    engine.train()
    ids = torch.randint(0, 4096, (plan["batch"], plan["length"]), device=engine.device)
    seconds = []
    for _ in range(plan["steps"]):
        get_accelerator().synchronize()
        start = time.perf_counter()
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        get_accelerator().synchronize()
        seconds.append(time.perf_counter() - start)
    if torch.distributed.get_rank() == 0:
        print("seconds", json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
