"""Measured on a real GPU against rehearsed: the same script, with the same arguments, both ways.

`python -m tests.validation.gpu.compare_with_gpu` runs every configuration on the machine's GPU,
rehearses it, and writes
tests/validation/results/gpu.json, in at most eight minutes. `--measure-only` and `--rehearse-only` do one
half and keep the other from the file, so that they may be done on two machines; the second needs no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from zerokit.distributed.ranks import free_port
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.devices import VirtualDevice, virtual_device
from zerokit.rehearsal.job import RehearsalJob

SCRIPT = Path(__file__).with_name("train_once.py")
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "gpu.json"
LIMIT_SECONDS = 480
LIMITS_PERCENT = {"max_allocated": (1.0, 3.0), "max_reserved": (3.0, 8.0)}
"""The largest median and the largest single error that are good enough."""
NEVER = 10**6
"""Steps after which a rehearsal would stop the script; it is to end by itself."""
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

Figures = dict[str, Any]
"""What train_once.py writes."""


@dataclass(frozen=True)
class Configuration:
    """One run."""

    name: str
    options: str
    """Of train_once.py."""
    expandable: bool = False
    """With PyTorch's expandable segments."""

    def arguments(self, nvcc: bool) -> list[str]:
        """DeepSpeed compiles its FusedAdam; where it cannot, torch's takes its place in both halves."""
        return (self.options if nvcc else self.options.replace("fused_adam", "torch_fused")).split()

    @property
    def environment(self) -> dict[str, str]:
        return EXPANDABLE if self.expandable else {}


def _of(name: str, model: str, options: str, *, expandable: bool = False) -> Configuration:
    return Configuration(name, f"--model {model} {options}", expandable)


CONFIGURATIONS = (
    _of("qwen-0.5b-zero0", "qwen2.5-0.5b", "--stage 0 --micro-batch 4"),
    _of("llama-1b-zero1-checkpointing", "llama-3.2-1b", "--stage 1 --checkpointing --sequence 4096"),
    _of("qwen-1.5b-zero2-offload", "qwen2.5-1.5b", "--stage 2 --offload-optimizer --sequence 2048"),
    _of("llama-1b-zero3", "llama-3.2-1b", "--stage 3 --sequence 2048"),
    _of("llama-8b-zero3-lora", "llama-3.1-8b", "--stage 3 --lora --checkpointing --sequence 4096"),
    _of("gpt2-large-zero2-fp16-eager", "gpt2-large", "--stage 2 --precision fp16 --attention eager"),
    _of("qwen-1.5b-zero2-checkpointing", "qwen2.5-1.5b", "--stage 2 --checkpointing --sequence 8192"),
    _of("qwen-1.5b-zero3-offload-all", "qwen2.5-1.5b", "--stage 3 --offload-optimizer --offload-param"),
    _of("qwen-0.5b-zero2-fp32-eager", "qwen2.5-0.5b", "--stage 2 --precision fp32 --attention eager"),
    _of("llama-1b-zero2-padding", "llama-3.2-1b", "--stage 2 --padding --micro-batch 4"),
    _of("llama-7b-zero0-lora", "llama-2-7b", "--stage 0 --lora --checkpointing --sequence 2048"),
    _of("gpt2-xl-zero1", "gpt2-xl", "--stage 1 --checkpointing --micro-batch 8"),
    _of("qwen-1.5b-zero3-accumulation", "qwen2.5-1.5b", "--stage 3 --accumulation 4 --optimizer fused_adam"),
    _of("llama-1b-zero3-fp32", "llama-3.2-1b", "--stage 3 --precision fp32 --micro-batch 2"),
    _of("llama-1b-zero2-autocast", "llama-3.2-1b", "--stage 2 --precision autocast --sequence 2048"),
    _of("qwen-0.5b-zero1-sum-in-fp32", "qwen2.5-0.5b", "--stage 1 --sum-in-fp32 --accumulation 2 --micro-batch 4"),
    _of("qwen3-4b-zero3-lora", "qwen3-4b", "--stage 3 --lora --micro-batch 2 --sequence 1024"),
    _of("llama-1b-zero2-fp16-foreach", "llama-3.2-1b", "--stage 2 --precision fp16 --optimizer torch_foreach"),
    _of("llama-8b-zero2-lora", "llama-3.1-8b", "--stage 2 --lora --sequence 1024"),
    _of("qwen-1.5b-zero2-fused-adam", "qwen2.5-1.5b", "--stage 2 --optimizer fused_adam --micro-batch 2"),
    _of("llama-3b-zero3-offload", "llama-3.2-3b", "--stage 3 --offload-optimizer --checkpointing --sequence 8192"),
    _of("gpt2-large-zero3-dropout", "gpt2-large", "--stage 3 --micro-batch 4"),
    _of("llama-1b-zero2-expandable", "llama-3.2-1b", "--stage 2 --micro-batch 4", expandable=True),
    _of("qwen-0.5b-zero0-fp32-foreach", "qwen2.5-0.5b", "--stage 0 --precision fp32 --optimizer torch_foreach"),
)
"""The first ones are the most different from each other, in case the time is up before the last."""


# ---- one configuration


def measure(configuration: Configuration, arguments: Sequence[str], folder: Path, seconds: float) -> Figures:
    """Train for real. Raises RuntimeError with the last lines of its output if that fails."""
    output = folder / f"{configuration.name}.measured.json"
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environment = {
        **os.environ,
        **configuration.environment,
        **place,
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cuda"},
        "TRAIN_ONCE_TURN": str(folder / "turn"),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
    }
    _run([str(SCRIPT), *arguments, "--output", str(output)], environment, seconds)
    return dict(json.loads(output.read_text(encoding="utf-8")))


def rehearse(
    configuration: Configuration, arguments: Sequence[str], folder: Path, device: VirtualDevice, seconds: float
) -> Figures:
    """Rehearse the same on one virtual GPU. Raises RuntimeError if that fails."""
    output = folder / f"{configuration.name}.rehearsed.json"
    job = RehearsalJob(
        script=str(SCRIPT),
        arguments=[*arguments, "--output", str(output)],
        num_gpus=1,
        gpus_per_node=1,
        rank=0,
        steps=NEVER,
        device=device,
        cwd=str(folder),
        recording_file=str(folder / f"{configuration.name}.npz"),
    )
    job_file = folder / f"{configuration.name}.job"
    job_file.write_text(job.to_json(), encoding="utf-8")
    environment = {**os.environ, **configuration.environment}
    _run(["-m", "zerokit.rehearsal.worker.run", str(job_file)], environment, seconds)
    return dict(json.loads(output.read_text(encoding="utf-8")))


def _run(arguments: Sequence[str], environment: dict[str, str], seconds: float) -> None:
    """Run Python; RuntimeError says why it did not come to its end."""
    try:
        outcome = subprocess.run(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(seconds, 1.0),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError("the time was up") from None
    if outcome.returncode != 0:
        raise RuntimeError(last_lines(outcome.stdout))


def last_lines(printed: str) -> str:
    """What says most of a failed run: the end of its traceback."""
    lines = [line for line in printed.strip().splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]


def gpu_of_this_machine() -> VirtualDevice:
    """Asked in a process of its own, so that this one never takes memory of the GPU. Raises RuntimeError."""
    question = (
        "import json, torch; p = torch.cuda.get_device_properties(0); "
        "capability, more = [p.major, p.minor], [p.multi_processor_count, p.L2_cache_size]; "
        "print(json.dumps([p.name, p.total_memory, capability, *more]))"
    )
    outcome = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise RuntimeError(f"torch finds no GPU: {last_lines(outcome.stderr)}")
    name, total, capability, multiprocessors, l2_cache = json.loads(outcome.stdout.splitlines()[-1])
    return VirtualDevice(name, total, tuple(capability), multiprocessors, l2_cache)


# ---- all of them


def errors_percent(measured: Figures | None, rehearsed: Figures | None) -> dict[str, float] | None:
    """By how much each rehearsed figure is beside the measured one, signed; None if one is missing."""
    if not measured or not rehearsed:
        return None
    pairs = {name: (measured[name], rehearsed[name]) for name in LIMITS_PERCENT}
    pairs["after_last_step"] = (measured["allocated_after_step"][-1], rehearsed["allocated_after_step"][-1])
    return {name: round(100 * (mine - truth) / truth, 3) for name, (truth, mine) in pairs.items()}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and largest error of each figure, without signs, and how many configurations they are of."""
    found: dict[str, Any] = {}
    compared = [row["errors_percent"] for row in rows if row["errors_percent"]]
    for name in (*LIMITS_PERCENT, "after_last_step"):
        sizes = [abs(errors[name]) for errors in compared]
        found[name] = {
            "median_percent": round(statistics.median(sizes), 3) if sizes else None,
            "worst_percent": max(sizes, default=None),
        }
    return {"compared": len(compared), **found}


def shortfalls(found: dict[str, Any]) -> list[str]:
    """What of a summary is worse than `LIMITS_PERCENT`."""
    if not found["compared"]:
        return ["nothing was compared"]
    return [
        f"{name}: {kind} {found[name][key]} % is more than {limit} %"
        for name, limits in LIMITS_PERCENT.items()
        for kind, key, limit in zip(("median", "worst"), ("median_percent", "worst_percent"), limits, strict=True)
        if found[name][key] > limit
    ]


def run_all(
    chosen: Sequence[Configuration],
    run_one: Callable[[Configuration, float], Figures],
    limit_seconds: float,
    at_once: int,
) -> tuple[dict[str, Figures], dict[str, str]]:
    """Figures, and what went wrong, by the name of the configuration.

    Args:
        run_one: is given a configuration and the seconds that are left, and may raise RuntimeError.
        at_once: how many to start together.
    """
    deadline = time.monotonic() + limit_seconds
    figures, failures = {}, {}

    def attempt(configuration: Configuration) -> None:
        begun = time.monotonic()
        try:
            if deadline <= begun:
                raise RuntimeError("the time was up")
            figures[configuration.name] = run_one(configuration, deadline - begun)
            said = f"{figures[configuration.name]['max_allocated'] / 2**30:.2f} GiB"
        except RuntimeError as error:
            failures[configuration.name] = said = str(error)
        print(f"{configuration.name}: {said} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(attempt, chosen))
    return figures, failures


def versions() -> dict[str, str]:
    """Of everything that has a say in the figures."""
    packages = ("torch", "deepspeed", "transformers", "accelerate", "peft", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


# ---- the command


def options(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    parser.add_argument("--limit-seconds", type=float, default=LIMIT_SECONDS, help="for everything together")
    parser.add_argument("--output", type=Path, default=WRITTEN)
    parser.add_argument("--gpu", default="H100", help="card to rehearse if neither a GPU nor the file says")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--measure-only", action="store_true")
    half.add_argument("--rehearse-only", action="store_true")
    return parser.parse_args(given)


def read(file: Path) -> dict[str, Any]:
    """The document of earlier halves; empty if there is none."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def device_of(document: dict[str, Any]) -> VirtualDevice | None:
    """The GPU of the measured half."""
    facts = document.get("gpu")
    return None if facts is None else VirtualDevice(**{**facts, "capability": tuple(facts["capability"])})


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Do what the options ask for; the document to write."""
    document = read(args.output)
    before = {row["name"]: row for row in document.get("configurations", [])}
    chosen = [configuration for configuration in CONFIGURATIONS if args.only in configuration.name]
    if args.rehearse_only:
        device = device_of(document) or virtual_device(find_gpu(args.gpu))
        nvcc = bool(document.get("nvcc", True))
    else:
        device = gpu_of_this_machine()
        nvcc = shutil.which("nvcc") is not None
    deadline = time.monotonic() + args.limit_seconds
    cores = os.cpu_count() or 1
    results: dict[str, tuple[dict[str, Figures], dict[str, str]]] = {}
    if not args.rehearse_only:
        # The others import while one has the GPU.
        results["measured"] = run_all(
            chosen,
            lambda one, left: measure(one, one.arguments(nvcc), folder, left),
            args.limit_seconds * (1.0 if args.measure_only else 0.8),
            at_once=min(3, max(1, cores // 4)),
        )
    if not args.measure_only:
        results["rehearsed"] = run_all(
            chosen,
            lambda one, left: rehearse(one, one.arguments(nvcc), folder, device, left),
            deadline - time.monotonic(),
            at_once=max(1, cores // 2),
        )
    rows = [
        _row(one, one.arguments(nvcc), results, before.get(one.name, {}))
        for one in CONFIGURATIONS
        if one in chosen or one.name in before
    ]
    return _document(document, rows, results, device, nvcc)


def _row(
    configuration: Configuration,
    arguments: list[str],
    results: dict[str, tuple[dict[str, Figures], dict[str, str]]],
    before: dict[str, Any],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": configuration.name,
        "arguments": arguments,
        "environment": configuration.environment,
    }
    failures = dict(before.get("failures", {}))
    # Figures of other arguments say nothing of these.
    kept = before if before.get("arguments") == arguments else {}
    for half in ("measured", "rehearsed"):
        figures, failed = results.get(half, ({}, {}))
        row[half] = figures.get(configuration.name, kept.get(half))
        if half in results:
            failures.pop(half, None)
        if configuration.name in failed:
            row[half], failures[half] = None, failed[configuration.name]
    return {**row, "errors_percent": errors_percent(row["measured"], row["rehearsed"]), "failures": failures}


def _document(
    before: dict[str, Any], rows: list[dict[str, Any]], results: dict[str, Any], device: VirtualDevice, nvcc: bool
) -> dict[str, Any]:
    today = {"date": datetime.date.today().isoformat(), "versions": versions()}
    measured = today if "measured" in results else before.get("measured_with")
    return {
        "what": "Bytes that torch.cuda reports on one GPU, measured and rehearsed, of the same script",
        "script": str(SCRIPT.relative_to(REPOSITORY)),
        "gpu": asdict(device) if measured else None,
        "nvcc": nvcc,
        "measured_with": measured,
        "rehearsed_with": today if "rehearsed" in results else before.get("rehearsed_with"),
        "summary": summary(rows),
        "configurations": rows,
    }


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 1 if a configuration failed, or the errors are larger than they may be."""
    args = options(given)
    with tempfile.TemporaryDirectory() as folder:
        document = compare(args, Path(folder))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["summary"], indent=1))
    wrong = [f"{row['name']}: {what}" for row in document["configurations"] for what in row["failures"].values()]
    if not (args.measure_only or args.rehearse_only):
        wrong += shortfalls(document["summary"])
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
