"""Seconds and memory of `zerokit checkpoint export` beside DeepSpeed's ``zero_to_fp32.py``, with 1.5B.

``python -m tests.validation.benchmarks.export --stage 3 --write`` writes results/export.json and
records/checkpoints.md. One process writes the files that two ranks would: 9 GiB, without the moments of the
optimizer, which neither reads. It needs 25 GiB of disk in ``TMPDIR`` and 11 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.benchmarks.cost import cost_of
from zerokit.units import format_bytes

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "export.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "checkpoints.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"
RANKS = 2
STAGES = (2, 3)
COMMAND = "python -m tests.validation.benchmarks.export --stage STAGE --write"


def make(folder: Path, stage: int) -> None:
    """Write a checkpoint of Qwen2.5-1.5B's shape, with random weights."""
    import torch
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    torch.manual_seed(0)
    flat = torch.randn(sum(shape.numel() for shape in shapes.values()))
    rows = flat.split([shape.numel() for shape in shapes.values()])
    weights = {name: row.view(shape) for (name, shape), row in zip(shapes.items(), rows, strict=True)}
    step = folder / "global_step1"
    step.mkdir(parents=True)
    (folder / "latest").write_text(step.name)
    config.save_pretrained(folder)
    names = "mp_rank_00_model_states.pt" if stage < 3 else "zero_pp_rank_{}_mp_rank_00_model_states.pt"
    module = {
        name: tensor.bfloat16() if stage < 3 else torch.empty(0, dtype=torch.bfloat16)
        for name, tensor in weights.items()
    }
    state = {
        "module": module,
        "buffer_names": [],
        "param_shapes": [shapes],
        "shared_params": {},  # with them, --safe_serialization of zero_to_fp32.py fails
        "global_steps": 1,
        "dp_world_size": RANKS,
        "ds_version": "0.19.8",
    }
    for rank in range(RANKS if stage == 3 else 1):
        torch.save(state, step / names.format(rank))
    del module, state
    if stage == 3:
        each = [tensor.view(-1).split(math.ceil(tensor.numel() / RANKS)) for tensor in weights.values()]
        parts = ([part[rank] for part in each] for rank in range(RANKS))
    else:
        parts = ([part] for part in flat.chunk(RANKS))
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    for rank, part in enumerate(parts):
        states = {"zero_stage": ZeroStageEnum(stage), "partition_count": RANKS, key: [torch.cat(part)]}
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": states}, step / name)


def measure(folder: Path, stage: int) -> dict[str, Any]:
    """Each way once; their weights are compared."""
    if not (folder / "run").exists():
        itself = [sys.executable, "-m", "tests.validation.benchmarks.export"]
        subprocess.run([*itself, "--make", folder / "run", "--stage", f"{stage}"], check=True)
    python = [sys.executable, "-c", "from zerokit.cli.main import main; main()", "checkpoint"]
    theirs = [sys.executable, "-m", "deepspeed.utils.zero_to_fp32", "--safe_serialization"]
    ways = {
        "zero_to_fp32.py": [*theirs, str(folder / "run"), str(folder / "theirs")],
        "export --dtype fp32": [*python, "export", str(folder / "run"), "-o", str(folder / "ours"), "--dtype=fp32"],
        "export": [*python, "export", str(folder / "run"), "-o", str(folder / "bf16")],
        "verify": [*python, "verify", str(folder / "run")],
        "show": [*python, "show", str(folder / "run")],
    }
    costs = {name: cost_of(command) for name, command in ways.items()}
    differing = _differing(folder / "ours", folder / "theirs")
    assert not differing, differing
    return {
        name: {
            "wall_seconds": round(cost.wall_seconds, 1),
            "cpu_seconds": round(cost.cpu_seconds, 1),
            "peak_resident_bytes": cost.resident_bytes,
        }
        for name, cost in costs.items()
    }


def _differing(ours: Path, theirs: Path) -> list[str]:
    import torch
    from safetensors import safe_open

    def tensors(folder: Path) -> Mapping[str, Any]:
        files = [safe_open(file, "pt") for file in folder.glob("*.safetensors")]
        return {name: file for file in files for name in file.keys()}  # noqa: SIM118

    left, right = tensors(ours), tensors(theirs)
    assert left.keys() == right.keys()
    return [
        name for name, file in left.items() if not torch.equal(file.get_tensor(name), right[name].get_tensor(name))
    ]


def table(results: Mapping[str, Any]) -> str:
    """The page's."""
    lines = ["| stage | way | seconds | CPU seconds | peak resident memory |", "|---|---|---|---|---|"]
    for stage, ways in results["stages"].items():
        lines += [
            f"| {stage} | `{way}` | {cost['wall_seconds']} | {cost['cpu_seconds']} | "
            f"{format_bytes(cost['peak_resident_bytes'])} |"
            for way, cost in ways.items()
        ]
    return "\n".join(lines) + "\n"


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite the file and the page")
    parser.add_argument("--stage", type=int, choices=STAGES, required=True)
    parser.add_argument("--folder", type=Path, help="for the checkpoint, which is kept; else a temporary one")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.stage)
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="export-"))
    try:
        measured = {str(options.stage): measure(folder, options.stage)}
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    stages = json.loads(WRITTEN.read_text(encoding="utf-8"))["stages"] if WRITTEN.is_file() else {}
    results = {"command": COMMAND, "ranks": RANKS, "stages": dict(sorted({**stages, **measured}.items()))}
    print(table(results))
    if options.write:
        WRITTEN.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table(results) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    _main()
