"""What a wheel has is enough to train and to generate: no launch scripts, no repository."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.tiny import ONE_STEP_RECIPE as RECIPE
from tests.tiny import REPOSITORY, tiny_llama, tiny_tokenizer

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


def test_train_and_generate_on_two_ranks(unpacked: Path, tmp_path: Path) -> None:
    plant_modules(tmp_path)
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    run = zerokit(unpacked, tmp_path, "train", "--num-gpus", "2", "--recipe", "mine.yaml", "--training.seed=7")
    assert run.returncode == 0, run.stderr
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (report["world_size"], report["steps"], report["recipe"]["training"]["seed"]) == (2, 1, 7)

    words = "generate --num-gpus 2 --model out --prompt for --prompt class -o out.jsonl --max_new_tokens 2"
    run = zerokit(unpacked, tmp_path, *words.split())
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == ["for", "class"]


def test_a_mistake_is_one_line_of_rank_0(unpacked: Path, tmp_path: Path) -> None:
    run = zerokit(unpacked, tmp_path, "train", "--num-gpus", "2", "--recipe")
    assert (run.returncode, run.stderr.count("zerokit: error: ")) == (2, 1)
    run = zerokit(unpacked, tmp_path, "train", "--num-gpus", "2", "--recipe", "none.yaml")
    assert run.returncode == 2
    assert run.stderr.count("zerokit: error: none.yaml: no such file. Check the path") == 1
    assert list(tmp_path.iterdir()) == []
