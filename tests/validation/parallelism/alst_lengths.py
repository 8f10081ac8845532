"""Finds the longest sequence that fits in rehearsal beside those of ArcticTraining's recipes, and records both.

``python -m tests.validation.parallelism.alst_lengths [--only NAME ...]`` rehearses train_alst.py (it needs
liger-kernel) and rewrites the rows in results/alst_lengths.json. The published lengths are `max_length` in
projects/sequence-parallelism/run-h100-*.yml, at the commit below; those of Llama-8B are in the paper too
(arXiv 2506.13996: 500K, 3.7M and 15M on 1, 8 and 32 H100s).

Peaks of a GPU are linear in layers, which are alike, and in tokens, so two numbers of layers and two lengths
are rehearsed. The memory that a process needs lies between allocated bytes with the least overhead (`least`)
and reserved bytes with the most (`most`), which is what nvidia-smi shows. Host memory is counted by a formula:
18 bytes per parameter for DeepSpeed's Adam on the CPU (master weights, two states, gradients in fp32 and bf16) and
2 for offloaded parameters, and 2 bytes for each hidden unit of the inputs of layers. All recipes compute the loss
with Liger, outside of the output layer, so that ZeRO-3 keeps the whole output matrix until the backward pass ends.
The kernels of Liger that these runs used index with 32 bits, so that
hidden states of one GPU have at most 2^31 elements (linkedin/Liger-Kernel#803, by the author of ALST).

Why rehearsed lengths of Qwen3-32B and Llama-70B are above the published ones is not known in full. The recipes pack
short documents (ultrachat_200k); here a sequence is one document. NCCL's connections to each rank of an all-to-all
are not counted, only those of a ring and a tree. The reading of nvidia-smi at 7,000,000 tokens is of torch 2.4. Host
memory is not short by much in the formula: by it Llama-70B takes 1.80 of 1.9 TB on 64 GPUs, where it ran.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests import processes
from tests.tiny import REPOSITORY
from zerokit.models import catalogue, load_model_shape

COMMIT = "b28638e6c577ece34cc147ab3d45d27a7f66b33b"
SCRIPT = Path(__file__).with_name("train_alst.py")
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "alst_lengths.json"
H100_BYTES = 81_559 * 2**20
"""As nvidia-smi counts them."""
NODE_BYTES = int(1.9e12)
"""Of a node's host memory, by the README beside the recipes."""
LAYERS = (2, 4)
_COMMAND = "from zerokit.cli.main import main; main()"


@dataclass(frozen=True)
class Published:
    """A recipe, and what is published of its run."""

    model: str
    gpus: int
    length: int
    nvidia_smi_gib: float | None = None
    """``NV`` in a comment of the recipe; arctic_training/debug/utils.py prints GiB as GB."""
    limit: str = "not stated"
    """What kept the sequence from being longer, by comments of the recipe, and the torch that they name."""


RECIPES = {
    "llama-8b-1": Published("meta-llama/Llama-3.1-8B", 1, 500_000, limit="illegal memory access at 555,000"),
    "llama-8b-8": Published("meta-llama/Llama-3.1-8B", 8, 3_800_000),
    "llama-8b-32": Published("meta-llama/Llama-3.1-8B", 32, 15_500_000, limit="not stated; '? re-run w/ pt-nightly'"),
    "qwen3-32b-8": Published("Qwen/Qwen3-32B", 8, 1_550_000),
    "qwen3-32b-32": Published("Qwen/Qwen3-32B", 32, 7_000_000, 71.55, "GPU memory, with torch 2.4"),
    "qwen3-32b-64": Published("Qwen/Qwen3-32B", 64, 15_000_000, 71.00, "GPU memory"),
    "llama-70b-32": Published("meta-llama/Llama-3.1-70B", 32, 4_000_000, 47.70, "host memory"),
    "llama-70b-64": Published("meta-llama/Llama-3.1-70B", 64, 10_000_000, 53.83),
}


def rehearse(point: dict[str, Any], gpus: int) -> dict[str, Any]:
    """The report of a rehearsal of train_alst.py on nodes of 8 H100s, with more memory than it needs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "point.json"
        file.write_text(json.dumps(point), encoding="utf-8")
        words = ["--num-gpus", gpus, "--gpu-memory", "2000GiB", "--host-memory", "20TiB", "--rank", 0]
        words += ["--no-advise", "--steps", 1, "--format", "json", SCRIPT, file]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"},
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }
        command = [sys.executable, "-c", _COMMAND, "rehearse", *map(str, words)]
        done = processes.run(command, cwd=REPOSITORY, env=environment, together=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{point['length']}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def host_bytes(published: Published, length: int) -> float:
    """Of a node, by the formula above."""
    model = load_model_shape(published.model)
    hidden, layers = model.config["hidden_size"], model.config["num_hidden_layers"]
    node = min(published.gpus, 8) / published.gpus
    states = model.num_parameters * (20 if published.gpus == 1 else 18)
    return node * (states + 2 * length * hidden * layers)


def measure(published: Published) -> dict[str, Any]:
    """The longest lengths, and what the published length takes."""
    known = catalogue.find(published.model)
    assert known is not None
    layers = known.config["num_hidden_layers"]
    zero: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}
    if published.gpus == 1:
        zero["offload_param"] = {"device": "cpu"}
    least: list[float] = []
    unused = 0.0
    for length in (published.length // 2, published.length):
        few, more = (
            rehearse(
                {
                    "config": {**known.config, "num_hidden_layers": count},
                    "sequence_parallel": published.gpus,
                    "length": length,
                    "zero": zero,
                    "tiled_mlp": True,
                    "offload": True,
                    "loss": "liger",
                },
                published.gpus,
            )["fit"]
            for count in LAYERS
        )
        each = (more["low_bytes"] - few["low_bytes"]) / (LAYERS[1] - LAYERS[0])
        least.append(few["low_bytes"] + each * (layers - LAYERS[0]))
        unused = more["high_bytes"] - more["low_bytes"]
    return row_of(published, least[0], least[1], unused)


def row_of(published: Published, half: float, full: float, unused: float) -> dict[str, Any]:
    """The row of a recipe.

    Args:
        half: the least bytes of a GPU at half of the published length.
        full: at all of it.
        unused: how much more it may take at that length; it grows with the tokens.
    """
    length = published.length
    hidden = load_model_shape(published.model).config["hidden_size"]

    def longest(more: float) -> int:
        per_token = (full - half) / (length - length // 2) + more / length
        return int(length + (H100_BYTES - full - more) / per_token)

    at_host = host_bytes(published, length)
    per_token = (at_host - host_bytes(published, 0)) / length
    by = {
        "gpu memory, most": longest(unused),
        "gpu memory, least": longest(0),
        "host memory": int(length + (NODE_BYTES - at_host) / per_token),
        "32-bit indices": 2**31 // hidden * published.gpus,
    }
    limit = min((name for name in by if name != "gpu memory, least"), key=lambda name: by[name])
    gib = {"least": round(full / 2**30, 2), "most": round((full + unused) / 2**30, 2)}
    read = published.nvidia_smi_gib
    return {
        "model": published.model,
        "gpus": published.gpus,
        "published_length": length,
        "published_limit": published.limit,
        "longest_by": by,
        "longest": by[limit],
        "limit": limit,
        "error": round(by[limit] / length - 1, 3),
        "gpu_gib_at_published_length": gib,
        "nvidia_smi_gib": read,
        "nvidia_smi_error": read and round(gib["most"] / read - 1, 3),
        "host_gb_at_published_length": round(at_host / 1e9),
        "rehearsed_layers": LAYERS,
        "source": f"snowflakedb/ArcticTraining@{COMMIT}",
        "versions": {name: version(name) for name in ("torch", "deepspeed", "transformers")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--jobs", type=int, default=1, help="recipes at a time")
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, row in zip(options.only, pool.map(lambda name: measure(RECIPES[name]), options.only), strict=True):
            rows[name] = row
            print(f"{name}: {row['published_length']:,} published, {row['longest']:,} rehearsed", flush=True)
            ordered = {name: rows[name] for name in RECIPES if name in rows}
            WRITTEN.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
