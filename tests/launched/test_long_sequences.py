"""Tiled MLPs and offloaded activations on two ranks: the same run as without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

CASES: dict[str, tuple[int, bool, bool]] = {
    "stage 0": (0, False, True),
    "stage 3": (3, False, True),
    "stage 3 without checkpoints": (3, False, False),
    "stage 3 with lora": (3, True, True),
}
"""The ZeRO stage, whether an adapter is trained, whether layers are checkpointed."""

CONTEXT = "the long context"
"""Sorted last: DeepSpeed keeps the groups of a process."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model", hidden_size=32)
    text = "A class definition is an executable statement. " * 3
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text * (i % 3 + 1)}) + "\n" for i in range(24)))
    for name, (stage, lora, checkpoints) in CASES.items():
        for is_tiled in (False, True):
            recipe: dict[str, Any] = {
                "model": "model",
                "data": {"train": "data.jsonl", "eval_fraction": 0},
                "task": {"seq_len": 128},
                "precision": "fp32",
                "training": {
                    "output_dir": f"{name} tiled" if is_tiled else name,
                    "max_steps": 3,
                    "per_device_train_batch_size": 2,
                    "gradient_accumulation_steps": 2,
                    "optim": "sgd",
                    "learning_rate": 0.1,
                    "lr_scheduler_type": "constant",
                    "logging_steps": 1,
                    "save_strategy": "no",
                    "gradient_checkpointing": checkpoints,
                    "tiled_mlp": is_tiled,
                    "activation_offloading": is_tiled and checkpoints,
                },
                "deepspeed": {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True},
            }
            if lora:
                recipe["peft"] = {"type": "lora", "target_modules": ["q_proj", "up_proj"], "lora_dropout": 0.0}
            (folder / f"{name} {is_tiled}.yaml").write_text(yaml.safe_dump(recipe))
    (folder / f"{CONTEXT}.yaml").write_text(yaml.safe_dump(small_context()))
    result = launch(["tests/launched/train_recipes.py", folder], ranks=2, launcher="none")
    assert result.returncode == 0, result.stderr[-4000:]
    return folder


def small_context() -> dict[str, Any]:
    """The recipe of the docs, for a tiny model on two ranks."""
    recipe: dict[str, Any] = yaml.safe_load((REPOSITORY / "docs/recipes/long_context.yaml").read_text())
    recipe["model"] = "model"
    recipe["data"]["train"] = "data.jsonl"
    recipe["task"]["seq_len"] = 127  # which two ranks do not divide
    recipe["parallel"]["sequence"] = 2
    recipe["precision"] = "fp32"
    recipe["training"] |= {"output_dir": CONTEXT, "max_steps": 3, "logging_steps": 1, "save_strategy": "no"}
    recipe["training"]["learning_rate"] = 0.01
    for key in ("num_train_epochs", "save_steps", "save_total_limit"):
        del recipe["training"][key]
    return recipe


@pytest.mark.parametrize("name", CASES)
def test_a_run_with_tiles_is_the_run_without(name: str, trained: Path) -> None:
    runs = []
    for out in (trained / name, trained / f"{name} tiled"):
        entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        # Without ZeRO the engine measures no norm of gradients that it does not clip.
        figures = [(entry["loss"], entry.get("grad_norm", 0.0)) for entry in entries if "loss" in entry]
        assert len(figures) == 3
        runs.append((torch.tensor(figures), load_file(next(out.glob("*model.safetensors")))))
    (losses, weights), (tiled_losses, tiled_weights) = runs
    torch.testing.assert_close(tiled_losses, losses, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(tiled_weights, weights, rtol=0, atol=1e-6)
    assert losses[0, 0] != losses[2, 0]


def test_the_recipe_of_the_docs_trains(trained: Path) -> None:
    entries = [json.loads(line) for line in (trained / CONTEXT / "metrics.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert len(losses) == 3
    assert losses[2] < losses[0]
