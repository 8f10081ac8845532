"""What a wheel has is enough to train and to generate: no launch scripts, no repository."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests import processes
from tests.tiny import REPOSITORY
from zerokit import quickstart
from zerokit.errors import ZerokitError
from zerokit.quickstart import QUESTIONS

ZEROKIT = [
    sys.executable,
    "-P",
    "-c",
    "import zerokit; assert 'unpacked' in zerokit.__file__\nfrom zerokit.cli.main import main; main()",
]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("unpacked")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    processes.checked(command, cwd=REPOSITORY)
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder)
    assert not (folder / "launch").exists()
    return folder


def zerokit(unpacked: Path, folder: Path, *words: str) -> Any:
    environment = {
        **os.environ,
        "PYTHONPATH": str(unpacked),
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return processes.run([*ZEROKIT, *words], cwd=folder, env=environment)


LIBRARIES = ("accelerate", "datasets", "deepspeed", "numpy", "torch", "transformers", "yaml", "zerokit")


def plant_modules(folder: Path) -> None:
    """Put modules into a folder that end whoever imports them in the place of a library's."""
    for name in (*sys.stdlib_module_names, *LIBRARIES, "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current folder runs')\n")


def test_the_quickstart_trains_and_generates_on_two_ranks(unpacked: Path, tmp_path: Path) -> None:
    """Cut short."""
    plant_modules(tmp_path)
    run = zerokit(unpacked, tmp_path, "quickstart", "--output-dir", "quickstart", "--max-steps", "6")
    assert run.returncode == 0, run.stderr
    for command in ("train", "config", "check", "estimate", "generate"):
        assert f"\n$ zerokit {command} " in run.stderr
    folder = tmp_path / "quickstart"
    assert json.loads((folder / "ds_config.json").read_text())["zero_optimization"]["stage"] == 2
    for name in ("corpus", "model"):
        report = json.loads((folder / name / "run.json").read_text())
        assert (report["zero_stage"], report["world_size"], report["steps"]) == (2, 2, 6)
        assert report["loss_after"] < report["loss_before"]
        AutoModelForCausalLM.from_pretrained(folder / name)
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"index"')]
    assert [answer["prompt"] for answer in answers] == list(QUESTIONS)


def test_a_command_that_fails_ends_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quickstart, "commands", lambda *_: iter([["check", "none.json"], ["schema"]]))
    with pytest.raises(
        ZerokitError, match=r"^zerokit quickstart: 'zerokit check' ended with exit code 2\. "
    ) as caught:
        quickstart.quickstart(tmp_path)
    assert caught.value.exit_code == 1
    out, err = capfd.readouterr()
    assert (out, err.count("$ zerokit ")) == ("", 1)


def test_a_mistake_is_one_line_of_rank_0(unpacked: Path, tmp_path: Path) -> None:
    run = zerokit(unpacked, tmp_path, "train", "--num-gpus", "2", "--recipe")
    assert (run.returncode, run.stderr.count("zerokit: error: ")) == (2, 1)
    run = zerokit(unpacked, tmp_path, "train", "--num-gpus", "2", "--recipe", "none.yaml")
    assert run.returncode == 2
    assert run.stderr.count("zerokit: error: none.yaml: no such file. Check the path") == 1
    assert list(tmp_path.iterdir()) == []
