"""Rehearses scripts whose peaks others have measured and published, and writes what came out beside them.

``python -m tests.validation.rehearsal.published FOLDER`` reruns the rows of results/published.json whose
scripts lie in FOLDER, and rewrites the file. FOLDER/runs.json says, by the name of a row, where things are:

- ``scripts``: the folder that the row's command starts from, a checkout of its repository;
- ``python``: the interpreter whose packages the script needs; this one if absent;
- ``cwd``: where the script finds its data and models; FOLDER if absent;
- ``words``: what stands for a word of the command, such as ``MODEL``;
- ``wrapper``: true to start it by scripts/without_hub.py;
- ``pythonpath``: folders of modules that the script imports;
- ``environment``: variables that its launcher sets, where zerokit rehearse has no such launcher;
- ``options``: of zerokit rehearse beyond the row's own, such as the name of a config file;
- ``arguments``: of the script beyond the row's own, such as where it may write.

Relative paths start from FOLDER. Rows without an entry keep what they have.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from tests import processes
from tests.tiny import REPOSITORY

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "published.json"
BYTES = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9, "MB": 10**6}
_COMMAND = "from zerokit.cli.main import main; main()"

Row = dict[str, Any]


def command_of(row: Row, run: Row, folder: Path, report: Path) -> list[str]:
    """The words of `zerokit rehearse` for a row."""
    scripts = folder / run["scripts"]
    words = [run.get("words", {}).get(word, word) for word in shlex.split(row["command"])]
    # What names a file of the repository is told from where the script runs.
    words = [str(scripts / word) if (scripts / word).is_file() else word for word in words]
    return [
        str(folder / run["python"]) if "python" in run else sys.executable,
        *("-c", _COMMAND, "rehearse", "--num-gpus", str(row["gpus"]), "--rank", "0", "--no-advise"),
        *("-o", str(report), "--force", *row.get("options", []), *run.get("options", [])),
        *([str(Path(__file__).with_name("scripts") / "without_hub.py")] if run.get("wrapper") else []),
        *words,
        *run.get("arguments", []),
    ]


def figure_of(row: Row, output: str, report: Row) -> float:
    """The published figure's counterpart, in the row's unit.

    ``figure`` is a dotted place in the report, in bytes of one GPU, or a pattern whose last match in what the
    script prints has the number.

    Raises:
        ValueError: the script has not printed it.
    """
    figure = row["figure"]
    if "(" not in figure:
        size = reduce(lambda part, key: part[key], figure.split("."), report)
        return float(size) * row.get("times", 1) / BYTES[row["unit"]]
    found = re.findall(figure, output)
    if not found:
        raise ValueError(f"{row['name']}: the script has not printed {figure}")
    return float(found[-1])


def rerun(row: Row, run: Row, folder: Path) -> Row:
    """The row with what is rehearsed today."""
    report_file = folder / f"{row['name']}.report.json"
    cwd = folder / run.get("cwd", ".")
    paths = [str(REPOSITORY), *(str(folder / path) for path in run.get("pythonpath", []))]
    done = processes.run(
        command_of(row, run, folder, report_file),
        cwd=cwd,
        env={**os.environ, **run.get("environment", {}), "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(paths)},
        together=True,
    )
    # 1 says that it does not fit, which is a result.
    if done.returncode not in (0, 1):
        raise SystemExit(f"{done.stdout[-4000:]}\n{row['name']}: exit code {done.returncode}")
    report = json.loads(report_file.read_text(encoding="utf-8"))
    rehearsed = round(figure_of(row, done.stdout, report), 3)
    return {
        **row,
        "rehearsed": rehearsed,
        "error": round(rehearsed / row["measured"] - 1, 4),
        "reserved_gib": round(report["device"]["reserved_peak_bytes"] / 2**30, 2),
        "versions": report["run"]["versions"],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="names of rows")
    options = parser.parse_args()
    folder = options.folder.absolute()
    runs = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    rows: list[Row] = json.loads(WRITTEN.read_text(encoding="utf-8"))
    for place, row in enumerate(rows):
        if row["name"] in runs and (not options.only or row["name"] in options.only):
            rows[place] = rerun(row, runs[row["name"]], folder)
            print(f"{row['name']}: {row['measured']} measured, {rows[place]['rehearsed']} rehearsed")
            WRITTEN.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
