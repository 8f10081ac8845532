"""The GitHub action and workflows: what they run is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
PYTHON, INSTALL, CHECK = ACTION["runs"]["steps"]


def run_step(step: dict[str, Any], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", step["run"]],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def run_action(cwd: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    given = {name.replace("-", "_").upper(): said["default"] for name, said in ACTION["inputs"].items()}
    return run_step(CHECK, cwd, BIN=str(Path(sys.executable).parent), **{**given, **inputs})


def test_the_action_marks_the_line_and_fails(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{\n"train_batch_size": 8, "zero_optimization": {"stage": 2}\n}')
    assert run_action(tmp_path, FILES="good.json", TARGET="deepspeed", NUM_GPUS="8").returncode == 0
    (tmp_path / "bad.json").write_text('{\n"zero_optimization": {"stag": 2}\n}')
    answer = run_action(tmp_path, FILES="good.json bad.json", SEVERITY="error", DEEPSPEED_VERSION="0.16.4")
    assert answer.returncode == 1
    assert re.search(r"^::error file=bad\.json,line=2,", answer.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "files",
    [
        "good.json\nconfigs/a.json\nconfigs/deep/b.json\n",
        "good.json configs/a.json\n  configs/deep/b.json",
        "good.json configs/*.json configs/deep/b.json",
        "configs/**/*.json",
        "good.json\tconfigs",
    ],
)
def test_the_action_checks_every_file_that_is_named(files: str, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')
    (tmp_path / "configs" / "deep").mkdir(parents=True)
    for name in ("configs/a.json", "configs/deep/b.json"):
        (tmp_path / name).write_text('{"zero_optimization": {"stag": 2}}')
    answer = run_action(tmp_path, FILES=files, SEVERITY="error")
    assert answer.returncode == 1, answer.stderr
    assert set(re.findall(r"^::error file=([^,]+),", answer.stdout, re.MULTILINE)) == {
        "configs/a.json",
        "configs/deep/b.json",
    }


def test_a_pattern_that_fits_no_file_fails(tmp_path: Path) -> None:
    answer = run_action(tmp_path, FILES="configs/*.json")
    assert answer.returncode == 2
    assert "configs/*.json: no such file" in answer.stderr


def test_no_file_of_the_checkout_is_imported(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')
    for name in ("glob.py", "yaml.py", "zerokit.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    answer = run_action(tmp_path, FILES="good.json", TARGET="deepspeed", NUM_GPUS="8", PYTHONPATH=".")
    assert answer.returncode == 0, answer.stderr


FAKE_PYTHON = """#!/bin/sh
echo "$0 $*" >> "$LOG"
if [ "$2" = venv ]; then mkdir -p "$3/$MADE" && cp "$0" "$3/$MADE/python"; fi
"""


@pytest.mark.parametrize("made", ["bin", "Scripts"])
def test_the_action_installs_into_an_environment_of_its_own(made: str, tmp_path: Path) -> None:
    assert PYTHON["with"]["update-environment"] is False
    assert INSTALL["env"]["PYTHON"] == "${{ steps.%s.outputs.python-path }}" % PYTHON["id"]  # noqa: UP031
    assert CHECK["env"]["BIN"] == "${{ steps.%s.outputs.bin }}" % INSTALL["id"]  # noqa: UP031
    (tmp_path / "tools").mkdir()
    for name in ("given", "tools/python", "tools/python3", "tools/pip"):
        (tmp_path / name).write_text(FAKE_PYTHON)
        (tmp_path / name).chmod(0o755)
    variables = {"PYTHON": str(tmp_path / "given"), "LOG": str(tmp_path / "log"), "MADE": made}
    variables |= {"PATH": f"{tmp_path / 'tools'}{os.pathsep}{os.environ['PATH']}"}
    variables |= {"RUNNER_TEMP": str(tmp_path / "temp"), "GITHUB_ACTION_PATH": "source"}
    done = run_step(INSTALL, tmp_path, **variables, GITHUB_OUTPUT=str(tmp_path / "output"))
    assert done.returncode == 0, done.stderr
    bin = tmp_path / "temp" / "zerokit" / made
    made_it, installed = (tmp_path / "log").read_text().splitlines()
    assert made_it == f"{tmp_path / 'given'} -m venv {bin.parent}"
    assert re.fullmatch(rf"{bin}/python -I -m pip install .*\bsource", installed)
    assert (tmp_path / "output").read_text() == f"bin={bin}\n"


def test_inputs_of_the_action_are_never_code(tmp_path: Path) -> None:
    answer = run_action(tmp_path, FILES="$(touch broken); `touch broken`")
    assert answer.returncode == 2
    assert not (tmp_path / "broken").exists()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_run_targets_that_there_are(file: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    workflow: dict[str, Any] = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_make_says_each_thing_that_it_installs() -> None:
    lines = [line.strip() for line in (ROOT / "Makefile").read_text().splitlines()]
    steps = [before for before, line in pairwise(lines) if line.startswith("@$(PIP) ")]
    assert len(steps) == 3
    assert all(before.startswith('@echo "Installing ') for before in steps)


def test_the_light_tests_run_on_every_python() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]["light"]
    assert set(job["strategy"]["matrix"]["python"]) == {"3.11", "3.12", "3.13"}
    run = " ".join(step.get("run", "") for step in job["steps"])
    command = re.search(r"^check:.*\n\t\$\(PYTEST\) (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert command is not None
    assert f"python -m pytest {command[1]}" in run
