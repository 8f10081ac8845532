"""Trains two steps under each of several configs on all ranks, and saves checkpoints.

Beside each lie its weights, as DeepSpeed itself has them, in float32 (``truth-RANK.safetensors``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.launched.checkpoint_runs import ADAPTER, NEXT_STEPS, RUNS, SAVED_AT, ZERO_KEYS


class Mixture(torch.nn.Module):
    """Two layers, one of experts that are spread over the ranks."""

    def __init__(self) -> None:
        from deepspeed.moe.layer import MoE

        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.moe = MoE(16, torch.nn.Linear(16, 16), num_experts=4, ep_size=dist.get_world_size(), k=1)
        self.register_buffer("scale", torch.arange(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The loss of some rows of 16."""
        mixed: torch.Tensor = self.moe(self.first(rows))[0]
        return mixed.float().pow(2).mean()


def _pipeline() -> Any:
    """Two stages, of which the first layer and the last have one weight."""
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    def scores(embedding: Any, rows: torch.Tensor) -> torch.Tensor:
        return rows @ embedding.weight.t()

    def loss(scored: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(scored.float().view(-1, 11), tokens.view(-1))

    tied, linear = ("embed", torch.nn.Embedding, 11, 8), (torch.nn.Linear, 8, 8)
    first, last = TiedLayerSpec(*tied), TiedLayerSpec(*tied, forward_fn=scores)
    layers = [first, LayerSpec(*linear), LayerSpec(torch.nn.LayerNorm, 8), LayerSpec(*linear), last]
    return PipelineModule(layers, num_stages=2, loss_fn=loss, partition_method="uniform")


def begin(run: dict[str, Any], folder: Path) -> Any:
    """DeepSpeed's engine, with a model and two groups of parameters."""
    torch.manual_seed(0)
    zero = {"stage": run["stage"], "stage3_param_persistence_threshold": 0}
    zero |= {key: run[key] for key in ZERO_KEYS if key in run}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if run["precision"]:
        config[run["precision"]] = {"enabled": True}
    if "data_types" in run:
        config["data_types"] = run["data_types"]
    if run["precision"] == "fp16":
        config["fp16"]["initial_scale_power"] = 4
    if run.get("divided") == "tensors":
        config["tensor_parallel"] = {"autotp_size": dist.get_world_size()}
    if run.get("divided") == "pipeline":
        config["gradient_accumulation_steps"] = 2
        model: Any = _pipeline()
    else:
        model = Mixture() if run.get("experts") else _llama(run, folder)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for _, parameter in named if parameter.dim() > 1], "weight_decay": 0.1, "name": "a"},
        {"params": [parameter for _, parameter in named if parameter.dim() < 2], "weight_decay": 0.0, "name": "b"},
    ]
    if run.get("experts"):
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

        groups = split_params_into_different_moe_groups_for_optimizer(
            [{"params": [parameter for _, parameter in named], "name": "all"}]
        )
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=run.get("lr", 0.01))
    # torch multiplies fp16 on any processor; DeepSpeed asks for one that is fast at it; few are.
    with patch.object(get_accelerator(), "is_fp16_supported", return_value=True):
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine: Any, steps: Iterable[int], rows: Sequence[int]) -> list[float]:
    """Train some steps on rows of examples, which are the same at a step wherever they are; the mean losses.

    Each rank has as many rows as the others.
    """
    losses = []
    for step in steps:
        if hasattr(engine, "train_batch"):
            tokens = _tokens(step, 0, 11)
            losses.append(engine.train_batch(iter([(tokens, tokens)] * 2)).item())
            continue
        examples = [_example(engine, step, row) for row in rows]
        if isinstance(examples[0], dict):
            tokens = torch.cat([example["input_ids"] for example in examples])
            loss = engine(input_ids=tokens, labels=tokens).loss
        else:
            loss = engine(torch.cat(examples))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def _example(engine: Any, step: int, row: int) -> Any:
    if isinstance(engine.module, Mixture):
        torch.manual_seed(100 + step + 10 * row)
        return torch.randn(8, 16, dtype=torch.bfloat16)
    return {"input_ids": _tokens(step, row, 50)}


def _tokens(step: int, row: int, vocabulary: int) -> torch.Tensor:
    torch.manual_seed(100 + step + 10 * row)
    return torch.randint(0, vocabulary, (1, 8))


def save(name: str, run: dict[str, Any], folder: Path) -> None:
    """Make a model, train it, save it into `folder`, and write the losses of the next steps."""
    engine = begin(run, folder)
    model = engine.module
    rows = [0 if run.get("divided") else dist.get_rank()]
    train(engine, range(SAVED_AT), rows)
    engine.save_checkpoint(str(folder), exclude_frozen_parameters=run.get("without_frozen", False))
    truth: dict[str, torch.Tensor] = {}
    with _whole(model, run["stage"]):
        for parameter_name, parameter in model.named_parameters():
            # DeepSpeed looks for them elsewhere with round_robin_gradients.
            moved = run.get("round_robin_gradients") or run.get("experts")
            master = None
            if parameter.requires_grad and not moved:
                # It is the release that decides under which stages bf16 has some.
                master = safe_get_full_fp32_param(parameter)
            weight = parameter.detach() if master is None else master
            truth[parameter_name] = weight.float().clone().contiguous()
        truth |= {
            buffer: tensor.float()
            for buffer, tensor in model.state_dict().items()
            if buffer not in truth and "scale" in buffer
        }
    save_file(truth, folder / f"truth-{dist.get_rank()}.safetensors")
    if run.get("goes_on"):
        losses = train(engine, NEXT_STEPS, rows)
        (folder / "losses.json").write_text(json.dumps(losses))
    dist.barrier()


def _llama(run: dict[str, Any], folder: Path) -> Any:
    even = int(run.get("divided") == "tensors")
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=51 + even,
            hidden_size=12,
            intermediate_size=23 + even,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1 + even,
            tie_word_embeddings=run.get("tied", False),
            bos_token_id=None,
            eos_token_id=0,
            attention_bias=True,
        )
    )
    model.config.save_pretrained(folder)
    if run.get("frozen"):
        model.model.layers[0].requires_grad_(False)
    if run.get("adapter"):
        import peft

        if dist.get_rank() == 0:
            model.save_pretrained(folder / "base")
        adapter = peft.LoraConfig(**ADAPTER)
        model = peft.get_peft_model(model, adapter)
        if dist.get_rank() == 0:
            model.save_pretrained(folder / "adapter")
            (folder / "adapter" / "adapter_config.json").replace(folder / "adapter_config.json")
    return model


@contextmanager
def _whole(model: torch.nn.Module, stage: int) -> Iterator[None]:
    if stage < 3:
        yield
        return
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    with deepspeed.zero.GatheredParameters(frozen):
        yield


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    out, *only = sys.argv[1:]
    for name, run in RUNS.items():
        if not only or name in only:
            save(name, run, Path(out) / name)
