"""The fixed inputs of `tests.validation.golden`: command lines, models and data, the same at every run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.tiny import REPOSITORY

SCRIPTS = REPOSITORY / "tests" / "rehearsal" / "scripts"
MODELS = [
    *["llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "tinyllama-1.1b", "mistral-7b", "mixtral-8x7b"],
    *["qwen2-7b", "qwen2.5-0.5b", "qwen2.5-32b", "qwen3-0.6b", "qwen1.5-moe-a2.7b", "gemma-2-9b"],
    *["phi-3-mini", "gpt2", "opt-1.3b", "bloom-7b1", "falcon-7b", "pythia-6.9b"],
    *["olmo-7b", "t5-base", "bart-large", "bert-base-uncased", "deberta-v3-base", "deepseek-v2-lite"],
    *["gpt-oss-20b"],
]
"""Names of the catalogue for estimates."""

SCRIPT_RUNS: dict[str, list[str]] = {
    "llama-zero2": ["--num-gpus", "8", "features.py", "--stage", "2"],
    "llama-zero3-checkpointing": [
        *["--num-gpus", "16", "features.py", "--stage", "3", "--checkpointing", "non_reentrant"]
    ],
    "llama-zero3-offload": [
        *["--num-gpus", "4", "features.py", "--stage", "3", "--offload-optimizer", "cpu"],
        *["--offload-param", "cpu", "--optimizer", "AdamW"],
    ],
    "llama-zero1-fp16": ["--num-gpus", "4", "features.py", "--stage", "1", "--precision", "fp16"],
    "llama-zero2-lora": ["--num-gpus", "2", "features.py", "--stage", "2", "--lora"],
    "llama-chunked-loss": ["--num-gpus", "2", "features.py", "--stage", "2", "--loss", "chunked"],
    "llama-zero0-accumulation": ["--num-gpus", "2", "features.py", "--stage", "0", "--accumulation", "4"],
    "mixtral-zero3": ["--num-gpus", "8", "features.py", "--stage", "3", "--model", "mixtral", "--layers", "2"],
    "qwen3-moe-zero2": ["--num-gpus", "8", "features.py", "--stage", "2", "--model", "qwen3_moe"],
    "deepspeed-moe": ["--num-gpus", "4", "features.py", "--model", "deepspeed_moe", "--experts-over", "4"],
    "accelerate": ["--num-gpus", "4", "features_accelerate.py", "--stage", "2"],
    "fsdp": ["--num-gpus", "4", "fully_sharded.py"],
    "pipeline": ["--num-gpus", "4", "pipeline.py"],
    "tensor-parallel": ["--num-gpus", "8", "tensor_parallel.py"],
    "expert-parallel": ["--num-gpus", "8", "expert_parallel.py"],
    "by-hand": ["--num-gpus", "2", "--gpu", "A100-80GB", "by_hand.py"],
    "raises": ["--num-gpus", "2", "broken_raises.py"],
}
"""Arguments of `zerokit rehearse`, with the script's name relative to `SCRIPTS`."""
_TASKS = ("causal_lm", "sequence_classification", "token_classification", "masked_lm", "seq2seq", "dpo")
_LORA = {"type": "lora", "r": 4, "lora_alpha": 8}


def recipes() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield name, number of ranks and recipe (without model, data and folders) of 20 short training runs."""
    for task in _TASKS:
        yield f"{task}-1-rank", 1, _recipe(task, stage=2)
    for task in ("causal_lm", "dpo"):
        yield (f"{task}-lora", 1, _recipe(task, stage=2, peft={**_LORA, "target_modules": ["q_proj", "v_proj"]}))
    for stage in range(4):
        yield f"causal_lm-zero{stage}", 2, _recipe("causal_lm", stage=stage)
    for task in ("seq2seq", "token_classification"):
        yield f"{task}-zero3", 2, _recipe(task, stage=3)
    yield "offload", 2, _recipe("causal_lm", stage=3, offload=True)
    yield "lora-zero3", 2, _recipe("causal_lm", stage=3, peft={**_LORA, "target_modules": "all-linear"})
    yield "bf16", 1, _recipe("causal_lm", stage=2, precision="bf16")
    yield "no-packing", 1, _recipe("causal_lm", stage=1, task_keys={"packing": False, "padding_free": False})
    yield "evaluates", 1, _recipe("causal_lm", stage=2, training={"eval_strategy": "steps", "eval_steps": 2})
    yield "accumulates", 2, _recipe("causal_lm", stage=2, training={"gradient_accumulation_steps": 3})


def _recipe(
    task: str,
    *,
    stage: int,
    offload: bool = False,
    precision: str = "fp32",
    peft: dict[str, Any] | None = None,
    task_keys: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    if offload:
        zero |= {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    recipe: dict[str, Any] = {
        "precision": precision,
        "task": {"type": task, "seq_len": 64, **(task_keys or {})},
        "training": {
            "max_steps": 6,
            "per_device_train_batch_size": 4,
            "learning_rate": 5e-3,
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": 3,
            **(training or {}),
        },
        "deepspeed": {"zero_optimization": zero},
    }
    return recipe | ({"peft": peft} if peft else {})


def write_models(folder: Path) -> None:
    """Write a tiny model, training data and held-out data for each task below `folder`."""
    from tests.validation.training.task_table import TRIALS

    for task in _TASKS:
        trial, place = TRIALS[task], folder / task
        place.mkdir(parents=True)
        trial.model(place / "model")
        choose = random.Random(0)
        for name, count in (("train", 60), ("eval", 12)):
            lines = [json.dumps(trial.examples(choose)) for _ in range(count)]
            (place / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def write_recipe(file: Path, recipe: dict[str, Any], models: Path, output: Path) -> None:
    """Write `recipe` as YAML, completed with the paths of its model, data and output folder."""
    place = models / recipe["task"]["type"]
    complete = {
        "model": str(place / "model"),
        "data": {"train": str(place / "train.jsonl"), "eval": str(place / "eval.jsonl")},
        **recipe,
    }
    complete["training"] = {**recipe["training"], "output_dir": str(output)}
    file.write_text(yaml.safe_dump(complete))


def estimate_runs(count: int = 200) -> Iterator[list[str]]:
    """Yield arguments of `zerokit estimate`, drawn at random and the same at every call."""
    for number in range(count):
        choose = random.Random(f"golden-{number}")
        stage = choose.randrange(4)
        words = [choose.choice(MODELS), "--num-gpus", str(choose.choice([1, 2, 4, 8, 16, 64]))]
        words += ["--zero-stage", str(stage), "--micro-batch-size", str(choose.choice([1, 2, 4, 8]))]
        words += ["--seq-len", str(choose.choice([128, 256, 512]))]
        words += ["--precision", choose.choice(["bf16", "fp16", "fp32"] if stage else ["bf16", "fp32"])]
        if stage and choose.random() < 0.4:
            words += ["--offload-optimizer", "cpu"]
        if stage == 3 and choose.random() < 0.3:
            words += ["--offload-param", "cpu"]
        for flag, chance in (("--gradient-checkpointing", 0.5), ("--chunked-loss", 0.2), ("--liger", 0.1)):
            words += [flag] if choose.random() < chance else []
        if choose.random() < 0.3:
            words += ["--lora-rank", str(choose.choice([8, 64]))]
            words += ["--load-in-4bit"] if stage < 3 and choose.random() < 0.3 else []
        elif choose.random() < 0.3:
            words += ["--optimizer", choose.choice(["sgd", "lion", "adafactor", "adamw_8bit"])]
        words += ["--gpu", choose.choice(["H100", "A100-80GB", "4090"])]
        yield words


def resolve_runs(configs: list[Path], count: int = 50) -> Iterator[list[str]]:
    """Yield arguments of `zerokit resolve` for `count` of the configs, the same at every call."""
    choose = random.Random("golden-resolve")
    for file in choose.sample(sorted(configs), min(count, len(configs))):
        target = choose.choice(["trainer", "accelerate", "deepspeed"])
        yield [
            *[str(file), "--num-gpus", str(choose.choice([1, 4, 8, 16])), "--target", target],
            *["--model", choose.choice(["llama-2-7b", "qwen2.5-0.5b"])],
            *["--argument", "per_device_train_batch_size=2", "--all"],
        ]
