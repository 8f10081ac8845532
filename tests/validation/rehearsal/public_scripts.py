"""Rehearses public training scripts as their users would, and writes what came of each.

``python -m tests.validation.rehearsal.public_scripts FOLDER`` runs the rows of results/scripts.json and
rewrites what they found. FOLDER gets the inputs that commands name (`public_inputs`). A script of a
repository is looked for in FOLDER/REPOSITORY, a checkout at the row's commit; ``-m`` names an installed
module, ``pythonpath`` folders of FOLDER that modules lie in, ``variables`` what the environment adds, and
``cwd`` the folder to start from.
``--python NAME=INTERPRETER`` gives an environment that has what the scripts need, for the rows of that name;
its versions are written down. Metrics of ``evaluate`` are taken from a checkout of it, FOLDER/evaluate.

A row with ``by_hand`` is compared: its steady bytes with ``bytes``, an expression of ``phi``, the number of
parameters, written for the model's sizes and the accounting of its ZeRO stage, and of no figure of zerokit's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import processes
from tests.tiny import REPOSITORY
from tests.validation.rehearsal.public_inputs import write_inputs

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "scripts.json"
REHEARSE = "from zerokit.cli.main import main; main()"
MEASURE = (
    "import resource, subprocess, sys, time\n"
    "begin = time.monotonic()\n"
    "code = subprocess.call(sys.argv[2:])\n"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "took = f'{time.monotonic() - begin:.1f} {used.ru_utime + used.ru_stime:.1f}'\n"
    "open(sys.argv[1], 'w').write(f'{took} {used.ru_maxrss * 1024}')\n"
    "sys.exit(code)"
)
"""Runs a command and writes its seconds, its CPU seconds and the most bytes that one of its processes had."""
_IMPORTS = """
import ast, importlib.util, sys, time
word, sys.path[:0] = sys.argv[1], sys.argv[2:]
file = word if word.endswith(".py") else importlib.util.find_spec(word).origin
body = ast.parse(open(file).read()).body
for line in [one for one in body if isinstance(one, (ast.Import, ast.ImportFrom))]:
    try:
        exec(compile(ast.Module([line], []), file, "exec"), {"__package__": word.rpartition(".")[0]})
    except Exception:
        pass
print(round(time.process_time(), 1))
"""
"""Prints the CPU seconds of what a script imports before it does anything."""

_RAISED = re.compile(r"[\w.]*(?:Error|Exception)\b")
"""The line that ends a traceback."""

Row = dict[str, Any]


def rerun(row: Row, folder: Path, python: str) -> Row:
    """The row with what came of it today."""
    is_own = row["repository"] == "zerokit"
    checkout = REPOSITORY if is_own else folder / row["repository"].rpartition("/")[2]
    words = [str(checkout / word) if (checkout / word).is_file() else word for word in shlex.split(row["command"])]
    places = [folder / name for name in row.get("pythonpath", [])]
    environment = _environment(folder, places) | row.get("variables", {})
    with TemporaryDirectory() as scratch:
        report_file, measured = Path(scratch, "report.json"), Path(scratch, "measured")
        options = ["--num-gpus", str(row["gpus"]), "--rank", "0", "--no-advise", "-o", str(report_file)]
        options += row.get("options", [])
        rehearse = [python, "-c", REHEARSE, "rehearse", *options, *words]
        done = processes.run(
            [sys.executable, "-c", MEASURE, str(measured), *rehearse],
            cwd=folder / row.get("cwd", ""),
            env=environment,
            together=True,
        )
        report = json.loads(report_file.read_text(encoding="utf-8")) if done.returncode in (0, 1) else None
        seconds, cpu_seconds, resident = measured.read_text(encoding="utf-8").split()
    kept = {key: row[key] for key in _ASKED if key in row}
    found: Row = {"seconds": float(seconds), "cpu_seconds": float(cpu_seconds)}
    found |= {"resident_bytes": int(resident)}
    today = {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    if report is None:
        (folder / f"{row['name']}.log").write_text(done.stdout, encoding="utf-8")
        before, _, line = f"\n{done.stdout}".rpartition("\nzerokit: error: ")
        line = line.partition("\n")[0].replace(f"{folder}/", "")
        raised = before.splitlines()[-1].strip() if before else ""
        cause = raised if _RAISED.match(raised) else line
        line = f"zerokit: error: {line}"
        return kept | {"outcome": "refused", "line": line, "cause": cause} | found | today
    device = report["device"]
    if "by_hand" in row:
        kept["by_hand"] = by_hand(row["by_hand"], device["steady_bytes"])
    return (
        kept
        | {"outcome": "rehearsed", "steps": report["steps"]}
        | {"peak_bytes": device["peak_bytes"], "steady_bytes": device["steady_bytes"]}
        | found
        | {
            "import_cpu_seconds": _import_seconds(
                words, [str(place) for place in places], python, environment, folder / row.get("cwd", "")
            )
        }
        | {"warnings": report["warnings"], "versions": report["run"]["versions"]}
        | today
    )


_ASKED = (
    "name",
    "repository",
    "commit",
    "command",
    "gpus",
    "environment",
    "cwd",
    "pythonpath",
    "variables",
    "options",
    "by_hand",
)


def _environment(folder: Path, places: list[Path]) -> dict[str, str]:
    paths = [str(REPOSITORY), *map(str, places), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(folder / "hub"),
        "NLTK_DATA": str(folder / "nltk_data"),
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(paths),
        "WANDB_MODE": "disabled",
    }


def counted(text: str, **names: float) -> float:
    """An expression of numbers and `names` alone; whole if it is."""
    found: float = eval(text, {"__builtins__": {}}, names)
    return found


def by_hand(count: Row, steady_bytes: int) -> Row:
    """A count with its figures: both expressions are of numbers and ``phi`` alone."""
    phi = counted(count["phi"])
    expected = counted(count["bytes"], phi=phi)
    figures = {"parameters": phi, "expected_bytes": round(expected)}
    return {key: count[key] for key in ("phi", "bytes")} | figures | {"off": round(steady_bytes / expected - 1, 4)}


def _import_seconds(words: list[str], places: list[str], python: str, environment: dict[str, str], cwd: Path) -> float:
    module = words[1] if words[0] == "-m" else words[0]
    beside = [Path(module).parent] if module.endswith(".py") else []
    done = processes.run([python, "-c", _IMPORTS, module, *beside, *places], cwd=cwd, env=environment, together=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", nargs="*", default=[], metavar="NAME=INTERPRETER", help="environments")
    parser.add_argument("--only", nargs="*", help="beginnings of rows' names")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_inputs(folder)
    environments = dict(word.split("=", 1) for word in options.python)
    pythons = {name: str(Path(python).absolute()) for name, python in environments.items()}
    rows: list[Row] = json.loads(WRITTEN.read_text(encoding="utf-8"))
    chosen = [row for row in rows if not options.only or any(row["name"].startswith(name) for name in options.only)]

    def run(row: Row) -> Row:
        found = rerun(row, folder, pythons.get(row.get("environment", ""), sys.executable))
        print(f"{row['name']}: {found['outcome']} {found.get('line', '')}", flush=True)
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        for row, found in zip(chosen, pool.map(run, chosen), strict=True):
            rows[rows.index(row)] = found
            WRITTEN.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
