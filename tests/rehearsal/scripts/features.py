"""One training step after another under any feature of DeepSpeed or transformers that changes memory.

The options are those of a person's script: none knows of the rehearsal.
"""

from __future__ import annotations

import argparse
from typing import Any

import deepspeed
import torch
from torch.nn import functional

LEARNING_RATE = 1e-3
MOE_LAYERS = 2


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", choices=["llama", "mixtral", "deepseek_v3", "qwen3_moe", "deepspeed_moe"], default="llama")
    add("--attention", default="sdpa")
    add("--layers", type=int, default=4)
    add("--sequence", type=int, default=512)
    add("--micro-batch", type=int, default=2)
    add("--tied", action="store_true")
    add("--stage", type=int, default=2)
    add("--precision", choices=["bf16", "fp16", "fp32", "autocast"], default="bf16")
    add("--master", choices=["fp32", "bf16"], default="fp32", help="dtype of master weights and Adam's states")
    add("--accumulate-in", choices=["fp32", "bf16"], help="data_types.grad_accum_dtype")
    add("--offload-optimizer", choices=["cpu", "nvme"])
    add("--offload-param", choices=["cpu", "nvme"])
    add("--pin-memory", action="store_true")
    add("--zero", action="append", default=[], metavar="KEY=VALUE", help="more of zero_optimization")
    add("--accumulation", type=int, default=1)
    add("--checkpointing", choices=["reentrant", "non_reentrant", "deepspeed", "deepspeed_cpu"])
    add("--lora", action="store_true")
    add("--frozen", action="store_true", help="train the last layer alone")
    add("--optimizer", default="AdamW", help="DeepSpeed's name, or torch_fused or torch_foreach")
    add("--loss", choices=["model", "chunked", "tiled"], default="model")
    add("--sequence-parallel", type=int, default=1)
    add("--experts-over", type=int, default=1, help="ep_size of deepspeed.moe")
    add("--steps", type=int, default=2)
    return parser.parse_args()


# ---- models


def model_config(args: argparse.Namespace) -> Any:
    """A config of transformers, 111 million parameters if it is Llama's."""
    import transformers
    from small_llama import SHAPE

    shape = {
        **SHAPE,
        "num_hidden_layers": args.layers,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": args.tied,
        "attn_implementation": args.attention,
        "use_cache": False,
    }
    experts = {
        "llama": {},
        "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
        "qwen3_moe": {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256},
        "deepseek_v3": {
            **{"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256},
            **{"n_group": 4, "topk_group": 2, "q_lora_rank": 192, "kv_lora_rank": 128, "first_k_dense_replace": 1},
            **{"qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64, "num_key_value_heads": 16},
        },
    }
    names = {"llama": "Llama", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "deepseek_v3": "DeepseekV3"}
    # The model's code is imported with it, which fails inside ZeRO-3's context.
    model = getattr(transformers, f"{names[args.model]}ForCausalLM")
    return model.config_class(**{**shape, **experts[args.model]})


class ChunkedLoss(torch.nn.Module):
    """A language model whose logits exist for an eighth of the tokens at a time, in forward and backward."""

    chunks = 8

    def __init__(self, model: Any, tiled: bool) -> None:
        super().__init__()
        self.model = model
        self.tiled = tiled

    def forward(self, input_ids: Any, labels: Any) -> Any:
        hidden = self.model.model(input_ids=input_ids).last_hidden_state[:, :-1]
        labels = labels[:, 1:]
        if self.tiled:
            from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

            loss = TiledFusedLogitsLoss.apply(
                *(self._part, self.model.lm_head, hidden, labels, None, self.chunks, self._head(), "mean")
            )
            return {"loss": loss}
        parts = [
            torch.utils.checkpoint.checkpoint(self._part, self.model.lm_head, part, label, use_reentrant=False)
            for part, label in zip(hidden.chunk(self.chunks, 1), labels.chunk(self.chunks, 1), strict=True)
        ]
        return {"loss": torch.stack(parts).mean()}

    def _head(self) -> list[Any]:
        return [self.model.lm_head.weight]

    @staticmethod
    def _part(head: Any, hidden: Any, labels: Any) -> Any:
        logits = head(hidden).float()
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class DeepSpeedMoE(torch.nn.Module):
    """Experts of deepspeed.moe between an embedding and its transpose."""

    def __init__(self, experts_over: int) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        width = 512
        self.embedding = torch.nn.Embedding(8192, width)
        self.layers = torch.nn.ModuleList(
            MoE(
                hidden_size=width,
                expert=torch.nn.Sequential(
                    torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
                ),
                num_experts=8,
                ep_size=experts_over,
                k=1,
            )
            for _ in range(MOE_LAYERS)
        )
        self.head = torch.nn.Linear(width, 8192)

    def forward(self, input_ids: Any, labels: Any) -> Any:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden)[0]
        logits = self.head(hidden)
        return {"loss": functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))}


class CheckpointedByDeepSpeed(torch.nn.Module):
    """A decoder layer that deepspeed.checkpointing runs again in the backward pass."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Any, **given: Any) -> Any:
        return deepspeed.checkpointing.checkpoint(lambda states: self.layer(states, **given), hidden)


def build_model(args: argparse.Namespace, config: dict[str, Any]) -> Any:
    if args.model == "deepspeed_moe":
        return DeepSpeedMoE(args.experts_over)
    from transformers import AutoModelForCausalLM

    shape = model_config(args)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.stage == 3):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
        model.enable_input_require_grads()
    if args.frozen:
        model.requires_grad_(False)
        model.model.layers[-1].requires_grad_(True)
    _checkpoint(model, args)
    return model if args.loss == "model" else ChunkedLoss(model, args.loss == "tiled")


def _checkpoint(model: Any, args: argparse.Namespace) -> None:
    if args.checkpointing is None:
        return
    if args.checkpointing.startswith("deepspeed"):
        deepspeed.checkpointing.configure(
            None, checkpoint_in_cpu=args.checkpointing == "deepspeed_cpu", num_checkpoints=args.layers
        )
        model.model.layers = torch.nn.ModuleList(CheckpointedByDeepSpeed(layer) for layer in model.model.layers)
        return
    reentrant = {"use_reentrant": args.checkpointing == "reentrant"}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)


# ---- DeepSpeed


def ds_config(args: argparse.Namespace) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": args.stage,
        "overlap_comm": False,
        "reduce_bucket_size": 2_000_000,
        "allgather_bucket_size": 2_000_000,
    }
    if args.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": 1_000_000,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 20_000_000,
            "stage3_max_reuse_distance": 0,
            "sub_group_size": 1_000_000_000,
        }
    for key, device in (("offload_optimizer", args.offload_optimizer), ("offload_param", args.offload_param)):
        if device:
            zero[key] = {"device": device, "pin_memory": args.pin_memory}
            if device == "nvme":
                zero[key]["nvme_path"] = "/nvme"
                zero[key] |= {"buffer_size": 35_000_000} if key == "offload_param" else {}
    for setting in args.zero:
        key, _, value = setting.partition("=")
        zero[key] = {"true": True, "false": False}.get(value) if value in ("true", "false") else int(value)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "sequence_parallel_size": args.sequence_parallel,
        **precision(args),
    }
    if args.accumulate_in:
        config["data_types"] = {"grad_accum_dtype": args.accumulate_in}
    if not args.optimizer.startswith("torch_"):
        config["optimizer"] = {"type": args.optimizer, "params": {"lr": LEARNING_RATE}}
    if not (args.offload_optimizer and args.optimizer in ("AdamW", "Lion", "Adagrad")):
        config["zero_force_ds_cpu_optimizer"] = False
    return config


def precision(args: argparse.Namespace) -> dict[str, Any]:
    """The sections that say in which dtypes parameters, masters and sums are held."""
    if args.precision == "fp16":
        return {"fp16": {"enabled": True, "initial_scale_power": 16, "loss_scale": 0}}
    if args.precision == "bf16":
        states = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        return {"bf16": {"enabled": True, **(states if args.master == "bf16" else {})}}
    if args.precision == "autocast":
        return {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    return {}


def optimizer_of(name: str, parameters: list[Any]) -> Any:
    """None where DeepSpeed makes it from its config."""
    if name == "torch_fused":
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    if name == "torch_foreach":
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=True)
    return None


def initialize(args: argparse.Namespace) -> Any:
    """The engine."""
    config = ds_config(args)
    groups = None
    if args.sequence_parallel > 1:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        model = build_model(args, config)
        groups = UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model,
            core_attn_implementation=args.attention,
            sequence_parallel_size=args.sequence_parallel,
            micro_batch_size=args.micro_batch,
            seq_length=args.sequence,
            seq_length_is_variable=False,
        )
    else:
        model = build_model(args, config)
    trained: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer_of(args.optimizer, trained)
    if args.optimizer == "Muon":
        for parameter in model.parameters():
            parameter.use_muon = parameter.dim() == 2
    if args.model == "deepspeed_moe":
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

        trained = split_params_into_different_moe_groups_for_optimizer({"params": trained, "name": "all"})
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, optimizer=optimizer, config=config, mpu=groups
    )
    return engine


def main() -> None:
    args = options()
    deepspeed.init_distributed()
    engine = initialize(args)
    length = args.sequence // args.sequence_parallel
    ids = torch.randint(0, 8000, (args.micro_batch, length), device=engine.device)
    given = {"input_ids": ids, "labels": ids}
    if args.sequence_parallel > 1:
        start = length * (engine.global_rank % args.sequence_parallel)
        given["position_ids"] = torch.arange(start, start + length, device=engine.device).expand_as(ids)
    engine.train()
    for _ in range(args.steps * args.accumulation):
        loss = engine(**given)["loss"]
        engine.backward(loss)
        engine.step()
    if not args.steps:
        return
    sizes = (getattr(parameter, "ds_numel", parameter.numel()) for parameter in engine.module.parameters())
    print(f"loss {loss.item()} parameters {sum(sizes)}")


if __name__ == "__main__":
    main()
