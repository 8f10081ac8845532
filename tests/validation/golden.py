"""Record what every command reports for fixed inputs, and compare two such records.

    python -m tests.validation.golden record FOLDER --data SHARED_DATA [--logs FOLDER] [--only KIND ...]
    python -m tests.validation.golden compare OLD NEW [--renamed MAP.json]

Use it before and after a change that must not change results. `record` runs the commands of the checkout that
it is started in, through their command line only, so that it survives any restructuring. It writes one JSON
file per kind. `compare` exits with 1 where numbers, identifiers or structure differ. It counts reworded
sentences apart, and lists those in which a number differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation import golden_inputs as inputs

LIMIT_SECONDS = 600
VARYING = {"elapsed_seconds", "files"}
"""Keys whose values differ from run to run."""
CLOCK_TOLERANCE = 0.01, 1e-4
"""Relative, and in seconds: rehearsed times include the host's own waiting, which varies a little."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

Cases = Iterator[tuple[str, Any]]


def zerokit(*words: str, folder: Path) -> dict[str, Any]:
    """Run a command and return its exit code and what it printed on stdout, as JSON where it is JSON."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets-cache"),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "COLUMNS": "120",
    }
    if words[0] == "rehearse":
        del environment["DS_ACCELERATOR"]
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    out = done.stdout.replace(str(folder), "FOLDER").replace(str(REPOSITORY), "REPOSITORY")
    try:
        printed: Any = json.loads(out)
    except ValueError:
        printed = out.splitlines()
    result: dict[str, Any] = {"code": done.returncode, "out": printed}
    if done.returncode == 2 or "--format" not in words:
        result["err"] = done.stderr.replace(str(folder), "FOLDER").splitlines()[-1:]
    return result


def checks(folder: Path, data: Path, logs: Path | None) -> Cases:
    """`check` of all published ds_configs, for each target."""
    files = sorted(map(str, (data / "wild_configs").glob("*.json")))
    for target in ("", "trainer", "accelerate", "deepspeed"):
        words = ["--target", target] if target else []
        yield (
            target or "no target",
            zerokit("check", *words, "--severity", "info", "--format", "json", *files, folder=folder),
        )


def estimates(folder: Path, data: Path, logs: Path | None) -> Cases:
    """`estimate` of 200 random runs."""
    for words in inputs.estimate_runs():
        yield " ".join(words), zerokit("estimate", *words, "--format", "json", folder=folder)


def resolved(folder: Path, data: Path, logs: Path | None) -> Cases:
    """`resolve` of 50 published ds_configs."""
    for words in inputs.resolve_runs(list((data / "wild_configs").glob("[0-9]*.json"))):
        name = " ".join([Path(words[0]).name, *words[1:]])
        yield name, zerokit("resolve", *words, "--format", "json", folder=folder)


def deaths(folder: Path, data: Path, logs: Path | None) -> Cases:
    """`explain-exit` of kept logs, and of the decisive lines of recorded deaths."""
    for log in sorted(logs.rglob("*.log")) if logs else ():
        yield str(log.relative_to(logs or log)), zerokit("explain-exit", str(log), folder=folder)
    recorded = json.loads((REPOSITORY / "tests" / "validation" / "results" / "deaths.json").read_text())
    for number, row in enumerate(recorded):
        log = folder / f"{number}.log"
        log.write_text(f"starting\n{row['line']}\n")
        yield f"{row['death']} ({row['launcher']})", zerokit("explain-exit", str(log), folder=folder)


def rehearsals(folder: Path, data: Path, logs: Path | None) -> Cases:
    """`rehearse` of scripts and recipes, without and with the clock."""
    inputs.write_models(folder / "models")
    runs = {name: _options_and_script(words) for name, words in inputs.SCRIPT_RUNS.items()}
    chosen = {"causal_lm-zero3", "seq2seq-zero3", "causal_lm-lora"}
    for name, _, recipe in inputs.recipes():
        if name in chosen:
            file = folder / f"{name}.yaml"
            inputs.write_recipe(file, recipe, folder / "models", folder / f"out-{name}")
            train = str(REPOSITORY / "launch" / "train.py")
            runs[f"recipe-{name}"] = (["--num-gpus", "4"], [train, "--recipe", str(file)])
    for name, (options, script) in runs.items():
        for clock in ((), ("--time",)):
            card = [] if "--gpu" in options else ["--gpu", "H100"]
            words = [*options, *card, "--no-advise", "--format", "json", *clock, *script]
            yield " ".join([name, *clock]), zerokit("rehearse", *words, folder=folder)


def _options_and_script(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words before the script, and give the script its absolute path."""
    place = next(number for number, word in enumerate(words) if word.endswith(".py"))
    return words[:place], [str(inputs.SCRIPTS / words[place]), *words[place + 1 :]]


def trainings(folder: Path, data: Path, logs: Path | None) -> Cases:
    """Losses and weights of 20 short runs, and exports of the checkpoints of 10 of them."""
    inputs.write_models(folder / "models")
    exported = 0
    for name, ranks, recipe in inputs.recipes():
        output, file = folder / f"out-{name}", folder / f"{name}.yaml"
        inputs.write_recipe(file, recipe, folder / "models", output)
        words = ["--num-gpus", str(ranks)] if ranks > 1 else []
        result = zerokit("train", *words, "--recipe", str(file), folder=folder)
        del result["out"]
        metrics = output / "metrics.jsonl"
        lines = map(json.loads, metrics.read_text().splitlines()) if metrics.is_file() else ()
        losses = [{key: line[key] for key in ("step", "loss", "eval_loss") if key in line} for line in lines]
        yield name, {**result, "losses": losses, "weights": _tensors(output)}
        checkpoints = sorted(output.glob("checkpoint-*"))
        if checkpoints and ranks == 2 and exported < 10 and "lora" not in name:
            exported += 1
            for dtype in ("fp32", "bf16")[: 1 + (exported < 4)]:
                place = folder / f"exported-{name}-{dtype}"
                words = ["export", str(checkpoints[-1]), "-o", str(place), "--dtype", dtype]
                export = zerokit("checkpoint", *words, folder=folder)
                yield f"export {name} {dtype}", {"code": export["code"], "weights": _tensors(place)}


def _tensors(folder: Path) -> dict[str, str]:
    """Return a digest of each tensor's dtype, shape and bytes, by its name."""
    import torch
    from safetensors import safe_open

    digests = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                tensor = opened.get_tensor(name).contiguous()
                held = tensor.flatten().view(torch.uint8).numpy().tobytes()
                digests[name] = f"{tensor.dtype} {list(tensor.shape)} " + hashlib.sha256(held).hexdigest()[:16]
    return digests


KINDS: dict[str, Callable[[Path, Path, Path | None], Cases]] = {
    "check": checks,
    "estimate": estimates,
    "resolve": resolved,
    "explain-exit": deaths,
    "rehearse": rehearsals,
    "train": trainings,
}


def record(output: Path, data: Path, logs: Path | None, only: list[str]) -> None:
    """Write ``KIND.json`` into `output` for each kind: the cases' results by name."""
    output.mkdir(parents=True, exist_ok=True)
    for kind in only or KINDS:
        results = {}
        with tempfile.TemporaryDirectory() as folder:
            for name, result in KINDS[kind](Path(folder), data, logs):
                results[name] = result
                print(f"{kind}: {name}: exit code {result['code']}", file=sys.stderr, flush=True)
        (output / f"{kind}.json").write_text(json.dumps(results, indent=1) + "\n")


def differences(old: Any, new: Any, renamed: dict[str, str], where: str = "") -> Iterator[tuple[str, str]]:
    """Yield place and kind of each difference: ``value``, ``number in a sentence`` or ``sentence``.

    Args:
        renamed: the new name of each renamed JSON key.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        old = {renamed.get(key, key): value for key, value in old.items()}
        for key in [*old, *(key for key in new if key not in old)]:
            if key in VARYING:
                continue
            if key in old and key in new:
                yield from differences(old[key], new[key], renamed, f"{where}/{key}")
            else:
                yield f"{where}/{key}: only in the {'old' if key in old else 'new'} record", "value"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, renamed, f"{where}/{number}")
    elif old != new and not ("/time/" in where and _is_close(old, new)):
        is_sentence = isinstance(old, str) and isinstance(new, str) and " " in old + new
        if not is_sentence:
            yield f"{where}: {old!r:.200} became {new!r:.200}", "value"
        elif sorted(_NUMBER.findall(old)) != sorted(_NUMBER.findall(new)):
            yield f"{where}: {old!r:.300} became {new!r:.300}", "number in a sentence"
        else:
            yield where, "sentence"


def _is_close(old: Any, new: Any) -> bool:
    relative, seconds = CLOCK_TOLERANCE
    both_are_floats = isinstance(old, float) and isinstance(new, float)
    return both_are_floats and math.isclose(old, new, rel_tol=relative, abs_tol=seconds)


def compare(old: Path, new: Path, renamed: dict[str, str]) -> int:
    """Print the differences of two records; return 1 where a value or a number in a sentence differs."""
    failed = False
    for file in sorted(old.glob("*.json")):
        if not (new / file.name).is_file():
            print(f"{file.stem}: not recorded in {new}")
            continue
        before, after = (json.loads((folder / file.name).read_text()) for folder in (old, new))
        found = list(differences(before, after, renamed))
        for kind in ("value", "number in a sentence"):
            for where in [where for where, its in found if its == kind]:
                print(f"{file.stem}: {kind}: {where}")
                failed = True
        reworded = sum(kind == "sentence" for _, kind in found)
        print(f"{file.stem}: {len(before)} cases, {len(found) - reworded} differences, {reworded} reworded")
    return int(failed)


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    records = commands.add_parser("record")
    records.add_argument("output", type=Path)
    records.add_argument("--data", type=Path, required=True, help="the folder with wild_configs/ in it")
    records.add_argument("--logs", type=Path, help="a folder with logs of dead runs")
    records.add_argument("--only", nargs="*", default=[], choices=list(KINDS))
    compares = commands.add_parser("compare")
    compares.add_argument("old", type=Path)
    compares.add_argument("new", type=Path)
    compares.add_argument("--renamed", type=Path, help="a JSON object: old key to new key")
    asked = parser.parse_args()
    if asked.command == "record":
        record(asked.output, asked.data.resolve(), asked.logs and asked.logs.resolve(), asked.only)
    else:
        renamed = json.loads(asked.renamed.read_text()) if asked.renamed else {}
        sys.exit(compare(asked.old, asked.new, renamed))


if __name__ == "__main__":
    main()
