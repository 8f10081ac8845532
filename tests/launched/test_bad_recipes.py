"""Bad input to launch/train.py: one line, exit code 2, no rank left hanging, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launched.mistakes import both_ranks_say
from tests.tiny import ONE_STEP_RECIPE as RECIPE
from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

SCRIPT = REPOSITORY / "launch" / "train.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which ``--recipe good.yaml`` would train."""
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    (tmp_path / "good.yaml").write_text(RECIPE)
    return tmp_path


def errors(stderr: str) -> list[str]:
    mark = "zerokit: error: "
    return [line.removeprefix(mark) for line in stderr.splitlines() if line.startswith(mark)]


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (2, ["--recipe", "none.yaml"], "none.yaml: no such file. Check the path"),
        (
            2,
            ["--recipe", "good.yaml", "--data.train", "none.jsonl"],
            "--data.train: no such file: 'none.jsonl'. Check the path",
        ),
        (64, ["--recipe", "good.yaml"], "launcher: 64 ranks on this node, which has "),
    ],
    ids=["recipe", "data", "ranks"],
)
def test_all_ranks_leave_with_one_line(ranks: int, options: list[str], message: str, folder: Path) -> None:
    if ranks > 2:  # one process that was told so is enough: starting 64 would take a minute
        env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": str(ranks)}
        run = launch([SCRIPT, *options], ranks=1, launcher="python", cwd=folder, env=env)
    else:
        run = launch([SCRIPT, *options], ranks=ranks, launcher="none", cwd=folder)
    assert run.returncode == 2
    (line,) = errors(run.stderr)
    assert line.startswith(message)
    assert "Traceback" not in run.stdout + run.stderr
    assert not (folder / "out").exists()


_RECIPE_BY_RANK = """
import os
from zerokit.cli.main import main

if __name__ == "__main__":
    os.chdir("rank-" + os.environ["RANK"])
    main("train")
"""


def test_all_ranks_leave_if_only_rank_1_cannot_read_the_recipe(folder: Path) -> None:
    for rank, text in enumerate((RECIPE, RECIPE.replace("seq_len", "seq_lne"))):
        (folder / f"rank-{rank}").mkdir()
        (folder / f"rank-{rank}" / "recipe.yaml").write_text(text)
        for name in ("model", "data.jsonl"):
            (folder / f"rank-{rank}" / name).symlink_to(folder / name)
    (folder / "script.py").write_text(_RECIPE_BY_RANK)
    words = ["--num-gpus", "2", "--recipe", "recipe.yaml"]
    run = launch([folder / "script.py", *words], ranks=2, launcher="none", cwd=folder)
    assert run.returncode == 2
    (line,) = errors(run.stderr)
    assert line.startswith("recipe.yaml:5 (task.seq_lne): unknown key 'seq_lne'")
    assert "Traceback" not in run.stderr


PREPARE = """
from functools import partial
from pathlib import Path
from zerokit.recipe.load import load_recipe
from zerokit.training.main import read_recipe
from zerokit.training.prepare import prepare

def run(group, words):
    _, recipe, *overrides = words
    prepare(group, read_recipe(group, partial(load_recipe, Path(recipe), overrides), "zerokit train"))
"""


def test_all_ranks_raise_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "broken.jsonl": '{"prompt": "a", "completion": "b"}\n{"prompt": \n',
        "column.jsonl": '{"promt": "a", "completion": "b"}\n',
        "typo.yaml": RECIPE.replace("seq_len", "seq_lne"),
        "broken.json": '{"zero_optimization": {"stage": 3}',
        "offload.json": '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}',
        "ungathered.json": '{"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": false}}',
    }
    for name, nvme in (("nvme", "."), ("unmounted", "/none")):
        offload = {"device": "nvme", "nvme_path": nvme}
        ds_config = {"zero_optimization": {"stage": 3, "offload_optimizer": offload}}
        files[f"{name}.json"] = json.dumps(ds_config, indent=2)
    monkeypatch.setenv("LDFLAGS", "-Wl,--no-such-option")  # with which there is no libaio on any machine
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "trained").mkdir()
    (folder / "trained" / "run.json").write_text("{}")
    (folder / "file").touch()
    mistakes = {
        "typo.yaml:5 (task.seq_lne): unknown key 'seq_lne'. Did you mean": "--recipe typo.yaml",
        "--training.learning_rat: 'learning_rat' is not a TrainingArguments key": "--training.learning_rat 1",
        "--training.max_steps: ": "--training.max_steps many",
        "broken.jsonl:2": "--data.train broken.jsonl",
        "--data.train: cannot tell what an example is from the columns promt": "--data.train column.jsonl",
        "broken.json:1": "--deepspeed broken.json",
        "offload.json:1 (zero_optimization.offload_param": "--deepspeed offload.json",
        "ungathered.json (zero_optimization.stage3_gather_16bit_weights_on_m": "--deepspeed ungathered.json",
        "--training.resume_from_checkpoint: 'out' has no": "--training.resume_from_checkpoint true",
        "--training.output_dir: 'model' is the model to start from": "--training.output_dir model",
        "--training.output_dir: 'trained' has the model of an ea": "--training.output_dir trained",
        "--model: no such model folder: './none'": "--model ./none",
        "--training.output_dir: cannot write into 'file/out'": "--training.output_dir file/out",
        "--task.seq_len: sequences of 9999 tokens, but the model has 256 positions": "--task.seq_len 9999",
        "--generation.max_new_token: 'max_new_token' is not a Generation": "--generation.max_new_token 4",
        "nvme.json:4 (zero_optimization.offload_optimizer): offload to nvme needs l": "--deepspeed nvme.json",
        "unmounted.json:6 (zero_optimization.offload_optimizer.nvme_path)": "--deepspeed unmounted.json",
    }
    good = ["--recipe", "good.yaml"]
    words = {
        message: [*(() if text.startswith("--recipe") else good), *text.split()] for message, text in mistakes.items()
    }
    both_ranks_say(words, PREPARE, folder)
    assert not (folder / "out").exists()
