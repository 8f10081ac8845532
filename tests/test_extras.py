"""What is not installed is said in one line, with the words that install it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.cli.conftest import Run, refused, zerokit
from tests.tiny import REPOSITORY
from zerokit.errors import ZerokitError
from zerokit.extras import MODULES, install_command, require

__all__ = ["zerokit"]  # the fixture


def test_they_are_the_extras_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["optional-dependencies"]
    assert declared.keys() - {"all", "dev", "docs", "test"} == MODULES.keys()
    for extra, modules in MODULES.items():
        packages = {re.split(r"[<>=\[]", line)[0].replace("-", "_") for line in declared[extra]}
        assert packages - {"zerokit"} == set(modules), extra


def test_a_rehearsal_takes_the_versions_that_are_there() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]["rehearse"]) == set(MODULES["rehearse"])


@pytest.mark.torch
@pytest.mark.parametrize("extra", sorted(MODULES.keys() - {"prices"}))  # left out of zerokit[all]
def test_what_is_missing_is_one_line(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(extra, where="zerokit command")
    missing = MODULES[extra][0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    with pytest.raises(ZerokitError) as caught:
        require(extra, where="zerokit command")
    line = str(caught.value)
    assert line.startswith(f"zerokit command: needs the packages of zerokit[{extra}] (")
    assert line.endswith(f"({missing} not installed). Run {install_command(extra)}")


@pytest.mark.parametrize(
    ("installed_from", "words"),
    [
        (None, "'zerokit[train]'"),
        ({"url": "https://files/zerokit.whl", "archive_info": {}}, "'zerokit[train]'"),
        ({"url": "CLONE", "dir_info": {}}, "'CLONE[train]'"),
        ({"url": "CLONE", "dir_info": {"editable": True}}, "--editable 'CLONE[train]'"),
        ({"url": "file:///no/longer/there", "dir_info": {"editable": True}}, "'zerokit[train]'"),
    ],
)
def test_an_extra_is_installed_from_where_zerokit_came(
    installed_from: dict[str, Any] | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    info = tmp_path / "zerokit-0.1.dist-info"
    info.mkdir()
    if installed_from is not None:
        told = json.dumps(installed_from).replace("CLONE", clone.as_uri())
        (info / "direct_url.json").write_text(told)
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(info))
    assert install_command("train") == f"pip install {words}".replace("CLONE", str(clone))


def test_ninja_may_be_a_program_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ninja").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ninja" else object())
    require("train", where="zerokit command")


WITHOUT_TORCH = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)

class Refuse:
    def find_spec(self, name, *rest):
        if name == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
from zerokit.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--recipe", "none.yaml"], "none.yaml: no such file. Check the path"),
        (["--task.seq_lne", "8"], "--task.seq_lne: unknown key 'seq_lne'. Did you mean 'seq_len'?"),
    ],
)
def test_a_bad_recipe_is_answered_before_a_launcher_starts(
    words: list[str], line: str, zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert refused(zerokit, "train", "--num-gpus", "2", *words) == f"zerokit: error: {line}\n"


@pytest.mark.torch
@pytest.mark.parametrize(
    "command", [["train"], ["train", "--num-gpus", "2"], ["generate", "--model", "m", "--prompt", "a"], ["quickstart"]]
)
def test_commands_that_train_say_it_before_anything_else(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # transformers sets them in a process
        monkeypatch.delenv(name, raising=False)
    run = processes.run([sys.executable, "-c", WITHOUT_TORCH, *command], cwd=tmp_path)
    message = f"needs the packages of zerokit[train] (torch not installed). Run {install_command('train')}"
    assert run.stderr == f"zerokit: error: zerokit {command[0]}: {message}\n"
    assert run.returncode == 2
    assert list(tmp_path.iterdir()) == []
