"""Compare the estimate with DeepSpeed's and accelerate's.

``python -m tests.validation.benchmarks.estimate [--write]``

One model, each tool in a process of its own: CPU seconds, memory that the process took, and the answer. With
``--write`` the table goes into records/estimate-accuracy.md and tests/validation/results/estimators.json.

DeepSpeed's function wants a model whose parameters have memory: it tells them apart by their addresses, and
on torch's meta device, where all are at 0, it takes them for one. Here it gets one whose 131 GiB are reserved
and never written. accelerate's command asks the Hub for the config; here it is given that of zerokit's
catalogue, so that no network is in its time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.benchmarks.cost import Cost, costs_in_turn, fastest, print_ratios
from zerokit.models import load_model_shape

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "estimators.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "estimate-accuracy.md"
BEGIN, END = "<!-- estimators: begin -->\n", "<!-- estimators: end -->"

RUNS = 3
GIB = 2**30
MODEL = "meta-llama/Llama-3.1-70B"
ARGUMENTS = [
    *("estimate", "llama-3.1-70b", "--num-gpus", "64", "--zero-stage", "3"),
    *("--micro-batch-size", "1", "--seq-len", "4096", "--format", "json"),
]

ZEROKIT = f"import sys; sys.argv = ['zerokit', *{ARGUMENTS!r}]; from zerokit.cli.main import main; main()"
DEEPSPEED = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs_all_live
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(FOLDER), dtype=torch.bfloat16)
model = model.to_empty(device="cpu")
estimate_zero3_model_states_mem_needs_all_live(model, num_gpus_per_node=8, num_nodes=8)
"""
ACCELERATE = """
import types
from accelerate.commands import estimate
def from_folder(name, library_name, **_):
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModel
    with init_empty_weights():
        return AutoModel.from_config(AutoConfig.from_pretrained(FOLDER))
estimate.create_empty_model = from_folder
estimate.estimate_command(types.SimpleNamespace(
    model_name="MODEL", library_name="transformers", trust_remote_code=False, dtypes=["float16"]))
"""

LEFT_OUT = {
    "zerokit estimate": "nothing on purpose; fragmentation, CUDA's context and NCCL as intervals",
    "DeepSpeed, estimate_zero3_model_states_mem_needs_all_live": (
        "activations, logits and loss; reduce bucket; parameters gathered ahead and kept for reuse (it has "
        "four bytes of the largest module); copies of the optimizer's step; precision, optimizer and "
        "ds_config (Adam in 16 bits with all defaults); context and NCCL"
    ),
    "accelerate estimate-memory": (
        "ZeRO, offload and the number of GPUs; activations, logits and loss; buffers; optimizers other than "
        "Adam; the sum of its terms (its answer is the largest); the output matrix (it builds the model "
        "without its head); context and NCCL; the host"
    ),
}


def answer_of(tool: str, printed: str) -> str:
    """What a person would take from the output as the memory of one GPU."""
    if tool.startswith("zerokit"):
        data = json.loads(printed)
        device, host = data["device"], data["host"]
        return (
            f"{device['peak_bytes'] / GIB:.1f} GiB in {device['peak_phase']}, "
            f"{device['low_bytes'] / GIB:.1f} to {device['high_bytes'] / GIB:.1f} with what lies outside the "
            f"allocator; host {host['per_node_bytes'] / GIB:.1f} GiB per node"
        )
    if tool.startswith("DeepSpeed"):
        lines = [line for line in printed.splitlines() if "offload_optimizer=none" in line and "zero_init=1" in line]
        host, device = re.findall(r"([\d.]+)GB", lines[0])
        return f"{device} GiB; host {host} GiB per node"
    return f"{printed.splitlines()[-2].split('│')[-2].strip()} (training, float16)"


def compare() -> dict[str, list[Cost]]:
    """What each tool takes, and prints."""
    codes = dict(zip(LEFT_OUT, (ZEROKIT, DEEPSPEED, ACCELERATE), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        config = dict(load_model_shape(MODEL, allow_network=False).config)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        commands = {
            tool: [sys.executable, "-c", code.replace("FOLDER", repr(folder)).replace("MODEL", MODEL)]
            for tool, code in codes.items()
        }
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        return costs_in_turn(commands, RUNS, stderr=subprocess.DEVNULL, env=environment)


def record(tool: str, cost: Cost) -> dict[str, Any]:
    """A row of the table."""
    return {
        "tool": tool,
        "cpu_seconds": round(cost.cpu_seconds, 2),
        "wall_seconds": round(cost.wall_seconds, 2),
        "resident_mib": round(cost.resident_bytes / 2**20),
        "answer": answer_of(tool, cost.printed),
        "leaves_out": LEFT_OUT[tool],
    }


def table(records: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| | CPU | memory to answer | one GPU | leaves out |", "|---|---|---|---|---|"]
    lines += [
        f"| {one['tool']} | {one['cpu_seconds']:.2f} s | {one['resident_mib']:,} MiB | {one['answer']} "
        f"| {one['leaves_out']} |"
        for one in records
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite the files in docs/")
    options = parser.parse_args()
    costs = compare()
    records = [record(tool, fastest(runs)) for tool, runs in costs.items()]
    for one in records:
        print(f"{one['tool']}\n  {one['answer']}\n  leaves out: {one['leaves_out']}")
    print_ratios({tool.split(",")[0]: runs for tool, runs in costs.items()}, "zerokit estimate")
    if options.write:
        WRITTEN.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(before + BEGIN + "\n" + table(records) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
