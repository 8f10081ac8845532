"""Finds the longest sequence that fits in rehearsal beside those of ArcticTraining's recipes, and records both.

``python -m tests.validation.parallelism.alst_lengths [--only NAME ...]`` rehearses train_alst.py and rewrites the
rows in results/alst_lengths.json. The published lengths are `max_length` in
projects/sequence-parallelism/run-h100-*.yml, at the commit below; those of Llama-8B are in the paper too
(arXiv 2506.13996: 500K, 3.7M and 15M on 1, 8 and 32 H100s). pip installs the versions of that month in a folder
that the rehearsals import from first (``--packages`` keeps it); torch stays the installed one.

Peaks of a GPU are linear in tokens, so two lengths are rehearsed, with two layers; each further layer adds its part
of the parameters in bf16. The memory that a process needs lies between allocated bytes with the least overhead
(`least`) and reserved bytes with the most (`most`), which is what nvidia-smi shows.

Host memory of a node is counted by a formula:

- 18 bytes per parameter for DeepSpeed's Adam on the CPU: master weights, two states, gradients in fp32 and bf16.
- 10 more for the copies of master weights and gradients that a worker of the DataLoader keeps. All recipes have one
  (`dl_num_workers: 1`). It is forked when the loader is wrapped, after deepspeed.initialize, in which DeepSpeed
  0.17.1 fills these three (stage3.py: torch.zeros of the gradients, of which every page is written). The first step
  writes them in the parent, and the kernel copies each page. We measured 512 MiB more memory of both processes
  after writing a tensor of 512 MiB that existed at the fork. Moments are allocated in the first step.
- 2 for offloaded parameters, and 2 for their copies.
- 2 bytes for each hidden unit of the inputs of layers.
- the most of a process (`HOST_PROCESS`).

Kernels of Liger before 0.6.1 index with 32 bits, so that the tensors of one GPU have at most 2^31 elements: the norms
rows of the hidden size, the rotary embeddings rows of all query heads (ops/rms_norm.py and rope.py:
``program_id * row_stride``). Those of Qwen3-32B are wider than its hidden size.

Tried without an effect on the longest lengths, for Qwen3-32B with 7,000,000 tokens on 32 GPUs: versions of today
(59.9 GiB at most, 60.9 with the old ones and packed documents). Documents of 1,200 tokens add 128 rows each to the
fp32 gradient of queries in flash attention's backward pass: 0.8 GiB. Not counted: NCCL's buffers of further groups
of the same size (WORLD, the sequence's, and ZeRO's: at most 0.9 GiB each), and that torch before 2.8 cannot reuse
the input of an all-to-all before NCCL's stream has read it (3.3 GiB). The run of that row had torch 2.4, its author
writes that torch before 2.8 took more memory, and 8 GiB of its GPUs
were free: 7.85 million tokens would have filled them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests import processes
from tests.tiny import REPOSITORY
from zerokit.hardware.non_torch_memory import HOST_PROCESS
from zerokit.models import catalogue, load_model_shape

COMMIT = "b28638e6c577ece34cc147ab3d45d27a7f66b33b"
VERSIONS = {"deepspeed": "0.17.1", "transformers": "4.51.3", "liger-kernel": "0.5.10"}
"""The ones of June 2025 (the README names transformers 4.51.3), and what transformers needs:"""
_NEEDED = {"tokenizers": "0.21.1", "huggingface-hub": "0.31.1"}
SCRIPT = Path(__file__).with_name("train_alst.py")
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "alst_lengths.json"
H100_BYTES = 81_559 * 2**20
"""As nvidia-smi counts them."""
NODE_BYTES = int(1.9e12)
"""Of a node's host memory, by the README beside the recipes."""
LAYERS = 2
DOCUMENT = 1200
"""Tokens of a conversation of ultrachat_200k: 207,865 take 1.4 GB, by 4.5 bytes a token and with prompts repeated."""
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

    @property
    def shorter(self) -> int:
        """About half of the length; all ranks have as many tokens."""
        return self.length // 2 // self.gpus * self.gpus


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


def install(folder: Path, versions: dict[str, str]) -> None:
    """Put `versions` into `folder`."""
    names = [f"{name}=={number}" for name, number in versions.items()]
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *names]
    subprocess.run(words, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})


def rehearse(published: Published, length: int, packages: Path) -> dict[str, Any]:
    """The report of a rehearsal of train_alst.py on nodes of 8 H100s, with more memory than it needs."""
    known = catalogue.find(published.model)
    assert known is not None
    zero: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}
    if published.gpus == 1:
        zero["offload_param"] = {"device": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "point.json"
        point = {"gpus": published.gpus, "length": length, "zero": zero, "document": DOCUMENT}
        file.write_text(json.dumps(point), encoding="utf-8")
        config = {**known.config, "num_hidden_layers": LAYERS}
        file.with_name("config.json").write_text(json.dumps(config), encoding="utf-8")
        words = ["--num-gpus", published.gpus, "--gpu-memory", "2000GiB", "--host-memory", "20TiB", "--rank", 0]
        words += ["--no-advise", "--steps", 1, "--format", "json", SCRIPT, file]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"},
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{packages}",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }
        command = [sys.executable, "-c", _COMMAND, "rehearse", *map(str, words)]
        done = processes.run(command, cwd=REPOSITORY, env=environment, together=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{length}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["run"]["versions"]["deepspeed"] == VERSIONS["deepspeed"]
    return report


def host_bytes(published: Published, length: int) -> float:
    """Of a node, by the formula above."""
    model = load_model_shape(published.model)
    hidden, layers = model.config["hidden_size"], model.config["num_hidden_layers"]
    ranks = min(published.gpus, 8)
    states = model.num_parameters * (32 if published.gpus == 1 else 28)
    return float(ranks * (HOST_PROCESS[1] + (states + 2 * length * hidden * layers) / published.gpus))


def measure(published: Published, packages: Path) -> dict[str, Any]:
    """The longest lengths, and what the published length takes."""
    whole = load_model_shape(published.model)
    few = load_model_shape({**whole.config, "num_hidden_layers": LAYERS})
    further = 0.0 if published.gpus == 1 else 2 * (whole.num_parameters - few.num_parameters) / published.gpus
    lengths = published.shorter, published.length
    half, full = (rehearse(published, length, packages)["fit"] for length in lengths)
    unused = full["high_bytes"] - full["low_bytes"]
    return row_of(published, half["low_bytes"] + further, full["low_bytes"] + further, unused)


def row_of(published: Published, half: float, full: float, unused: float) -> dict[str, Any]:
    """The row of a recipe.

    Args:
        half: the least bytes of a GPU at the shorter length.
        full: at all of it.
        unused: how much more it may take at that length; it grows with the tokens.
    """
    length = published.length
    config = load_model_shape(published.model).config
    heads = config["num_attention_heads"]
    widest = max(config["hidden_size"], heads * config.get("head_dim", config["hidden_size"] // heads))

    def longest(more: float) -> int:
        per_token = (full - half) / (length - published.shorter) + more / length
        return int(length + (H100_BYTES - full - more) / per_token)

    at_host = host_bytes(published, length)
    per_token = (at_host - host_bytes(published, 0)) / length
    by = {
        "gpu memory, most": longest(unused),
        "gpu memory, least": longest(0),
        "host memory": int(length + (NODE_BYTES - at_host) / per_token),
        "32-bit indices": 2**31 // widest * published.gpus,
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
        "versions": {"torch": version("torch"), **VERSIONS},
    }


def filling_length(row: dict[str, Any]) -> float:
    """The length with which nvidia-smi would show a full GPU: all that it showed but the states grows with tokens."""
    length, least = row["published_length"], row["gpu_gib_at_published_length"]["least"] * 2**30
    per_token = (H100_BYTES - least) / (row["longest_by"]["gpu memory, least"] - length)
    states = least - per_token * length
    return float(length * (H100_BYTES - states) / (row["nvidia_smi_gib"] * 2**30 - states))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--jobs", type=int, default=1, help="recipes at a time")
    parser.add_argument("--packages", type=Path, help="folder of the versions above; made if it is not there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        packages = options.packages or Path(folder) / "packages"
        if not packages.exists():
            install(packages, {**VERSIONS, **_NEEDED})
        record(options.only, options.jobs, packages)


def record(names: list[str], jobs: int, packages: Path) -> None:
    """Rewrite the rows of `names`."""
    rows: dict[str, Any] = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else {}
    with ThreadPoolExecutor(jobs) as pool:
        for name, row in zip(names, pool.map(lambda name: measure(RECIPES[name], packages), names), strict=True):
            rows[name] = row
            print(f"{name}: {row['published_length']:,} published, {row['longest']:,} rehearsed", flush=True)
            ordered = {name: rows[name] for name in RECIPES if name in rows}
            WRITTEN.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
