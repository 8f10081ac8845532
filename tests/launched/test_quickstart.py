"""The quickstart, cut short."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM

from tests import processes
from zerokit.quickstart import QUESTIONS

ZEROKIT = Path(sys.executable).with_name("zerokit")


def test_the_commands_train_and_generate(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    run = processes.run([ZEROKIT, "quickstart", "--output-dir", folder, "--max-steps", "6"])
    assert run.returncode == 0, run.stderr
    for command in ("train", "config", "check", "estimate", "generate"):
        assert f"\n$ zerokit {command} " in run.stderr
    assert json.loads((folder / "ds_config.json").read_text())["zero_optimization"]["stage"] == 2
    for name in ("corpus", "model"):
        report = json.loads((folder / name / "run.json").read_text())
        assert (report["zero_stage"], report["steps"]) == (2, 6)
        assert report["loss_after"] < report["loss_before"]
        AutoModelForCausalLM.from_pretrained(folder / name)
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"index"')]
    assert [answer["prompt"] for answer in answers] == list(QUESTIONS)


def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    (tmp_path / "quickstart").write_text("in the way")
    run = processes.run([ZEROKIT, "quickstart", "--output-dir", tmp_path / "quickstart", "--max-steps", "6"])
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("zerokit: error: zerokit quickstart: 'zerokit train' ended with exit code 2. ")
