"""The GitHub action and workflows: what they run is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
CHECK: str = ACTION["runs"]["steps"][-1]["run"]


def run_action(cwd: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    given = {name.replace("-", "_").upper(): said["default"] for name, said in ACTION["inputs"].items()}
    environment = {**os.environ, **given, **inputs}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", CHECK], cwd=cwd, env=environment, capture_output=True, text=True
    )


def test_the_action_marks_the_line_and_fails(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{\n"train_batch_size": 8, "zero_optimization": {"stage": 2}\n}')
    assert run_action(tmp_path, FILES="good.json", TARGET="deepspeed", NUM_GPUS="8").returncode == 0
    (tmp_path / "bad.json").write_text('{\n"zero_optimization": {"stag": 2}\n}')
    answer = run_action(tmp_path, FILES="good.json bad.json", SEVERITY="error", DEEPSPEED_VERSION="0.16.4")
    assert answer.returncode == 1
    assert re.search(r"^::error file=bad\.json,line=2,", answer.stdout, re.MULTILINE)


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
