"""Which folder is meant, in what DeepSpeed, the Trainer and accelerate leave."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.checkpoint.small import save_checkpoint
from zerokit.checkpoint.step_folder import find_step_folder
from zerokit.errors import CheckpointError

STATES = "mp_rank_00_model_states.pt"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({STATES: ""}, "."),
        ({"latest": "global_step9", f"global_step9/{STATES}": "", f"global_step10/{STATES}": ""}, "global_step9"),
        ({f"global_step9/{STATES}": "", f"global_step10/{STATES}": ""}, "global_step10"),
        (
            {
                f"checkpoint-9/global_step9/{STATES}": "",
                "checkpoint-10/latest": "global_step10\n",
                f"checkpoint-10/global_step10/{STATES}": "",
                "config.json": "{}",
            },
            "checkpoint-10/global_step10",
        ),
        ({f"pytorch_model/{STATES}": "", "random_states_0.pkl": ""}, "pytorch_model"),
        ({"latest_universal": "step_universal", f"step_universal/{STATES}": ""}, "step_universal"),
        ({"latest": "../elsewhere", f"global_step1/{STATES}": ""}, None),
        ({"model.safetensors": ""}, None),
    ],
)
def test_the_newest_is_taken_unless_latest_names_one(files: dict[str, str], found: str | None, tmp_path: Path) -> None:
    (tmp_path / "run/elsewhere").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text(content)
    if found is None:
        with pytest.raises(CheckpointError):
            find_step_folder(tmp_path / "run")
    else:
        assert find_step_folder(tmp_path / "run") == tmp_path / "run" / found


@pytest.mark.parametrize(
    ("weights", "message", "hint"),
    [
        ("model.safetensors", "has whole weights (model.safetensors), not the files", "Use that file directly"),
        ("pytorch_model.bin.index.json", "has whole weights, not the files of ranks", "Use this folder directly"),
    ],
)
def test_whole_weights_are_not_parts_of_ranks(weights: str, message: str, hint: str, tmp_path: Path) -> None:
    folder = tmp_path / "run/checkpoint_3"
    folder.mkdir(parents=True)
    for name in (weights, "optimizer.bin", "random_states_0.pkl"):  # as accelerate's save_state leaves them
        (folder / name).touch()
    with pytest.raises(CheckpointError, match=rf"_3: {re.escape(message)}") as raised:
        find_step_folder(tmp_path / "run")
    assert raised.value.hint == hint


def test_a_checkpoint_is_what_a_person_names_and_no_link_of_the_run(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "elsewhere/checkpoint-2/global_step2")
    save_checkpoint(tmp_path / "run/checkpoint-1/global_step1")
    link = tmp_path / "run/checkpoint-2"
    link.symlink_to(tmp_path / "elsewhere/checkpoint-2")
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        find_step_folder(tmp_path / "run")
    assert find_step_folder(link) == link / "global_step2"
