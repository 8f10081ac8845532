"""CPU seconds of `zerokit checkpoint show` of a 70B folder of 64 ranks.

``python -m tests.validation.benchmarks.show --write`` puts the result into results/show.json and
records/checkpoints.md.
The files have what DeepSpeed writes, and holes for the elements of tensors: a few MiB of disk for 800 GiB, on
a file system that knows holes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.benchmarks.cost import cost_of, fastest
from zerokit.units import format_bytes

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "show.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "checkpoints.md"
BEGIN, END = "<!-- shown -->\n", "<!-- /shown -->\n"
RANKS = 64
STAGES = (2, 3)
RUNS = 5
SUB_GROUP_SIZE = 10**9
"""DeepSpeed's own, which divides what a rank has under stage 3."""


def make(folder: Path, stage: int) -> None:
    """Write a checkpoint of Llama-3.1-70B's shape in bf16, of Adam."""
    import torch
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in LlamaForCausalLM(config).named_parameters()}
    whole = sum(math.ceil(shape.numel() / RANKS) for shape in shapes.values())
    sizes = [min(SUB_GROUP_SIZE, whole - begin) for begin in range(0, whole, SUB_GROUP_SIZE)]
    sizes = sizes if stage == 3 else [whole]
    with FakeTensorMode():
        module = {
            name: torch.empty(0 if stage == 3 else shape, dtype=torch.bfloat16) for name, shape in shapes.items()
        }
        flat = [torch.empty(size) for size in sizes]
        moments = {
            number: {"step": torch.empty(()), "exp_avg": torch.empty(size), "exp_avg_sq": torch.empty(size)}
            for number, size in enumerate(sizes)
        }
    model = {
        "module": module,
        "buffer_names": [],
        "param_shapes": [shapes],
        "shared_params": {},
        "global_steps": 1200,
        "dp_world_size": RANKS,
        "ds_version": "0.19.8",
    }
    key, inner = (
        ("fp32_flat_groups", "optimizer_state_dict")
        if stage == 3
        else ("single_partition_of_fp32_groups", "base_optimizer_state")
    )
    optimizer = {
        "zero_stage": ZeroStageEnum(stage),
        "partition_count": RANKS if stage == 3 else [RANKS],
        key: flat,
        inner: {"state": moments, "param_groups": [{"lr": 1e-5, "params": list(moments)}]},
    }
    step = folder / "global_step1200"
    step.mkdir(parents=True)
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        for rank in range(RANKS):
            name = f"zero_pp_rank_{rank}_mp_rank_00"
            if stage == 3:
                torch.save(model, step / f"{name}_model_states.pt")
            elif rank == 0:
                torch.save(model, step / "mp_rank_00_model_states.pt")
            torch.save({"optimizer_state_dict": optimizer}, step / f"bf16_{name}_optim_states.pt")


def measure(stage: int) -> dict[str, Any]:
    """The fastest of some runs."""
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: what makes the files takes much memory.
        cost_of([sys.executable, "-m", "tests.validation.benchmarks.show", "--make", folder, "--stage", f"{stage}"])
        python = [sys.executable, "-c", "from zerokit.cli.main import main; main()"]
        costs = [cost_of([*python, "checkpoint", "show", folder]) for _ in range(RUNS)]
        assert "70,553,706,496 elements" in costs[0].printed, costs[0].printed
        step = Path(folder, "global_step1200")
        nbytes = sum(file.stat().st_size for file in step.iterdir())
        files = len(list(step.iterdir()))
    cost = fastest(costs)
    return {
        "files": files,
        "bytes": nbytes,
        "cpu_seconds": round(cost.cpu_seconds, 2),
        "peak_resident_bytes": cost.resident_bytes,
    }


def table(results: Mapping[str, Any]) -> str:
    """The page's."""
    lines = ["| stage | files | bytes | CPU seconds | peak resident memory |", "|---|---|---|---|---|"]
    lines += [
        f"| {stage} | {one['files']} | {format_bytes(one['bytes'])} | {one['cpu_seconds']} | "
        f"{format_bytes(one['peak_resident_bytes'])} |"
        for stage, one in results["stages"].items()
    ]
    return "\n".join(lines) + "\n"


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite the file and the page")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stage", type=int, choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.stage)
        return
    measured = {str(stage): measure(stage) for stage in STAGES}
    results = {"command": "python -m tests.validation.benchmarks.show --write", "ranks": RANKS, "stages": measured}
    print(table(results))
    if options.write:
        WRITTEN.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table(results) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    _main()
