"""The quickstart, cut short: everything it says it does, and what it reuses the second time."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM

from tests import processes
from tests.tiny import REPOSITORY

ZEROKIT = Path(sys.executable).with_name("zerokit")


def quickstart(folder: Path) -> str:
    run = processes.run([ZEROKIT, "quickstart", "--output-dir", folder, "--max-steps", "6"])
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_the_main_job_end_to_end_and_again(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    said = quickstart(folder)
    for number in range(1, 8):
        assert f"\n[{number}/7]" in f"\n{said}"
    assert "\\n" not in said
    sizes = [f"{e}Φ parameters + {e}Φ/N gradients + 12Φ/N optimizer states" for e in (4, 2)]  # fp32, bf16
    assert any(size in said for size in sizes)
    config = json.loads((folder / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] == 2
    for name in ("corpus", "model"):
        report = json.loads((folder / name / "run.json").read_text())
        assert report["zero_stage"] == 2
        assert report["steps"] == 6
        assert report["loss_after"] < report["loss_before"]
        AutoModelForCausalLM.from_pretrained(folder / name)
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    questions = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    assert [answer["prompt"] for answer in answers] == [question["prompt"] for question in questions]

    more = next(line for line in said.splitlines() if "--prompt " in line and str(folder) in line)
    words = shlex.split(more)
    assert (REPOSITORY / words[words.index("--model") + 1] / "model.safetensors").is_file()

    before = (folder / "corpus" / "model.safetensors").stat().st_mtime_ns
    again = quickstart(folder)
    assert again.count("Reusing") == 2
    assert (folder / "corpus" / "model.safetensors").stat().st_mtime_ns == before
