"""``--num-gpus`` with DeepSpeed's real launcher, a process of which is killed while the ranks work."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.combinations import REST
from tests.tiny import ONE_STEP_RECIPE, REPOSITORY, launch, tiny_llama, tiny_tokenizer
from zerokit.distributed.process_table import children_of, stat_of

ZEROKIT = Path(sys.executable).with_name("zerokit")
TRAIN = (
    *("train", "--recipe", "recipe.yaml", "--training.max_steps", "100000", "--training.logging_steps", "1"),
    *("--training.save_strategy", "'no'"),
)
GENERATE = (
    *("generate", "--model", "model", "--prompts", "prompts.txt", "-o", "out.jsonl", "--batch-size", "1"),
    *("--max_new_tokens", "200", "--min_new_tokens", "200"),
)


@pytest.mark.parametrize(
    ("words", "begun", "killed", "code", "said"),
    [
        (TRAIN, ("out/metrics.jsonl", '"loss"'), "launch", 75, "Resume with --resume auto"),
        (GENERATE, ("out.jsonl.partial", "{"), "runner", 137, "was killed by SIGKILL before the run"),
    ],
    ids=["train, the process that started the ranks", "generate, the launcher's first process"],
)
def test_a_run_fails_and_leaves_no_rank_when_its_launcher_is_killed(
    words: tuple[str, ...], begun: tuple[str, str], killed: str, code: int, said: str, tmp_path: Path
) -> None:
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    (tmp_path / "prompts.txt").write_text("Count\n" * 1000)
    (tmp_path / "recipe.yaml").write_text(ONE_STEP_RECIPE)
    variables = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            [ZEROKIT, words[0], "--num-gpus", "2", *words[1:]],
            cwd=tmp_path, env={**os.environ, **variables}, stdout=log, stderr=log,
        )  # fmt: skip
    wait_for_text(tmp_path / begun[0], begun[1], run)
    (runner,) = children_of(run.pid)
    (launch,) = children_of(runner)
    ranks = children_of(launch)
    assert len(ranks) == 2
    os.kill({"runner": runner, "launch": launch}[killed], signal.SIGKILL)
    assert run.wait() == code, (tmp_path / "log").read_text()
    assert said in (tmp_path / "log").read_text()
    assert not [stat for stat in map(stat_of, ranks) if stat is not None and stat.runs]
    assert not (tmp_path / "out.jsonl").exists()


def test_a_run_whose_rank_is_killed_is_restarted_and_has_the_losses_of_one_run(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model")
    lines = [json.dumps({"prompt": f"{number}", "completion": "b" * (number % 7)}) for number in range(300)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "recipe.yaml").write_text(ONE_STEP_RECIPE)
    words = ["--recipe", "recipe.yaml", "--training.max_steps", "26", "--training.logging_steps", "1"]
    variables = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    script = REPOSITORY / "launch" / "train.py"
    whole = [script, *words, "--training.output_dir", "whole", "--training.save_strategy", "'no'"]
    done = launch(whole, ranks=2, launcher="none", cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            [ZEROKIT, "train", "--num-gpus", "2", *words, "--training.save_steps", "4", "--retries", "3"],
            cwd=tmp_path, env={**os.environ, **variables}, stdout=log, stderr=log,
        )  # fmt: skip
    wait_for_text(tmp_path / "out/metrics.jsonl", '"step": 5', run)
    os.kill(children_of(*children_of(*children_of(run.pid)))[1], signal.SIGKILL)
    code, said = run.wait(), (tmp_path / "log").read_text()
    assert code == 0, said
    # The launcher may see first that the other rank has lost this one.
    reason = "(a rank was killed by SIGKILL before the run finished|a rank, or the connection to one, was lost)"
    assert re.search(f"zerokit: restart 1 of 3: {reason}; the run continues from out/", said)
    assert said.count("zerokit: restart ") == 1
    expected, restarted = (
        {
            line["step"]: line["loss"]
            for line in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
            if "loss" in line
        }
        for name in ("whole", "out")
    )
    assert len(expected) == 26
    assert restarted == expected


@pytest.mark.parametrize(
    "launcher", [pytest.param((), id="one process"), pytest.param(("--num-gpus", "2"), id="two ranks", marks=REST)]
)
def test_a_reader_that_ends_is_no_error(launcher: tuple[str, ...], tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 300)
    (tmp_path / "recipe.yaml").write_text(ONE_STEP_RECIPE)
    variables = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [ZEROKIT, "train", *launcher, "--recipe", "recipe.yaml", "--preview", "300"],
        cwd=tmp_path, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        run.stdout.close()
        _, said = run.communicate()
    assert run.returncode == 141, said
    assert b"zerokit: error" not in said
    assert b"Traceback" not in said or launcher  # the launcher's own lines cannot be written either


def test_an_evaluation_on_two_ranks_is_that_on_one(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{number}", "completion": "b" * number}) + "\n" for number in range(7))
    )
    variables = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    words = ["model", "data.jsonl", "--task.seq_len", "64", "--batch-size", "2", "--format", "json"]
    found = []
    for ranks in (1, 2):
        script = REPOSITORY / "zerokit/evaluate.py"
        one = launch([script, *words], ranks=ranks, launcher="none", cwd=tmp_path, env=variables)
        assert one.returncode == 0, one.stderr
        found.append(json.loads(one.stdout))
    same = {name: pytest.approx(found[0][name]) for name in ("loss", "perplexity", "token_accuracy")}
    assert found[1] == found[0] | same
    assert found[0]["num_examples"] == 7


def wait_for_text(file: Path, text: str, run: subprocess.Popen[bytes]) -> None:
    """Wait until `run` has written it."""
    while not (file.exists() and text in file.read_text()):
        assert run.poll() is None
        time.sleep(0.05)
