"""A few optimizer steps of one configuration on one GPU; writes their memory and seconds.

Runs for real and rehearsed, and knows nothing of which. Models are built from their configs on the GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepspeed
import torch
import transformers

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2.5-0.5b": (
        "Qwen2ForCausalLM",
        {
            **{"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24},
            **{"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True},
        },
    ),
    "gpt2-large": ("GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-xl": ("GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "llama-3.2-1b": (
        "LlamaForCausalLM",
        {
            **{"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
        },
    ),
    "qwen2.5-1.5b": (
        "Qwen2ForCausalLM",
        {
            **{"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28},
            **{"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True},
        },
    ),
    "llama-3.2-3b": (
        "LlamaForCausalLM",
        {
            **{"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28},
            **{"num_attention_heads": 24, "num_key_value_heads": 8, "tie_word_embeddings": True},
        },
    ),
    "qwen3-4b": (
        "Qwen3ForCausalLM",
        {
            **{"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
        },
    ),
    "llama-2-7b": (
        "LlamaForCausalLM",
        {
            **{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 32},
        },
    ),
    "llama-3.1-8b": (
        "LlamaForCausalLM",
        {
            **{"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
            **{"num_attention_heads": 32, "num_key_value_heads": 8},
        },
    ),
}
"""The class of transformers, and its config: the models as they were published."""

LEARNING_RATE = 1e-5


def options(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", choices=SHAPES, required=True)
    add("--stage", type=int, required=True)
    add("--precision", choices=["bf16", "fp16", "fp32", "autocast"], default="bf16")
    add("--offload-optimizer", action="store_true")
    add("--offload-param", action="store_true")
    add("--checkpointing", action="store_true")
    add("--sequence", type=int, default=1024)
    add("--micro-batch", type=int, default=1)
    add("--accumulation", type=int, default=1)
    add("--attention", choices=["sdpa", "eager"], default="sdpa")
    add("--padding", action="store_true", help="rows of different lengths, with an attention mask")
    add("--lora", action="store_true")
    add("--optimizer", choices=["fused_adam", "torch_fused", "torch_foreach"], default="torch_fused")
    add("--sum-in-fp32", action="store_true", help="data_types.grad_accum_dtype")
    add("--steps", type=int, default=3)
    add("--output", type=Path, required=True, help="takes the figures, as JSON")
    return parser.parse_args(given)


def model_config(args: argparse.Namespace) -> Any:
    name, shape = SHAPES[args.model]
    lengths = {"n_positions" if name == "GPT2LMHeadModel" else "max_position_embeddings": args.sequence}
    return getattr(transformers, name).config_class(
        **shape, **lengths, attn_implementation=args.attention, use_cache=False
    )


def ds_config(args: argparse.Namespace) -> dict[str, Any]:
    """DeepSpeed's own defaults but for what the options say."""
    zero: dict[str, Any] = {"stage": args.stage}
    if args.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if args.offload_param:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's CPU optimizers need a compiler.
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    if args.precision == "autocast":
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    elif args.precision == "fp16":
        # Low enough that no step overflows and is left out.
        config["fp16"] = {"enabled": True, "initial_scale_power": 4}
    elif args.precision == "bf16":
        config["bf16"] = {"enabled": True}
    if args.sum_in_fp32:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if args.optimizer == "fused_adam":
        config["optimizer"] = {"type": "AdamW", "params": {"lr": LEARNING_RATE}}
    return config


def build(args: argparse.Namespace, config: dict[str, Any]) -> Any:
    """The model, on the GPU from the first tensor on."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.precision, torch.float32)
    # Imports the model's code, too: inside ZeRO-3's context, torch._dynamo objects to Tensor.__new__.
    shape = model_config(args)
    # ZeRO-3's own context makes tensors on the GPU, too, and goes with no other.
    place = torch.device("cuda") if args.stage < 3 else deepspeed.zero.Init(config_dict_or_path=config)
    with place:
        model = transformers.AutoModelForCausalLM.from_config(shape, dtype=dtype)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_dropout=0.05, target_modules="all-linear"))
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model


def batch(args: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    """Token ids of shape (micro batch, sequence); with padding, row `n` lacks `n` quarters of them."""
    ids = torch.randint(0, vocabulary, (args.micro_batch, args.sequence), device="cuda")
    if not args.padding:
        return {"input_ids": ids, "labels": ids}
    mask = torch.ones_like(ids)
    for row in range(args.micro_batch):
        mask[row, args.sequence - row % 4 * args.sequence // 4 :] = 0
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), "attention_mask": mask}


def wait_for_turn() -> None:
    """Hold the file TRAIN_ONCE_TURN until this process ends, so that one at a time uses the GPU."""
    if "TRAIN_ONCE_TURN" in os.environ:
        turn = os.open(os.environ["TRAIN_ONCE_TURN"], os.O_RDWR | os.O_CREAT)
        fcntl.flock(turn, fcntl.LOCK_EX)


def main() -> None:
    args = options()
    wait_for_turn()
    deepspeed.init_distributed()
    torch.manual_seed(1)
    config = ds_config(args)
    model = build(args, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = None
    if args.optimizer != "fused_adam":
        kind = {args.optimizer.removeprefix("torch_"): True} if not args.offload_optimizer else {}
        optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, **kind)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, optimizer=optimizer, config=config)
    data = batch(args, model.config.vocab_size)
    figures: dict[str, Any] = {
        "allocated_after_init": torch.cuda.memory_allocated(),
        "allocated_after_step": [],
        "step_seconds": [],
    }
    engine.train()
    torch.cuda.synchronize()
    for _ in range(args.steps):
        start = time.perf_counter()
        for _ in range(args.accumulation):
            loss = engine(**data).loss
            engine.backward(loss)
            engine.step()
        torch.cuda.synchronize()
        figures["step_seconds"].append(time.perf_counter() - start)
        figures["allocated_after_step"].append(torch.cuda.memory_allocated())
    figures["max_allocated"] = torch.cuda.max_memory_allocated()
    figures["max_reserved"] = torch.cuda.max_memory_reserved()
    args.output.write_text(json.dumps(figures), encoding="utf-8")
    print("seconds", json.dumps(figures["step_seconds"]), flush=True)


if __name__ == "__main__":
    main()
