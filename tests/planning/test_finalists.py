"""Finalists are rehearsed with the plan's own files, and those files train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import zerokit  # noqa: F401
from tests.planning.test_compare import PLAN, REPORT
from tests.rehearsal import commands, forked_worker
from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer
from zerokit.planning import finalists
from zerokit.planning.report import PlanReport
from zerokit.planning.workload import Workload


@pytest.mark.torch
@pytest.mark.rehearsal
@pytest.mark.distributed
def test_the_files_of_a_plan_rehearse_and_train(
    zerokit: commands.Rehearsed,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zerokit.planning.cache.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets-cache"))
    monkeypatch.setenv(forked_worker.SOCKET, forked_worker.server())
    monkeypatch.setattr(finalists, "_ZEROKIT", commands.FORKED)
    tiny_llama(tmp_path / "model")
    tiny_tokenizer(tmp_path / "model")
    rows = [{"prompt": f"count {number}", "completion": f" {number + 1}"} for number in range(64)]
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["--data", tmp_path / "data.jsonl", "--seq-len", 64, "--global-batch-size", 8]
    words += ["--have", "2xH100", "--rehearse", 1, "-o", tmp_path / "plan", "--format", "json"]
    code, out, err = zerokit("plan", tmp_path / "model", *words)  # type: ignore[operator]
    assert code == 0, err
    best = PlanReport.model_validate_json(out).plans[0]
    assert best.rehearsed
    assert not any("was not rehearsed" in line for line in json.loads(out)["assumptions"])
    words = ["--num-gpus", best.num_gpus, "--gpu", best.gpu, "--time", "--no-advise", "--format", "json"]
    words += ["-m", "zerokit.train", "--recipe", "recipe.yaml"]
    again = commands.rehearse(*words, cwd=tmp_path / "plan", forked=True).report
    assert again["fit"]["low_bytes"] == best.device_bytes.low
    assert again["time"]["step_seconds"] == pytest.approx(best.step_seconds.mid, rel=0.1)
    for more in ((), ("--recipe", tmp_path / "plan" / "recipe.yaml", "--num-gpus", best.num_gpus)):
        words = ["check", tmp_path / "plan" / "ds_config.json", "--target", "trainer", *more]
        code, out, err = zerokit(*words)  # type: ignore[operator]
        assert (code, "nothing found" in out) == (0, True), out + err
    # The recipe names its files in such a way that it can start from any folder.
    script, recipe = REPOSITORY / "launch" / "train.py", tmp_path / "plan" / "recipe.yaml"
    words = [script, "--recipe", recipe, "--training.max_steps", "1"]
    done = launch(words, ranks=2, launcher="none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(next(tmp_path.rglob("run.json")).read_text())["world_size"] == 2


def test_made_up_examples_have_the_lengths_of_the_data() -> None:
    workload = Workload(num_sequences=90, seq_len=64, global_batch_size=8, lengths={5: 60, 20: 29, 64: 1})
    assert sorted(finalists._lengths(workload, 6, 1)) == [5, 5, 5, 5, 20, 64]
    packed = Workload(num_sequences=90, seq_len=64, global_batch_size=8, packing=True)
    assert finalists._lengths(packed, 2, 2) == [32] * 4


def test_says_that_nothing_can_be_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalists, "missing_packages", lambda extra: ["torch"])
    reason = finalists.not_possible()
    assert reason == "Nothing was rehearsed, because torch is not installed; figures come from formulas."
    assert PlanReport.model_validate(REPORT).plans[0].rehearsed is PLAN["rehearsed"]


SCRIPT = "zerokit: error: zerokit.train: the script fails before its first optimizer step. What is printed above is"


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        (
            f"Traceback\nAttributeError: 'LinearLayer' has no attribute 'x'\n{SCRIPT}\n",
            "AttributeError: 'LinearLayer' has",
        ),
        (
            f"KeyError: 'caught'\n[rank1]: torch.OutOfMemoryError: full\n{SCRIPT}",
            "[rank1]: torch.OutOfMemoryError: full",
        ),
        ("ValueError: caught\nzerokit: error: no such card\nbye\n", "zerokit: error: no such card"),
        (f"[W] load error: not found\nException: real\n{SCRIPT}\n", "Exception: real"),
        (f"{SCRIPT}\n", SCRIPT),
        ("Killed\n", "Killed"),
        ("", ""),
    ],
)
def test_a_failed_rehearsal_names_its_cause(stderr: str, cause: str) -> None:
    found = finalists._find_cause(stderr)
    assert found.startswith(cause)
    assert bool(found) == bool(stderr)
