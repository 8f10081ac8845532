"""Makes ``zerokit/releases/keys.json``: what each supported release of DeepSpeed reads of a ds_config.

When a DeepSpeed is released, add it to `SUPPORTED` in ``zerokit/releases/versions.py`` and run::

    python -m tools.deepspeed_surface.extract SOURCES --download

SOURCES is a folder for the releases' source distributions, about 600 MB unpacked; what is there already
is used as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.deepspeed_surface.evidence import EVIDENCE
from tools.deepspeed_surface.interpreter import Interpreter
from tools.deepspeed_surface.surface import Key, Surface, read_surface
from tools.deepspeed_surface.values import ANY_KEY, UNKNOWN, KeyPath
from zerokit.releases.versions import SUPPORTED, parse_version

TARGET = Path(__file__).parents[2] / "zerokit" / "releases" / "keys.json"

SECOND_NAMES = {("bfloat16",): ("bf16",)}
"""Whole sections that have two names; those of single keys are read from the source."""

OPEN_SECTIONS = {
    ("optimizer", "params"),
    ("scheduler", "params"),
    ("datastates_ckpt",),
    ("autotuning", "arg_mappings"),
    ("data_efficiency", "data_sampling", "curriculum_learning", "curriculum_metrics"),
}
"""Sections that are handed on as they are, beyond those where the source shows it."""

REFUSED_LATER = {("optimizer", "params", "max_grad_norm")}
"""Keys that are only looked up to warn of them: building the optimizer fails on them in every release."""

_CONFIG, _ENGINE = "deepspeed/runtime/config.py", "deepspeed/runtime/engine.py"
READ_ELSEWHERE = {
    ("sequence_parallel_size",): ("deepspeed/__init__.py", 'config["sequence_parallel_size"]'),
    ("data_parallel_size",): ("deepspeed/__init__.py", 'config["data_parallel_size"]'),
    ("data_efficiency", "data_sampling", "dynamic_batching", "metrics_path"): (
        "deepspeed/runtime/data_pipeline/data_sampling/variable_batch_size_and_lr.py",
        "batching_config[DYNAMIC_BATCHING_METRICS_PATH]",
    ),
    ("optimizer", "params", "torch_adam"): (_CONFIG, 'TORCH_ADAM_PARAM = "torch_adam"'),
    ("optimizer", "params", "adam_w_mode"): (_CONFIG, 'ADAM_W_MODE = "adam_w_mode"'),
    ("optimizer", "params", "fp32_optimizer_states"): ("deepspeed/ops/adam/cpu_adam.py", "fp32_optimizer_states=True"),
    ("optimizer", "params", "muon_lr"): (_ENGINE, '"muon_lr"'),
    ("optimizer", "params", "adam_lr"): (_ENGINE, '"adam_lr"'),
    ("optimizer", "params", "ns_method"): (_ENGINE, '"ns_method"'),
    ("optimizer", "params", "per_head_muon"): ("deepspeed/__init__.py", '"per_head_muon"'),
}
"""Keys read outside ``DeepSpeedConfig``, with the file and the text that shows it."""

Column = tuple[str, Surface]


def read_release(root: Path) -> Surface:
    """The surface of the DeepSpeed below `root`, with the keys that are read outside its parser."""
    surface = read_surface(root)
    for path, (file, text) in READ_ELSEWHERE.items():
        if text in (root / file).read_text(encoding="utf-8") if (root / file).is_file() else False:
            surface.keys.setdefault(path, Key())
    for path in list(surface.keys):
        renamed = next((new + path[len(old) :] for old, new in SECOND_NAMES.items() if path[: len(old)] == old), None)
        if ANY_KEY in path or path in REFUSED_LATER or renamed:
            key = surface.keys.pop(path)
            if renamed and len(renamed) == 1:
                surface.keys[renamed].other_name = path[0]
                key.default = UNKNOWN
    surface.strict -= set(SECOND_NAMES)
    surface.passed_on |= {path for path in OPEN_SECTIONS if path in surface.keys}
    surface.passed_on |= {path for path, key in surface.keys.items() if "Dict" in (key.annotation or "")}
    return surface


def read_names(root: Path) -> dict[str, list[str]]:
    """The optimizers and schedulers that the release accepts by DeepSpeed's own names."""
    interpreter = Interpreter(root)
    found = {}
    for kind, module, name in (
        ("optimizers", "deepspeed.runtime.config", "DEEPSPEED_OPTIMIZERS"),
        ("schedulers", "deepspeed.runtime.lr_schedules", "VALID_LR_SCHEDULES"),
    ):
        source = interpreter.package.module(module)
        assert source is not None
        found[kind] = interpreter.find(source, name)
    return found


def spans(flags: Iterable[tuple[str, bool]]) -> list[list[str | None]]:
    """Runs of releases for which the flag holds: the first of each, and the first after it.

    The first is None for a run that begins with the oldest release, the other for one that lasts.
    """
    result: list[list[str | None]] = []
    before = False
    for index, (version, flag) in enumerate(flags):
        if flag and not before:
            result.append([version if index else None, None])
        elif before and not flag:
            result[-1][1] = version
        before = flag
    return result


def changes(columns: list[Column], path: KeyPath, value: Callable[[Key], Any]) -> list[list[Any]]:
    """What `value` gives for a key where it is first seen, and wherever it gives something else."""
    result: list[list[Any]] = []
    for version, surface in columns:
        if path in surface.keys:
            seen = value(surface.keys[path])
            if seen is not UNKNOWN and (not result or result[-1][1] != seen):
                result.append([version, seen])
    return result


def condense(columns: list[Column]) -> dict[str, Any]:
    """Per-key facts of all releases, oldest first, as the JSON file holds them."""
    newest = columns[-1][1]
    paths = {path for _, surface in columns for path in surface.keys}
    gone = {path for path in paths if path not in newest.keys}
    inside_gone = {path for path in paths if any(path[:end] in gone for end in range(1, len(path)))}
    keys = {}
    for path in sorted(paths - inside_gone):
        facts = key_facts(columns, path)
        if len(path) == 1 and path in gone and any(other[:1] == path for other in inside_gone):
            facts["open"] = True
        keys[".".join(path)] = facts
    refused = {path for _, surface in columns for path in surface.refused}
    strict = {path for _, surface in columns for path in surface.strict} - inside_gone
    return {
        "keys": keys,
        "refused": {".".join(p): spans((v, p in s.refused) for v, s in columns) for p in sorted(refused)},
        "strict": {".".join(p): spans((v, p in s.strict) for v, s in columns) for p in sorted(strict)},
    }


def key_facts(columns: list[Column], path: KeyPath) -> dict[str, Any]:
    """What there is to say of one key; what goes without saying is left out."""
    facts: dict[str, Any] = {}
    known = spans((version, path in surface.keys) for version, surface in columns)
    if known != [[None, None]]:
        facts["spans"] = known
    defaults = changes(columns, path, lambda key: key.default if _is_json(key.default) else UNKNOWN)
    if defaults and defaults[0][0] != (known[0][0] or columns[0][0]):
        defaults = []  # only the way it is read changed
    types = changes(columns, path, lambda key: _plain_type(key.annotation))
    bounds = changes(columns, path, lambda key: key.bounds)
    latest = [surface.keys[path] for _, surface in columns if path in surface.keys]
    others = sorted({key.other_name for key in latest if key.other_name})
    if defaults:
        facts["defaults"] = defaults
    if len(types) > 1:
        facts["types"] = types
    if len(bounds) > 1:
        facts["bounds"] = bounds
    if others:
        facts["other_names"] = others
    if latest[-1].deprecated:
        facts["deprecated"] = next(v for v, s in columns if path in s.keys and s.keys[path].deprecated)
        if latest[-1].replaced_by:
            facts["replaced_by"] = latest[-1].replaced_by
    if any(path in surface.passed_on for _, surface in columns):
        facts["open"] = True
    return facts


def _plain_type(annotation: str | None) -> str | None:
    # pydantic 1 took `bool = None` for Optional[bool], so the two are one.
    if annotation and annotation.startswith("Optional["):
        return annotation.removeprefix("Optional[").removesuffix("]")
    return annotation


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def names_facts(names: Mapping[str, dict[str, list[str]]]) -> dict[str, Any]:
    """The spans of optimizers' and schedulers' names."""
    return {
        kind: {
            name: spans((version, name in found[kind]) for version, found in names.items())
            for name in sorted({name for found in names.values() for name in found[kind]})
        }
        for kind in ("optimizers", "schedulers")
    }


def write(facts: dict[str, Any], file: Path) -> None:
    """One line per key, so that a new release shows as few changed lines."""
    lines = ["{"]
    for part, content in facts.items():
        rows = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
        lines += [f' "{part}": {{', ",\n".join(rows), " },"]
    lines[-1] = " }"
    file.write_text("\n".join([*lines, "}"]) + "\n", encoding="utf-8")


def compare_evidence(version: str, root: Path) -> None:
    """Make sure that the defects and changes are where ``evidence.py`` says."""
    for name, texts in EVIDENCE.items():
        for evidence in texts:
            if evidence.stands_in(root) != (parse_version(version) in evidence.span):
                sys.exit(f"evidence of '{name}' does not hold in DeepSpeed {version}: {evidence}")


def download(version: str, folder: Path) -> None:
    """Fetch and unpack a release's source distribution with pip."""
    archive = folder / f"deepspeed-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", f"deepspeed=={version}", "--no-deps", "--quiet"]
        command += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
        subprocess.run(command, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(folder, filter="data")


def main() -> None:
    """Read all releases and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path, help="folder that holds deepspeed-X.Y.Z/ of every release")
    parser.add_argument("--download", action="store_true", help="fetch the releases that are not there")
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    arguments = parser.parse_args()
    columns: list[Column] = []
    names: dict[str, dict[str, list[str]]] = {}
    for version in SUPPORTED:
        root = arguments.sources / f"deepspeed-{version}"
        if arguments.download and not root.is_dir():
            download(version, arguments.sources)
        columns.append((version, read_release(root)))
        names[version] = read_names(root)
        compare_evidence(version, root)
    write(condense(columns) | names_facts(names), arguments.output)


if __name__ == "__main__":
    main()
