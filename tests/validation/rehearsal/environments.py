"""Rehearses the same scripts in the environments that people have, and writes what came of each.

``python -m tests.validation.rehearsal.environments FOLDER`` builds each environment of `ENVIRONMENTS` in
FOLDER, with zerokit beside what it names, and runs each of `SCRIPTS` there: results/environments.json. What
has been rehearsed it leaves alone; ``--again`` runs all scripts anew, ``--only NAMES`` takes some
environments. uv installs them, so that files which several of them have lie on the disk once; its settings
are read from the environment as always (UV_EXTRA_INDEX_URL, UV_FIND_LINKS).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.rehearsal.local_inputs import write_model_config

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "environments.json"
GPUS = 4
LIMIT_SECONDS = 1200
"""For one script; a first one builds the virtual device."""

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "oldest": (
        *("torch==2.5.1", "deepspeed==0.15.4", "transformers==4.46.3", "accelerate==1.0.1", "peft==0.13.2"),
        *("numpy==1.26.4", "datasets==3.1.0", "pyarrow==18.1.0", "pandas==2.2.3"),
    ),
    "transformers-4": (
        *("torch==2.8.0", "deepspeed==0.16.9", "transformers==4.57.6", "accelerate==1.10.1", "peft==0.17.1"),
    ),
    "llama-factory": ("llamafactory==0.9.5", "torch==2.8.0", "torchvision==0.23.0", "torchaudio==2.8.0"),
    "openrlhf": ("openrlhf==0.11.2", "torch==2.9.1", "!flash-attn"),
    "axolotl": ("axolotl[deepspeed]==0.19.0", "torch==2.13.0"),
    "ms-swift": ("ms-swift==4.6.0", "torch==2.13.0", "deepspeed==0.18.6", "peft"),
    "torch-2.14": (
        *("torch==2.14.1", "deepspeed==0.19.8", "transformers==5.24.0", "accelerate==1.15.0", "peft==0.21.2"),
    ),
    "newest": ("torch", "deepspeed", "transformers", "accelerate", "peft"),
}
"""What is installed by name; the newest of all is whatever the registry has that day. What follows ``!`` is
left out: it is compiled with CUDA's toolkit, and the rehearsal stands in for it."""

_OWN = str(REPOSITORY / "tests" / "rehearsal" / "scripts" / "one_decoder.py")
_TRAINER = str(Path(__file__).with_name("scripts") / "one_trainer.py")
SCRIPTS: dict[str, tuple[str, ...]] = {
    **{way: (_OWN, "--with", way) for way in ("zero1", "zero2", "zero3", "offload", "accelerate", "ddp", "fsdp")},
    "trainer": (_TRAINER, "model"),
    "lora": (_TRAINER, "model", "--lora"),
}
"""Name -> script and arguments."""
_MODEL = {
    **{"num_hidden_layers": 4, "hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32000},
    **{"num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": True},
}
_REHEARSE = "from zerokit.cli.main import main; main()"

Row = dict[str, Any]


def install(folder: Path, requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment in `folder` that has `requirements` and zerokit."""
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    uv = [str(_uv(folder.parent)), "--quiet"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([*uv, "venv", "--clear", "--python", version, str(folder)], check=True)
    # In one go, so that what zerokit asks for cannot move what the environment is there for.
    words = ["pip", "install", "--python", str(python), "--editable", f"{REPOSITORY}[rehearse]"]
    excludes = folder / "excludes.txt"
    excludes.write_text("".join(f"{one[1:]}\n" for one in requirements if one[0] == "!"), encoding="utf-8")
    words += ["setuptools", *(one for one in requirements if one[0] != "!")]
    subprocess.run([*uv, *words, "--excludes", str(excludes)], check=True, env=_settings(folder.parent))
    (folder / "installed").touch()
    return python


def _settings(folder: Path) -> dict[str, str]:
    """DeepSpeed compiles nothing when it is installed; the cache is on the disk of the environments."""
    return {"UV_CACHE_DIR": str(folder / "uv-cache"), "DS_BUILD_OPS": "0", **os.environ}


def _uv(folder: Path) -> Path:
    uv = folder / "uv" / "bin" / "uv"
    if not uv.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder / "uv"), "uv"], check=True
        )
    return uv


def rehearse(python: Path, words: tuple[str, ...], folder: Path) -> Row:
    """What came of one script."""
    report_file = folder / "report.json"
    report_file.unlink(missing_ok=True)
    options = ["--num-gpus", str(GPUS), "--rank", "0", "--no-advise", "-o", str(report_file)]
    done = subprocess.run(
        ["timeout", str(LIMIT_SECONDS), str(python), "-c", _REHEARSE, "rehearse", *options, *words],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode == 124:
        return {"outcome": "refused", "line": f"not done after {LIMIT_SECONDS} s"}
    if done.returncode not in (0, 1):
        lines = done.stderr.splitlines()
        line = next((one for one in reversed(lines) if "zerokit: error" in one), done.stderr[-400:])
        return {"outcome": "refused", "line": line}
    report = json.loads(report_file.read_text(encoding="utf-8"))
    return {
        "outcome": "rehearsed",
        **{name: report["device"][name] for name in ("peak_bytes", "steady_bytes", "reserved_peak_bytes")},
        "warnings": report["warnings"],
        "versions": report["run"]["versions"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=sorted(ENVIRONMENTS), help="names of environments")
    parser.add_argument("--again", action="store_true", help="run the scripts that have been run, too")
    options = parser.parse_args()
    folder = options.folder.absolute()
    write_model_config(folder / "model", **_MODEL)
    found: dict[str, Row] = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else {}
    failed = 0
    for name in options.only or ENVIRONMENTS:
        python = install(folder / name, ENVIRONMENTS[name])
        before = {} if options.again else found.get(name, {}).get("scripts", {})
        entry = found[name] = {"requirements": list(ENVIRONMENTS[name]), "scripts": before}
        for script, words in SCRIPTS.items():
            if entry["scripts"].get(script, {}).get("outcome") != "rehearsed":
                row = rehearse(python, words, folder)
                entry["versions"] = row.pop("versions", {}) or entry.get("versions", {})
                entry["scripts"][script] = row
                entry["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
                WRITTEN.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            row = entry["scripts"][script]
            failed += row["outcome"] != "rehearsed"
            print(f"{name} {script}: {row.get('line') or row['peak_bytes']}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
