"""Checkpoints of earlier releases of DeepSpeed: saved by them for real on two ranks, and exported by zerokit.

``python -m tests.validation.checkpoint.old_releases [--only RELEASE ...] [--write]`` installs each release
from the package index into a folder of its own, beside the torch and transformers of this environment, has
it make the runs of tests/launched/checkpoint_runs.py, and compares what zerokit exports with the weights
that the engine had, in float32 and in the model's type. With ``--write`` the rows go into
results/old_releases.json and records/checkpoints.md. Each release compiles its own extension for CPU ranks,
once with ``--keep``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import processes
from tests.launched.checkpoint_runs import RUNS
from tests.tiny import REPOSITORY, launch

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "old_releases.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "checkpoints.md"
BEGIN, END = "<!-- releases -->\n", "<!-- /releases -->\n"
COMMAND = "python -m tests.validation.checkpoint.old_releases --write"
RELEASES = ("0.14.5", "0.15.4", "0.16.9", "0.17.6", "0.18.9")
"""The last one of each minor release before that which the tests have."""


def row(release: str, folder: Path, runs: Sequence[str]) -> dict[str, Any]:
    """What comes of the runs of a release: exported bit for bit, or why not, or why they are not saved.

    Args:
        release: of DeepSpeed.
        folder: where it is, or will be, with what it compiles.
        runs: of `RUNS`.
    """
    beside = {name: version(name) for name in ("torch", "transformers")}
    row: dict[str, Any] = {"release": release, **beside, "exported": [], "not_saved": {}, "wrong": {}}
    if problem := _install(release, folder):
        return row | {"not_installed": problem}
    with TemporaryDirectory() as path:
        saved = Path(path)
        (saved / "exported").mkdir()
        for name, problem in _save(runs, folder, saved):
            problem = problem or _is_another(name, saved)
            if problem is not None:
                row["not_saved"][name] = problem.replace(path, "...")
            elif differing := _wrong(name, saved):
                row["wrong"][name] = [one.replace(path, "...") for one in differing[:3]]
            else:
                row["exported"].append(name)
            said = row["not_saved"].get(name) or row["wrong"].get(name) or "exported"
            print(f"{release}, {name}: {said}", flush=True)
    return row


def _install(release: str, folder: Path) -> str | None:
    """Install a release without what it needs, which is here; why not, or None."""
    if (folder / "deepspeed").is_dir():
        return None
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", f"{folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, f"deepspeed=={release}"],
        env=os.environ | {"DS_BUILD_OPS": "0"},
        capture_output=True,
        text=True,
    )
    return _line_of_error(done.stderr) if done.returncode else None


def _save(runs: Sequence[str], release: Path, folder: Path) -> Iterator[tuple[str, str | None]]:
    """Have a release save `runs` in `folder`; of each, why it does not, or None.

    One launch makes as many as it can. A run is not saved if a launch that begins with it does not save it.
    """
    extensions = release.with_name(f"{release.name}-extensions")
    for lock in extensions.glob("*/lock"):  # of a build that was killed: torch waits for it for ever
        lock.unlink()
    environment = {
        "PYTHONPATH": f"{release}{os.pathsep}{REPOSITORY}",
        "TORCH_EXTENSIONS_DIR": f"{extensions}",
        "LOCAL_SIZE": "2",  # without which 0.14 and 0.15 ask numactl how many ranks a machine has
    }
    # DeepSpeed keeps the grid of a pipeline for what a process trains afterwards.
    alone = [name for name in runs if RUNS[name].get("divided")]
    for left in [[name for name in runs if name not in alone], *([name] for name in alone)]:
        while left:
            words = [f"{REPOSITORY / 'tests/launched/save_checkpoints.py'}", f"{folder}", *left]
            try:
                problem = _line_of_error(launch(words, ranks=2, launcher="torchrun", env=environment).stderr)
            except processes.HangsError:
                problem = "hangs"
            saved = 0
            while left and _is_saved(folder / left[0]):
                yield left.pop(0), None
                saved += 1
            if not saved:
                yield left.pop(0), problem


def _is_saved(folder: Path) -> bool:
    return all((folder / f"truth-{rank}.safetensors").is_file() for rank in range(2))


def _line_of_error(said: str) -> str:
    """Of an exception: of a rank where ranks have some."""
    lines = said.splitlines()
    raised = [line.partition("]: ")[2] for line in lines if line.startswith("[rank") and "Error: " in line]
    return (raised or [line for line in lines if "rror" in line] or ["no line of an error"])[0][:300]


def _is_another(name: str, folder: Path) -> str | None:
    """Why what was saved is no checkpoint of this kind, or None."""
    from zerokit.checkpoint.step_folder import find_step_folder, read_step_folders

    wants_cuts = RUNS[name].get("divided") == "tensors"
    if wants_cuts and len(read_step_folders(find_step_folder(folder / name))) == 1:
        return "ignores tensor_parallel.autotp_size in training"
    return None


def _wrong(name: str, folder: Path) -> list[str]:
    """Tensors of the exports of a run that are not those which the engine had; or why there is none."""
    from safetensors.torch import load_file

    from tests.launched.test_checkpoints import truth
    from zerokit.checkpoint.export import export
    from zerokit.checkpoint.verify import verify
    from zerokit.errors import ZerokitError

    expected = truth(folder / name)
    wrong = []
    # Of experts no rank has the whole in float32.
    for dtype in (None,) if RUNS[name].get("experts") else (None, "fp32"):
        try:
            verify(folder / name)
            output = folder / "exported" / f"{name}-{dtype}"
            done = export(folder / name, output, dtype=dtype, needs_config=False)
        except ZerokitError as error:
            return [f"{error}"]
        exported = load_file(done.folder / next(one for one in done.files if one.endswith(".safetensors")))
        wrong += list(exported.keys() ^ expected.keys())
        for key in exported.keys() & expected.keys():
            if not exported[key].equal(expected[key].to(exported[key].dtype)):
                wrong.append(f"{key} in {dtype or 'its own type'}")
    return sorted(wrong)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Of the documentation."""
    lines = [
        "| DeepSpeed | exported bit for bit | saved, but not exported | not saved by it here |",
        "|---|---|---|---|",
    ]
    for one in rows:
        exported = f"{len(one['exported'])} of {len(RUNS)}"
        not_saved = one.get("not_installed") or _names(one["not_saved"])
        lines.append(f"| {one['release']} | {exported} | {_names(one['wrong'])} | {not_saved} |")
    return "\n".join(lines) + "\n"


def _names(runs: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in runs) or "-"


def with_table(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page, with the table of `rows` in its place."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + table(rows) + END + rest.partition(END)[2]


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        yield kept.absolute()
        return
    with TemporaryDirectory() as folder:
        yield Path(folder)


def main() -> None:
    """Install, save, export, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=RELEASES, nargs="+", default=RELEASES, metavar="RELEASE")
    parser.add_argument("--runs", choices=RUNS, nargs="+", metavar="RUN", help="these alone, to try; no --write")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep releases and what they compile there")
    parser.add_argument("--write", action="store_true", help="rewrite the file and the page; other rows stay")
    asked = parser.parse_args()
    if asked.write and asked.runs:
        parser.error("--write takes all runs")
    recorded = json.loads(WRITTEN.read_text(encoding="utf-8"))["releases"] if WRITTEN.exists() else []
    rows = {one["release"]: one for one in recorded}
    with _folder(asked.keep) as folder:
        for release in asked.only:
            rows[release] = row(release, folder / release, asked.runs or list(RUNS))
            found = [rows[one] for one in RELEASES if one in rows]
            if asked.write:
                whole = {"command": COMMAND, "runs": list(RUNS), "releases": found}
                WRITTEN.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
                PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
            print(table(found), flush=True)


if __name__ == "__main__":
    main()
