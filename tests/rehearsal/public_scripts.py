"""Rehearses public training scripts as their users would, and writes what came of each.

``python -m tests.rehearsal.public_scripts FOLDER`` runs the rows of docs/measured/scripts.json and rewrites
what they found. FOLDER gets the inputs that commands name, made on the spot: the model ``qwen`` (config and
tokenizer, no weights), data sets of some dozen lines, and ds_configs. A script of a repository is looked for
in FOLDER/REPOSITORY, a checkout at the row's commit; ``-m`` names a module of an installed package. Give
``--python`` the interpreter of an environment that has what the scripts need; its versions are written down.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tests import processes
from tests.rehearsal.local_inputs import write_model_config, write_tokenizer
from tests.tiny import REPOSITORY

WRITTEN = REPOSITORY / "docs" / "measured" / "scripts.json"
_REHEARSE = "from zerokit.cli.main import main; main()"
_MEASURE = (
    "import resource, subprocess, sys, time\n"
    "begin = time.monotonic()\n"
    "code = subprocess.call(sys.argv[2:])\n"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024\n"
    "open(sys.argv[1], 'w').write(f'{time.monotonic() - begin:.1f} {used}')\n"
    "sys.exit(code)"
)
"""Runs a command and writes down its seconds and the most memory that one process of it held, in bytes."""
LINES = 64

Row = dict[str, Any]


def write_inputs(folder: Path) -> None:
    """Make what the commands name, in `folder`."""
    write_tokenizer(folder / "qwen", vocab_size=151936, model_max_length=32768)
    write_model_config(folder / "qwen", "qwen2.5-0.5b")
    for name, row in _DATA.items():
        (folder / name).mkdir(exist_ok=True)
        text = "\n".join(json.dumps(row(line)) for line in range(LINES)) + "\n"
        for split in ("train", "test"):
            (folder / name / f"{split}.jsonl").write_text(text, encoding="utf-8")
    for stage, offload in ((2, False), (3, False), (3, True)):
        zero: dict[str, Any] = {"stage": stage}
        if offload:
            zero |= {f"offload_{what}": {"device": "cpu"} for what in ("optimizer", "param")}
        config = {
            "bf16": {"enabled": True},
            "zero_optimization": zero,
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
        }
        file = folder / f"zero{stage}{'_offload' * offload}.json"
        file.write_text(json.dumps(config), encoding="utf-8")


def _user(line: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {line}?"}]


def _assistant(text: str, line: int) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text * (3 + line % 20)}]


_DATA: dict[str, Any] = {
    "messages": lambda line: {"messages": _user(line) + _assistant("It is a number. ", line)},
    "prompts": lambda line: {"prompt": _user(line), "solution": str(line)},
    "preferences": lambda line: {
        "prompt": _user(line),
        "chosen": _assistant("It is a number. ", line),
        "rejected": _assistant("No. ", line),
    },
    "rewards": lambda line: {
        "chosen": _user(line) + _assistant("It is a number. ", line),
        "rejected": _user(line) + _assistant("No. ", line),
    },
    "labelled": lambda line: {
        "prompt": _user(line),
        "completion": _assistant("It is a number. ", line),
        "label": line % 2 == 0,
    },
}
"""Data sets by their folders: what line number N holds."""


def rerun(row: Row, folder: Path, python: str) -> Row:
    """The row with what came of it today."""
    report_file, measured = folder / "report.json", folder / "measured"
    report_file.unlink(missing_ok=True)
    checkout = folder / row["repository"].rpartition("/")[2]
    words = [
        str(checkout / word) if (checkout / word).is_file() else word for word in shlex.split(row["command"])
    ]
    options = ["--num-gpus", str(row["gpus"]), "--rank", "0", "--no-advise", "-o", str(report_file)]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = processes.run(
        [
            sys.executable,
            "-c",
            _MEASURE,
            str(measured),
            python,
            "-c",
            _REHEARSE,
            "rehearse",
            *options,
            *words,
        ],
        cwd=folder,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(paths),
        },
        together=True,
    )
    seconds, resident = measured.read_text(encoding="utf-8").split()
    asked = ("name", "repository", "commit", "command", "gpus")
    found = {"seconds": float(seconds), "resident_bytes": int(resident)}
    today = {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    kept = {key: row[key] for key in asked}
    if done.returncode not in (0, 1):
        line = next((one for one in reversed(done.stdout.splitlines()) if "zerokit: error" in one), "")
        return kept | {"outcome": "refused", "line": line} | found | today
    report = json.loads(report_file.read_text(encoding="utf-8"))
    return (
        kept
        | {"outcome": "rehearsed", "steps": report["steps"]}
        | {"peak_bytes": report["device"]["peak_bytes"], "steady_bytes": report["device"]["steady_bytes"]}
        | found
        | {"warnings": report["warnings"], "versions": report["run"]["versions"]}
        | today
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--python", default=sys.executable, help="of the environment that has the scripts' packages"
    )
    parser.add_argument("--only", nargs="*", help="names of rows")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_inputs(folder)
    rows: list[Row] = json.loads(WRITTEN.read_text(encoding="utf-8"))
    for place, row in enumerate(rows):
        if options.only and row["name"] not in options.only:
            continue
        rows[place] = rerun(row, folder, options.python)
        print(f"{row['name']}: {rows[place]['outcome']} {rows[place].get('line', '')}", flush=True)
        WRITTEN.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
