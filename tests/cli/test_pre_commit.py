"""The hooks that other projects can use, run by pre-commit itself."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import processes

MANIFEST = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"
HOOKS = yaml.safe_load(MANIFEST.read_text())

GIT = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def pre_commit(*arguments: object, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pre_commit", *map(str, arguments)]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}"}
    environment |= {"PYTHONPATH": str(MANIFEST.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    return processes.run(command, cwd=folder, env=environment)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project with one faulty ds_config and another file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": "1"}\n')
    (folder / "package.json").write_text('{"dependencies": {}}\n')
    (folder / "configs").mkdir()
    (folder / "configs" / "two.yaml").write_text("distributed_type: DEEPSPEED\nuse_cpu: true\n")
    (folder / "configs" / "sft.yaml").write_text("model_name_or_path: gpt2\noutput_dir: out\nbf16: true\n")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    return folder


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    """A repository with the manifest, as pre-commit would clone it."""
    folder = tmp_path / "hooks"
    folder.mkdir()
    shutil.copy(MANIFEST, folder)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "hooks"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where pre-commit keeps its things, with a ``zerokit`` that is this one."""
    folder = tmp_path / "home"
    folder.mkdir()
    code = "from zerokit.cli.main import main; main()"
    (folder / "zerokit").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    (folder / "zerokit").chmod(0o755)
    return folder


def test_the_manifest_is_valid(tmp_path: Path) -> None:
    result = pre_commit("validate-manifest", MANIFEST, folder=tmp_path, home=tmp_path)
    assert result.returncode == 0, result.stdout


def test_the_hooks_look_at_all_json_and_yaml_and_decide_by_the_content() -> None:
    for hook in HOOKS:
        assert hook["types_or"] == ["json", "yaml"]
        assert "--skip-others" in hook["entry"].split()


@pytest.mark.slow
def test_checking_names_the_mistake_and_fails(repository: Path, hooks: Path, home: Path) -> None:
    result = pre_commit("try-repo", hooks, "zerokit-check-installed", "--all-files", folder=repository, home=home)
    assert result.returncode == 1, result.stderr
    assert "ds_config.json:1:2: " in result.stdout
    assert "two.yaml:2:1: " in result.stdout
    assert "package.json" not in result.stdout
    assert "sft.yaml" not in result.stdout


@pytest.mark.slow
def test_fixing_fixes_the_file_and_fails_once(repository: Path, hooks: Path, home: Path) -> None:
    arguments = ("try-repo", hooks, "zerokit-fix-installed", "--all-files")
    first = pre_commit(*arguments, folder=repository, home=home)
    assert first.returncode == 1, first.stderr
    assert "files were modified by this hook" in first.stdout
    assert (repository / "ds_config.json").read_text() == '{"train_micro_batch_size_per_gpu": 1}\n'
    assert pre_commit(*arguments, folder=repository, home=home).returncode == 0
