"""A small Llama trained by deepspeed.initialize under every setting that the checks against real runs vary.

Buckets are small, so that there are several of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import deepspeed
import torch
from matrix_model import LEARNING_RATE, MICRO_BATCH, WEIGHT_DECAY, batch, model_config
from transformers import LlamaForCausalLM


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--offload-optimizer", choices=["cpu", "nvme"])
    parser.add_argument("--offload-param", choices=["cpu", "nvme"])
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--nvme-path", default="")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--optimizer", choices=["fused", "torch"], default="fused")
    parser.add_argument("--overlap-comm", action="store_true")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--weights", type=Path, help="a state dict to begin with")
    parser.add_argument("--losses", type=Path, help="write the loss of each micro-batch here, one a line")
    return parser.parse_args()


def offload(device: str | None, args: argparse.Namespace) -> dict[str, Any] | None:
    if device is None:
        return None
    section: dict[str, Any] = {"device": device, "pin_memory": args.pin_memory}
    if device == "nvme":
        section["nvme_path"] = args.nvme_path
    return section


def ds_config(args: argparse.Namespace) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": args.stage,
        "overlap_comm": args.overlap_comm,
        "reduce_bucket_size": 700_001,
        "allgather_bucket_size": 900_002,
    }
    if args.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": 300_001,
            "stage3_param_persistence_threshold": 1000,
            "stage3_max_live_parameters": 3_000_000,
            "stage3_max_reuse_distance": 3_000_000,
            "sub_group_size": 2_000_000,
        }
    for key, device in (("offload_optimizer", args.offload_optimizer), ("offload_param", args.offload_param)):
        section = offload(device, args)
        if section is not None:
            if key == "offload_param" and device == "nvme":
                section |= {"buffer_count": 8, "buffer_size": 1_500_000}
            zero[key] = section
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": args.accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": args.optimizer == "fused",
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    if args.precision == "bf16":
        config["bf16"] = {"enabled": True}
    elif args.precision == "fp16":
        # Low enough that no step overflows: a real run would skip that step, which a rehearsal cannot know.
        config["fp16"] = {"enabled": True, "initial_scale_power": 4}
    if args.optimizer == "fused":
        config["optimizer"] = {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}}
    return config


def load_weights(model: torch.nn.Module, file: Path) -> None:
    """Rank 0's copy counts where parameters are in parts."""
    state = torch.load(file)
    for name, parameter in model.named_parameters():
        parts = [parameter] if hasattr(parameter, "ds_id") else []
        with deepspeed.zero.GatheredParameters(parts, modifier_rank=0), torch.no_grad():
            parameter.copy_(state[name])


def build(args: argparse.Namespace, config: dict[str, Any]) -> Any:
    """The engine."""
    torch.manual_seed(7)
    # A stage-3 model is cut into parts as it is built, by whatever process group the config asks for.
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.stage == 3):
        model: Any = LlamaForCausalLM(model_config())
    if args.weights is not None:
        load_weights(model, args.weights)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=9, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
        )
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = None
    if args.optimizer == "torch":
        optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, optimizer=optimizer, config=config)
    return engine


def main() -> None:
    args = options()
    deepspeed.init_distributed()
    config = ds_config(args)
    engine = build(args, config)
    ids = batch(engine.global_rank, engine.device)
    engine.train()
    for _ in range(args.steps * args.accumulation):
        loss = engine(input_ids=ids, labels=ids).loss
        if args.losses is not None:
            with args.losses.open("a") as file:
                file.write(f"{loss.item()}\n")
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
