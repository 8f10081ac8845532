"""Rehearses docs/recipes/long_context.yaml at 1M tokens on 8 virtual H100s, with and without each of its parts.

``python -m tests.validation.parallelism.long_context [--only VARIANT ...]`` rewrites results/long_context.json. The
model is Llama-3.1-8B from scratch, with more positions and a small tokenizer. Each variant is rehearsed with enough
memory to hold it, so that its whole peak is known; `fits` compares the memory that it needs with a H100 of 80 GB.
Rank 0 is rehearsed, which gathers the final model in host memory, and rank 1 for the host memory of the others.

``--swift`` rehearses the seconds of a step of ms-swift's examples/train/sequence_parallel/sequence_parallel_512k.sh
(QwQ-32B with LoRA on 8 A100s of 80 GB, 150 s/it by its first lines), with `zerokit train` in place of ms-swift. It
needs liger-kernel, which the example uses. A cause of its 180 s: adapters, which peft makes in fp32, stay so.
DeepSpeed before 0.19.2 cast them to bf16, as in that run; since #8066 it does not where the model was made within
zero.Init. Of the 1.92 s of matmuls in each layer, frozen weights take 1.47 by the costs of the A100, and
adapters 0.45, where they would take 0.08 in bf16: 24 s less of a step, and fewer casts. A
rehearsal with DeepSpeed 0.19.1 needs
`use_reentrant: true` (it partitions frozen parameters too early), and has not been made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests import processes
from tests.tiny import REPOSITORY, tiny_tokenizer
from tests.validation.parallelism.alst_lengths import H100_BYTES
from zerokit.models import catalogue

RECIPE = REPOSITORY / "docs" / "recipes" / "long_context.yaml"
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "long_context.json"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "as it is": {},
    "without chunked loss": {"task": {"chunked_loss": False}},
    "without tiled MLP": {"training": {"tiled_mlp": False}},
    "without activation offloading": {"training": {"activation_offloading": False}},
}
"""Changes of the recipe."""
SWIFT = "ms-swift QwQ-32B at 512,000 tokens"
SWIFT_SECONDS = 150.0
DOCUMENT = 10_000
"""Tokens of a document; those of LongAlpaca-12k are packed, and we have not counted them."""
GPUS = 8
_COMMAND = "from zerokit.cli.main import main; main()"


def write_start(folder: Path, tokens: int) -> None:
    """A tokenizer, and documents of so many tokens, a digit each."""
    tiny_tokenizer(folder / "tokenizer")
    line = json.dumps({"text": "0123456789" * (tokens // 10)}) + "\n"
    (folder / "books.jsonl").write_text(line * (2_000_000 // tokens), encoding="utf-8")


def recipe_of(changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The recipe, for a model from scratch."""
    recipe: dict[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    known = catalogue.find("meta-llama/Llama-3.1-8B")
    assert known is not None
    positions = recipe["task"]["seq_len"]
    config = {**known.config, "max_position_embeddings": positions}
    config["dtype"] = config.pop("torch_dtype", None)
    recipe["model"] = {
        "from_config": config,
        "tokenizer": "tokenizer",
        "attn_implementation": recipe["model"]["attn_implementation"],
    }
    recipe["training"]["max_steps"] = 1
    recipe["training"]["save_strategy"] = "no"
    for key in ("num_train_epochs", "save_steps", "save_total_limit"):
        del recipe["training"][key]
    for section, values in changes.items():
        recipe[section] = {**recipe[section], **values}
    return recipe


def swift_recipe() -> dict[str, Any]:
    """The example's settings. QwQ-32B has the dimensions of Qwen2.5-32B; ms-swift adapts all linear layers."""
    known = catalogue.find("Qwen/Qwen2.5-32B")
    assert known is not None
    length = 512_000
    config = {**known.config, "max_position_embeddings": length}
    config["dtype"] = config.pop("torch_dtype", None)
    recipe = recipe_of({"task": {"seq_len": length}, "training": {"gradient_accumulation_steps": 2}})
    recipe["model"]["from_config"] = config
    recipe["training"] |= {"tiled_mlp": False, "activation_offloading": False, "use_liger_kernel": True}
    recipe["peft"] = {"type": "lora", "r": 8, "target_modules": "all-linear"}
    recipe["deepspeed"]["zero_optimization"]["offload_param"] = {"device": "cpu"}
    return recipe


def rehearse(recipe: dict[str, Any], tokens: int, gpu: str = "H100", rank: int = 0) -> dict[str, float]:
    """Bytes of a rank's GPU and of its host memory, and seconds of a step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_start(folder, tokens)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        words = ["--num-gpus", GPUS, "--gpu", gpu, "--gpu-memory", "2000GiB", "--host-memory", "20TiB", "--rank", rank]
        words += ["--time", "--no-advise", "--format", "json", "-m", "zerokit.train", "--recipe", "recipe.yaml"]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"},
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }
        done = processes.run(
            [sys.executable, "-c", _COMMAND, "rehearse", *map(str, words)], cwd=folder, env=environment
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr[-3000:])
    report = json.loads(done.stdout)
    return {
        "allocated": report["device"]["peak_bytes"],
        "low": report["fit"]["low_bytes"],
        "high": report["fit"]["high_bytes"],
        "host": report["host"]["peak_bytes"],
        "seconds": report["time"]["step_seconds"],
    }


def measure(changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The row of a variant."""
    found, other = (rehearse(recipe_of(changes), 2_000_000, rank=rank) for rank in (0, 1))
    return {
        "gpu_peak_gib": round(found["allocated"] / 2**30, 1),
        "gpu_needs_gib": [round(found["low"] / 2**30, 1), round(found["high"] / 2**30, 1)],
        "fits": found["low"] <= H100_BYTES,
        "host_gib_per_node": round((found["host"] + (GPUS - 1) * other["host"]) / 2**30),
        "step_seconds": round(found["seconds"], 1),
    }


def measure_swift() -> dict[str, Any]:
    """Seconds of a step, beside those that are published."""
    seconds = rehearse(swift_recipe(), DOCUMENT, "A100-80GB")["seconds"]
    error = round(seconds / SWIFT_SECONDS - 1, 3)
    return {"published_seconds": SWIFT_SECONDS, "step_seconds": round(seconds, 1), "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--swift", action="store_true", help="only the step of ms-swift's example")
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else {}
    for name in [SWIFT] if options.swift else options.only:
        rows[name] = measure_swift() if options.swift else measure(VARIANTS[name])
        print(name, rows[name], flush=True)
        ordered = {name: rows[name] for name in (*VARIANTS, SWIFT) if name in rows}
        WRITTEN.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
