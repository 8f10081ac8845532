"""Rehearses docs/recipes/long_context.yaml at 1M tokens on 8 virtual H100s, with and without each of its parts.

``python -m tests.validation.parallelism.long_context [--layers N] [--only VARIANT ...]`` rewrites
results/long_context.json. The model is Llama-3.1-8B from scratch, with more positions and a small tokenizer. Each
variant is rehearsed with enough memory to hold it, so that its whole peak is known; `fits` compares the
memory that it needs with a H100 of 80 GB. With fewer layers than 32, bytes and seconds are extrapolated from
two numbers of layers, which are alike.

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


def recipe_of(layers: int, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The recipe, for a model from scratch."""
    recipe: dict[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    known = catalogue.find("meta-llama/Llama-3.1-8B")
    assert known is not None
    positions = recipe["task"]["seq_len"]
    config = {**known.config, "num_hidden_layers": layers, "max_position_embeddings": positions}
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


def swift_recipe(layers: int) -> dict[str, Any]:
    """The example's settings. QwQ-32B has the dimensions of Qwen2.5-32B; ms-swift adapts all linear layers."""
    known = catalogue.find("Qwen/Qwen2.5-32B")
    assert known is not None
    length = 512_000
    config = {**known.config, "num_hidden_layers": layers, "max_position_embeddings": length}
    config["dtype"] = config.pop("torch_dtype", None)
    recipe = recipe_of(layers, {"task": {"seq_len": length}, "training": {"gradient_accumulation_steps": 2}})
    recipe["model"]["from_config"] = config
    recipe["training"] |= {"tiled_mlp": False, "activation_offloading": False, "use_liger_kernel": True}
    recipe["peft"] = {"type": "lora", "r": 8, "target_modules": "all-linear"}
    recipe["deepspeed"]["zero_optimization"]["offload_param"] = {"device": "cpu"}
    return recipe


def rehearse(recipe: dict[str, Any], tokens: int, gpu: str = "H100") -> dict[str, float]:
    """Bytes of a GPU and of the node's host memory, and seconds of a step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_start(folder, tokens)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        words = ["--num-gpus", GPUS, "--gpu", gpu, "--gpu-memory", "2000GiB", "--host-memory", "20TiB", "--rank", 0]
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
        "host": report["host"]["peak_bytes"] * GPUS,
        "seconds": report["time"]["step_seconds"],
    }


def measure(layers: tuple[int, int], changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The row of a variant, for 32 layers."""
    few, more = (rehearse(recipe_of(count, changes), 2_000_000) for count in layers)
    whole = {key: few[key] + (more[key] - few[key]) / (layers[1] - layers[0]) * (32 - layers[0]) for key in few}
    whole["high"] = whole["low"] + more["high"] - more["low"]  # memory between blocks is not linear in layers
    return {
        "gpu_peak_gib": round(whole["allocated"] / 2**30, 1),
        "gpu_needs_gib": [round(whole["low"] / 2**30, 1), round(whole["high"] / 2**30, 1)],
        "fits": whole["low"] <= H100_BYTES,
        "host_gib_per_node": round(whole["host"] / 2**30),
        "step_seconds": round(whole["seconds"], 1),
        "rehearsed_layers": layers,
    }


def measure_swift(layers: tuple[int, int]) -> dict[str, Any]:
    """Seconds of a step of all 64 layers, beside those that are published."""
    few, more = (rehearse(swift_recipe(count), DOCUMENT, "A100-80GB")["seconds"] for count in layers)
    seconds = few + (more - few) / (layers[1] - layers[0]) * (64 - layers[0])
    error = round(seconds / SWIFT_SECONDS - 1, 3)
    return {"published_seconds": SWIFT_SECONDS, "step_seconds": round(seconds, 1), "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, nargs=2, default=(2, 4), metavar="N")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--swift", action="store_true", help="only the step of ms-swift's example")
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else {}
    for name in [SWIFT] if options.swift else options.only:
        layers = tuple(options.layers)
        rows[name] = measure_swift(layers) if options.swift else measure(layers, VARIANTS[name])
        print(name, rows[name], flush=True)
        ordered = {name: rows[name] for name in (*VARIANTS, SWIFT) if name in rows}
        WRITTEN.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
