"""The GitHub action and workflows: what they run is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
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
    ["good.json configs/a.json\n  configs/deep/b.json\n", "configs/**/*.json\tgood.json", "good.json\tconfigs"],
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
if [ "$3" = venv ]; then mkdir -p "$4/$MADE" && cp "$0" "$4/$MADE/python"; fi
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
    made_it, builder, installed = (tmp_path / "log").read_text().splitlines()
    assert made_it == f"{tmp_path / 'given'} -I -m venv {bin.parent}"
    for line, package in ((builder, "hatchling"), (installed, "--no-build-isolation source")):
        pinned = r".* --constraint source/constraints\.txt"
        assert re.fullmatch(rf"{bin}/python -I -m pip install {pinned} {package}", line)
    assert (tmp_path / "output").read_text() == f"bin={bin}\n"


def test_no_file_of_the_checkout_runs_while_the_action_installs(tmp_path: Path) -> None:
    for name in ("venv.py", "runpy.py", "ensurepip.py", "pip.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    make, *_ = (line for line in INSTALL["run"].splitlines() if " venv " in line)
    done = run_step({"run": f"{make} --without-pip"}, tmp_path, PYTHON=sys.executable, RUNNER_TEMP=str(tmp_path))
    assert done.returncode == 0, done.stderr


def jobs(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from yaml.safe_load(file.read_text())["jobs"].items()


def steps(file: Path) -> list[dict[str, Any]]:
    if file == ROOT / "action.yml":
        return list(ACTION["runs"]["steps"])
    return [step for _, job in jobs(file) for step in job["steps"]]


@pytest.mark.parametrize("file", [ROOT / "action.yml", *WORKFLOWS], ids=lambda file: file.stem)
def test_actions_are_pinned_to_commits(file: Path) -> None:
    """With the tag behind it, and one commit of each action; an own one is that of the commit itself."""
    used = {step["uses"] for step in steps(file) if "uses" in step} - {"./"}
    assert used
    for name in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", name), name
        assert re.search(rf"uses: {re.escape(name)} # v\d+\.\d+\.\d+$", file.read_text(), re.MULTILINE), name
    images = [job["container"] for _, job in jobs(file) if "container" in job] if file in WORKFLOWS else []
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in images)


PYTHON_CALL = re.compile(r"""(?:^|[\s;&|(])["']?[\w${}/.]*(?:python3?|PYTHON|pip3?)["']?(?=\s)[^\n]*""")


def test_each_python_of_the_action_is_isolated() -> None:
    called = [call for step in ACTION["runs"]["steps"] for call in PYTHON_CALL.findall(step.get("run", ""))]
    assert len(called) == 4
    assert all(re.search(r"""(?:python|PYTHON)" -I """, call) for call in called), called


INSTALLS = re.compile(r"pip (?:install|download)\b[^\n&]*")
NEWEST = "newest"
"""The job that looks for what new releases change. It has nothing that others use."""


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_what_pip_installs_is_pinned(file: Path) -> None:
    for name, job in jobs(file):
        if name == NEWEST:
            assert "permissions" not in job
            assert all(NEWEST not in other.get("needs", []) for _, other in jobs(file))
            continue
        for step in job["steps"]:
            for install in INSTALLS.findall(step.get("run", "")):
                assert "--constraint constraints.txt" in install or "--no-deps" in install, install
            for build in re.findall(r"-m build\b[^\n&]*", step.get("run", "")):
                assert "--no-isolation" in build, build


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_job_may_do_no_more_than_it_must(file: Path) -> None:
    assert yaml.safe_load(file.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(file):
        allowed = {"id-token": "write"} if (file.stem, name) == ("release", "publish") else None
        assert job.get("permissions") == allowed
        # The token would lie in .git/config, where what the job runs could read it.
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)
        assert allowed is None or not any("run" in step for step in job["steps"])


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
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
