"""A run of one rank: what ends it, in which words, and what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.cli import conftest
from tests.combinations import REST
from tests.launched.broken_loss import broken
from tests.launched.one_rank import OneRank, make_folder, one_process
from tests.tiny import REPOSITORY, tiny_llama, tiny_tokenizer
from zerokit.checkpoint.checksums import checksums, files_of, read_checksums, record_num_files, write_checksums
from zerokit.checkpoint.reshard import reshard
from zerokit.checkpoint.saved_states import num_groups
from zerokit.errors import CheckpointError

zerokit = conftest.zerokit


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """Where all runs of this file are made."""
    with one_process() as pool:
        yield pool


@pytest.fixture
def here(process: ProcessPoolExecutor, tmp_path: Path) -> OneRank:
    """A folder with all that a run needs."""
    make_folder(tmp_path)
    return OneRank(tmp_path, process)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("steps", "what"), [("5", "the loss is nan at step 2"), ("1", "the held-out loss is nan after step 1")]
)
def test_a_diverged_run_ends_at_the_step_and_replaces_no_model(steps: str, what: str, here: OneRank) -> None:
    only_at_the_end = ("--training.save_strategy", "'no'")
    assert here.train(*only_at_the_end).error is None
    before = contents(here.folder / "out")
    wild = ("--training.learning_rate", "1e10", "--training.max_steps", steps)
    error = here.error_of(*wild, *only_at_the_end, force=True)
    assert error.startswith(f"1 out: the run has diverged: {what}. No model was replaced. Lower ")
    assert "(1e+10)" in error
    del before["metrics.jsonl"]
    assert contents(here.folder / "out").items() >= before.items()


def test_a_polynomial_schedule_ends_where_it_is_to(here: OneRank) -> None:
    words = ("--training.lr_scheduler_type", "polynomial", "--training.lr_scheduler_kwargs", "{lr_end: 0.25}")
    rate = ("--training.learning_rate", "0.75", "--training.max_steps", "2", "--training.logging_steps", "1")
    assert here.train(*words, *rate).error is None
    logged = [json.loads(line) for line in (here.folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in logged if "learning_rate" in line] == [0.75, 0.5]


def test_what_a_model_says_of_sampling_is_saved_again_and_a_recipe_s_is_checked(here: OneRank) -> None:
    file = here.folder / "model" / "generation_config.json"
    file.write_text('{"eos_token_id": 5, "temperature": 0.3}')  # transformers saves no such one of its own
    assert here.train().error is None
    saved = here.json("generation_config.json")
    assert (saved["temperature"], saved.get("do_sample", False)) == (0.3, False)
    wrong = here.error_of("--generation.top_p", "0.5", force=True)
    assert wrong.startswith("2 recipe.yaml (generation): transformers refuses it: Generation")
    assert here.train("--generation.top_p", "0.5", "--generation.do_sample", "true", force=True).error is None
    assert here.json("generation_config.json")["top_p"] == 0.5


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            {"metric_for_best_model": "accurcy"},
            "2 training.metric_for_best_model: there is no metric 'accurcy' of causal_lm. Choose one of: ",
        ),
        (
            {"dataloader_drop_last": "true", "per_device_train_batch_size": "50"},
            "2 --training.dataloader_drop_last: drops all 38 sequences that there are: one batch of all "
            "ranks takes 50",
        ),
    ],
)
def test_what_would_end_a_run_in_vain_is_told_before_its_first_step(
    words: dict[str, str], error: str, here: OneRank
) -> None:
    given = (word for name, value in words.items() for word in (f"--training.{name}", value))
    assert here.error_of(*given).startswith(error)
    assert not (here.folder / "out" / "run.json").exists()


@contextmanager
def weight_lost() -> Iterator[None]:
    """The last step leaves a weight that is no number, which no loss has seen."""
    from transformers import Trainer

    original = Trainer._finalize_training

    def finalize(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.model.model.norm.weight.data[3] = float("-inf")
        return original(self, *args, **kwargs)

    with patch.object(Trainer, "_finalize_training", finalize):
        yield


def test_weights_that_are_no_numbers_are_not_saved(here: OneRank) -> None:
    lost = here.error_of("--training.save_strategy", "'no'", "--data.eval_fraction", "0", fault=weight_lost)
    assert lost.startswith("1 out: the run has diverged: weights are no longer numbers after step 1.")
    assert contents(here.folder / "out").keys() == {"metrics.jsonl"}


RESUME = ("--training.resume_from_checkpoint", "true")


def write_anew(checkpoint: Path) -> None:
    """Write the checksums of a checkpoint that was changed on purpose."""
    names = files_of(checkpoint)
    record_num_files(checkpoint, len(names))
    write_checksums(checkpoint, checksums(checkpoint, names))


def steps(number: int) -> tuple[str, ...]:
    return ("--training.max_steps", str(number), "--training.save_steps", "1")


def test_a_run_goes_on_under_its_id_and_a_replaced_one_is_set_aside(here: OneRank) -> None:
    assert here.train(*steps(2)).error is None
    first = here.json("run.json")["run_id"]
    assert here.json("checkpoint-1/zerokit_run.json")["run_id"] == first
    tokens = here.json("run.json")["tokens"]
    assert here.train(*steps(3), *RESUME).error is None
    report = here.json("run.json")
    assert (report["run_id"], report["steps"], report["resumed_from_step"]) == (first, 3, 2)
    assert report["tokens_per_second"] * report["train_seconds"] == pytest.approx(report["tokens"] - tokens)
    assert here.train(*steps(3), *RESUME).error is None  # its end has been reached
    report = here.json("run.json")
    assert (report["steps"], report["tokens_per_second"], report["train_loss"]) == (3, 0, None)

    replaced = here.train("--training.learning_rate", "1e-4", force=True)
    assert replaced.error is None
    assert f"3 checkpoints of an earlier run set aside in out/earlier/{first}\n" in replaced.said
    second = here.json("run.json")["run_id"]
    assert second != first
    out = here.folder / "out"
    assert [folder.name for folder in out.glob("checkpoint-*")] == ["checkpoint-1"]
    aside = {path.name for path in (out / "earlier" / first).iterdir()}
    assert aside == {"checkpoint-1", "checkpoint-2", "checkpoint-3", "metrics.jsonl"}


AUTO = ("--training.resume_from_checkpoint", "auto")


def test_one_command_starts_continues_and_finishes_a_run(here: OneRank) -> None:
    with_model = contents(here.folder)
    assert here.train(*steps(2), *AUTO).error is None
    first = here.json("run.json")
    assert (first["steps"], first["resumed_from_step"]) == (2, 0)

    before = contents(here.folder / "out")
    finished = here.train(*steps(2), *AUTO)
    assert (finished.error, finished.said) == (None, "zerokit: the run in out has finished (2 steps)\n")
    assert here.train("--training.logging_steps", "7", *AUTO).error is None  # of the recipe's one step
    assert contents(here.folder / "out") == before

    (here.folder / "out/run.json").unlink()  # as a run that was killed at its end
    shutil.rmtree(here.folder / "out/checkpoint-2")
    assert here.train(*steps(2), *AUTO).error is None
    report = here.json("run.json")
    assert (report["run_id"], report["steps"], report["resumed_from_step"]) == (first["run_id"], 2, 1)
    assert here.train(*steps(3), *AUTO).error is None
    report = here.json("run.json")
    assert (report["run_id"], report["steps"], report["resumed_from_step"]) == (first["run_id"], 3, 2)

    before = contents(here.folder / "out")
    error = here.error_of(*steps(3), *AUTO, "--training.learning_rate", "1e-4", "--data.eval_fraction", "0")
    assert error.startswith(
        "2 recipe.yaml:7 (training.output_dir): 'out' has the model of a run that differs: "
        "data.eval_fraction is 0.0, was not set; training.learning_rate is 0.0001, was not set. Set it back"
    )
    assert contents(here.folder / "out") == before
    assert {name: text for name, text in contents(here.folder).items() if name in with_model} == with_model


def test_a_run_is_not_shortened_by_options_that_were_forgotten(here: OneRank) -> None:
    assert here.train(*steps(3)).error is None
    (here.folder / "out/run.json").unlink()
    shutil.rmtree(here.folder / "out/checkpoint-3")
    before = contents(here.folder / "out")
    for resume in (AUTO, RESUME):
        error = here.error_of(*resume)
        assert error.startswith(
            "2 recipe.yaml:8 (training.max_steps): 'out/checkpoint-2' is of a run of 3 steps, and this run "
            "has 1. Repeat the options of its first command"
        )
        assert contents(here.folder / "out") == before
    longer = here.train("--training.max_steps", "4", *AUTO)
    assert longer.error is None
    assert "of a run of 3 steps, and this run has 4: the learning rate follows the new length" in longer.said


def test_a_run_does_not_go_on_as_another(here: OneRank) -> None:
    text = (here.folder / "data.jsonl").read_text()
    (here.folder / "other.jsonl").write_text(text.replace("What is 17?", "Who is 17?"))
    for name, config in (("retrained", {"seed": 1}), ("wider", {"intermediate_size": 192})):
        tiny_tokenizer(here.folder / name)
        tiny_llama(here.folder / name, initializer_range=0.05, **config)
    ds_config = ("--deepspeed", '{"zero_optimization": {"stage": 2}}')
    assert here.train(*steps(2), *ds_config).error is None
    before = contents(here.folder / "out")
    cases = (
        (("--training.learning_rate", "1e-4"), "training.learning_rate is 0.0001, was 5e-05"),
        (
            ("--training.gradient_accumulation_steps", "2"),
            "a step now has 16 examples; the checkpoint's run had 8. Set per_device_train_",
        ),
        (("--deepspeed.zero_optimization.stage", "1"), "deepspeed.zero_optimization.stage is 1, was 2"),
        (("--data.train", "other.jsonl"), "the training examples differ (as many), data.train is other"),
        (("--task.seq_len", "8"), "the training examples differ (as many), task.seq_len is 8, was 64"),
        (("--model", "retrained"), "the model to start from has other weights"),
        (("--model", "wider"), "model.intermediate_size is 192, was 128; the model to start from has other"),
    )
    for words, said in cases:
        error = here.error_of(*steps(3), *ds_config, *RESUME, *words)
        assert error.startswith(
            f"2 --training.resume_from_checkpoint: 'out/checkpoint-2' is of a run that differs: {said}"
        )
        assert "--model out/checkpoint-2" in error
        assert contents(here.folder / "out") == before


def test_a_run_goes_on_with_its_files_elsewhere_and_more_steps(here: OneRank) -> None:
    assert here.train(*steps(2)).error is None
    (here.folder / "data.jsonl").rename(here.folder / "moved.jsonl")
    (here.folder / "model").rename(here.folder / "also-moved")
    paths = ("--data.train", "moved.jsonl", "--model", "also-moved")
    assert here.train(*steps(3), *paths, "--training.logging_steps", "1", *RESUME).error is None
    assert here.json("run.json")["steps"] == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_without_zero_goes_on(precision: str, here: OneRank) -> None:
    """Its optimizer is saved beside the model, in no part of its own."""
    words = ("--deepspeed", '{"zero_optimization": {"stage": 0}}', "--precision", precision, *steps(4))
    words += ("--training.logging_steps", "1")
    assert here.train(*words).error is None
    straight = losses(here.folder / "out")
    shutil.rmtree(here.folder / "out" / "checkpoint-4")
    shutil.rmtree(here.folder / "out" / "checkpoint-3")
    assert here.train(*words, *RESUME).error is None
    assert here.json("run.json")["resumed_from_step"] == 2
    assert losses(here.folder / "out")[-2:] == straight[-2:]
    (model,) = (here.folder / "out").glob("checkpoint-4/global_step4/mp_rank_00_model_states.pt")
    model.write_bytes(b"")
    assert "checkpoint-4 is not whole (lacks the states of the optimizer" in here.train(*words, *RESUME).said


@pytest.mark.parametrize(("param", "decay"), [("none", "0"), pytest.param("none", "0.1", marks=REST), ("nvme", "0.1")])
def test_a_run_goes_on_with_its_optimizer_on_nvme(param: str, decay: str, here: OneRank) -> None:
    """One group is swapped, and with decay one, of what does not decay, is too small to be."""
    here.run("from tests.launched import cpu_ops; cpu_ops.stand_in_for_async_io()")
    # Of parameters, DeepSpeed keeps those in memory that are below 1 MiB, and others up to max_in_cpu.
    hidden_size = 512 if param == "nvme" else 128
    make_folder(here.folder, hidden_size=hidden_size, intermediate_size=4 * hidden_size)
    on_drive = {"device": "nvme", "nvme_path": str(here.folder)}
    zero = {"stage": 3, "offload_optimizer": on_drive}
    if param == "nvme":
        zero["offload_param"] = {**on_drive, "max_in_cpu": 0}
    words = ("--deepspeed", json.dumps({"zero_optimization": zero}), "--training.weight_decay", decay)
    words += ("--training.logging_steps", "1", "--training.learning_rate", "1e-2", "--training.max_steps")
    assert here.train(*words, "4", "--training.save_steps", "2").error is None
    straight = losses(here.folder / "out")
    shutil.rmtree(here.folder / "out" / "checkpoint-4")
    resumed = here.train(*words, "4", "--training.save_steps", "2", *RESUME)
    assert resumed.error is None
    assert here.json("run.json")["resumed_from_step"] == 2
    # DeepSpeed's Adam multiplies its betas step by step, and takes their power after a gap.
    assert losses(here.folder / "out")[-2:] == pytest.approx(straight[-2:], rel=1e-5)
    moments = [*(here.folder / "out").glob("checkpoint-4/*/offloaded_tensors/*/exp_avg-*")]
    assert len(moments) == 1, "what an earlier run has left on the drive is no part of a checkpoint"
    moments[0].unlink()
    write_anew(here.folder / "out" / "checkpoint-4")
    other = here.error_of(*words, "5", *RESUME)
    assert other.startswith("2 out/checkpoint-4/global_step4: has no file 'exp_avg-")


def test_what_a_killed_run_left_is_not_rotated_away(here: OneRank) -> None:
    assert here.train(*steps(3)).error is None
    out = here.folder / "out"
    (out / "run.json").unlink()
    (out / "checkpoint-2" / "trainer_state.json").unlink()  # they were being written
    next((out / "checkpoint-3").glob("*/*optim_states.pt")).unlink()
    anew = here.error_of()
    assert anew.startswith("2 recipe.yaml:7 (training.output_dir): 'out' has checkpoint-3 of a run that")
    assert "--resume auto" in anew
    resumed = here.train(*steps(3), *RESUME)
    assert resumed.error is None
    assert "out/checkpoint-3 is not whole (lacks the states of the optimizer of each rank): " in resumed.said
    assert "the run continues from out/checkpoint-1\n" in resumed.said
    begins = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines() if "max" in line]
    assert [entry["step"] for entry in begins] == [0, 1]


@pytest.mark.parametrize("number", [11, 30])
def test_the_batch_that_is_no_number_is_named_by_file_and_line(number: int, here: OneRank) -> None:
    words = ("--training.per_device_train_batch_size", "1", "--training.gradient_accumulation_steps", "3")
    shutil.copy(here.folder / "data.jsonl", here.folder / "held_out.jsonl")  # all of data.jsonl is trained on
    whole = ("--data.eval", "held_out.jsonl", "--training.max_steps", "-1")
    ended = here.error_of(*words, *whole, fault=partial(broken, "nan", f"number {number}."))
    assert ended.startswith("1 out: the run has diverged: the loss is nan at step ")
    assert ended.endswith(f" The batch that shows it: rank 0 with data.jsonl:{number + 1}")


@contextmanager
def after_the_first_step(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` at the end of the first step."""
    from zerokit.training.progress import RunProgress

    original = RunProgress.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            act()
        original(self, args, state, control, **kwargs)

    with patch.object(RunProgress, "on_step_end", on_step_end):
        yield


def ask_to_leave() -> None:
    """As a scheduler does."""
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_is_asked_to_leave_saves_and_can_go_on(here: OneRank) -> None:
    words = ("--training.save_strategy", "'no'", "--training.max_steps", "4", "--training.logging_steps", "1")
    assert here.train(*words).error is None
    whole = losses(here.folder / "out")
    left = here.train(*words, force=True, fault=partial(after_the_first_step, ask_to_leave))
    assert left.error == (
        "75 preempted after step 2 (rank 0: SIGTERM). Resume with --resume auto, from out/checkpoint-2"
    )
    assert read_checksums(here.folder / "out" / "checkpoint-2") is not None
    assert here.train(*words, *RESUME).error is None
    assert losses(here.folder / "out") == whole


def test_a_checkpoint_that_says_nothing_of_its_run_is_resumed_with_a_note(here: OneRank) -> None:
    assert here.train(*steps(1)).error is None
    for name in ("zerokit_run.json", "SHA256SUMS"):
        (here.folder / "out" / "checkpoint-1" / name).unlink()
    resumed = here.train(*steps(2), *RESUME)
    assert resumed.error is None
    assert "out/checkpoint-1 does not say which run it is of" in resumed.said


def test_a_run_goes_on_from_a_checkpoint_of_another_number_of_ranks(here: OneRank) -> None:
    recipe = (*steps(3), "--training.logging_steps", "1", "--deepspeed.zero_optimization.stage", "2")
    assert here.train(*recipe).error is None
    out = here.folder / "out"
    whole = losses(out)
    one = out / "checkpoint-1"
    for later in ("checkpoint-2", "checkpoint-3", "run.json"):
        (out / later).rename(here.folder / later)
    one.rename(here.folder / "of-one")
    reshard(here.folder / "of-one", one, num_ranks=2)
    identity = json.loads((one / "zerokit_run.json").read_text()) | {"world_size": 2}
    (one / "zerokit_run.json").write_text(json.dumps(identity))
    write_anew(one)

    other = here.error_of(*recipe, *RESUME, "--training.gradient_accumulation_steps", "2")
    assert (
        "is of a run of 2 ranks: a step now has 16 examples; the checkpoint's run had 8. Set per_device_train" in other
    )
    assert "gradient_accumulation_steps to 8; or begin another run" in other

    resumed = here.train(*recipe, *RESUME)
    assert resumed.error is None
    assert "out/checkpoint-1 was saved by 2 ranks, and this run has 1: it is resharded" in resumed.said
    assert "out/.divided/checkpoint-1-on-1-rank takes " in resumed.said
    assert losses(out)[-2:] == whole[-2:]
    assert not list(out.glob(".*"))


@contextmanager
def two_groups() -> Iterator[None]:
    """The optimizer has its weights in groups as the Trainer makes them, and zerokit once did."""
    from zerokit.training.trainer import ZeroTrainer

    with patch.object(ZeroTrainer, "_uses_one_group", lambda *_: False):
        yield


@pytest.mark.parametrize(("stage", "precision"), [("1", "bf16"), pytest.param("2", "fp32", marks=REST), ("3", "fp32")])
def test_weights_that_do_not_decay_are_one_group_but_in_a_run_that_began_with_two(
    stage: str, precision: str, here: OneRank
) -> None:
    words = ("--deepspeed.zero_optimization.stage", stage, "--precision", precision)
    recipe = (*steps(3), "--training.logging_steps", "1", *words)
    out = here.folder / "out"
    found = []
    for fault in (two_groups, nullcontext):
        assert here.train(*recipe, fault=fault, force=True).error is None
        found.append(losses(out))
        groups = num_groups(out / "checkpoint-1")
        assert groups == (2 if fault is two_groups else 1)
        for later in ("checkpoint-2", "checkpoint-3"):
            shutil.rmtree(out / later)
        assert here.train(*recipe, *RESUME).error is None
        assert losses(out)[-2:] == found[-1][-2:]
        assert num_groups(out / "checkpoint-3") == groups
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_weights_that_decay_are_apart_from_those_that_do_not(here: OneRank) -> None:
    assert here.train(*steps(1), "--training.weight_decay", "0.1").error is None
    assert num_groups(here.folder / "out" / "checkpoint-1") == 2


def losses(out: Path) -> list[float]:
    """As they were logged."""
    entries = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [entry["loss"] for entry in entries if "loss" in entry]


def test_a_checkpoint_that_lacks_a_part_is_named_without_checksums(here: OneRank) -> None:
    assert here.train(*steps(1)).error is None
    folder = here.folder / "out" / "checkpoint-1"
    (folder / "SHA256SUMS").unlink()
    cases = (
        ("latest", None, "lacks latest, which names DeepSpeed's part. Continue from an earlier checkpoint-N"),
        ("latest", "..", "lacks DeepSpeed's part, which latest names"),
        ("global_step1/mp_rank_00_model_states.pt", None, "lacks the states of the model"),
        ("global_step1/*optim_states.pt", None, "lacks the states of the optimizer of each rank"),
        ("trainer_state.json", '{"a": ', "trainer_state.json is damaged: "),
    )
    for name, content, said in cases:
        (file,) = folder.glob(name)
        whole = file.read_bytes()
        file.unlink()
        if content is not None:
            file.write_text(content)
        error = here.error_of(*steps(2), *RESUME)
        assert error.startswith(f"2 out/checkpoint-1: {said}")
        file.write_bytes(whole)


def test_checksums_that_were_lost_or_changed_are_noticed(here: OneRank, zerokit: conftest.Run) -> None:
    """A run refuses to go on from such a checkpoint; 'checkpoint verify' says no."""
    assert here.train(*steps(1)).error is None
    folder = here.folder / "out" / "checkpoint-1"
    sums = folder / "SHA256SUMS"
    text = sums.read_text()
    num_files = len(text.splitlines())
    _, rest = text.split("\n", 1)
    cases = [
        ("", f"/SHA256SUMS: has lines for 0 of {num_files} files, and none for 'chat_template.jinja'. "),
        (rest, f"/SHA256SUMS: has lines for {num_files - 1} of {num_files} files, and none for 'chat_te"),
        (text.replace("  ", " ", 1), "/SHA256SUMS:1: is malformed: "),
        (text * 2, f"/SHA256SUMS:{num_files + 1}: names 'chat_template.jinja' twice. "),
        (f"{'0' * 64}  ../../a\n{text}", "/SHA256SUMS:1: names '../../a', which is outside the checkpoint's folder"),
        (None, ": has lost its SHA256SUMS: it cannot be verified. "),
    ]
    for changed, said in cases:
        sums.unlink()
        if changed is not None:
            sums.write_text(changed)
        code, out, err = zerokit("checkpoint", "verify", folder)
        assert (code, f"not verified by SHA256SUMS: {folder}{said}" in out, err) == (1, True, "")
        error = here.error_of(*steps(2), *RESUME)
        assert error.startswith(f"2 out/checkpoint-1{said}")
        assert error.endswith("--no-verify")
        sums.touch()
    with pytest.raises(CheckpointError, match="SHA256SUMS: has lines for 0 of"):
        reshard(folder, here.folder / "resharded", num_ranks=2)


def test_files_that_were_added_to_a_checkpoint_are_noted(here: OneRank) -> None:
    """Such as the weights that DeepSpeed's zero_to_fp32.py leaves beside it."""
    assert here.train(*steps(1)).error is None
    (here.folder / "out" / "checkpoint-1" / "pytorch_model.bin").write_bytes(b"weights")
    resumed = here.train(*steps(2), *RESUME)
    assert resumed.error is None
    assert "out/checkpoint-1 was saved without 1 file, such as 'pytorch_model.bin': not ver" in resumed.said


@pytest.mark.parametrize("adapter", [True, False])
def test_a_run_does_not_go_on_from_another_model(adapter: bool, here: OneRank) -> None:
    """Nor if 64 bytes in the middle of a tensor differ, in a file of the same size and time."""
    recipe = (*steps(1), *(("--peft.type", "lora", "--peft.r", "2") if adapter else ()))
    assert here.train(*recipe).error is None
    model = here.folder / "model" / "model.safetensors"
    content, before = model.read_bytes(), model.stat()
    middle = len(content) // 2
    model.write_bytes(content[:middle] + bytes(64) + content[middle + 64 :])
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    error = here.error_of(*recipe, "--training.max_steps", "2", *RESUME)
    assert "is of a run that differs: the model to start from has other weights. Set it back; or" in error
    model.write_bytes(content)
    assert here.train(*recipe, "--training.max_steps", "2", *RESUME).error is None


@contextmanager
def beside_another() -> Iterator[None]:
    """Another process has the folder, and this one finds out when it has prepared everything."""
    holder = (
        "import sys; from pathlib import Path; from zerokit.training import folder\n"
        "with folder._lock(Path('out'), 'there', '0123abcd'): print('held', flush=True); sys.stdin.read()"
    )
    Path("out").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        Path("holder").write_text(str(process.pid))
        yield
        process.stdin.close()


def test_one_run_at_a_time_writes_into_a_folder(here: OneRank) -> None:
    second = here.error_of(force=True, fault=beside_another)
    owner = f"process {(here.folder / 'holder').read_text()} on {socket.gethostname()} (run 0123abcd, since "
    assert second.startswith(f"2 recipe.yaml:7 (training.output_dir): 'out' is in use by {owner}")
    assert not list((here.folder / "out").iterdir())
    (here.folder / "out" / "run.lock").write_text('{"host": "gone", "pid": 1, "run_id": "a", "started": "b"}')
    assert here.train().error is None  # nobody holds it
    assert not (here.folder / "out" / "run.lock").exists()


@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_an_example_that_cannot_be_trained_on_is_named_by_file_and_line(column: str, here: OneRank) -> None:
    """However the examples are shuffled and shared out."""
    lines = (here.folder / "data.jsonl").read_text().splitlines()
    for number in (7, 23):
        broken = [*lines]
        broken[number - 1] = json.dumps({**json.loads(broken[number - 1]), column: None})
        (here.folder / "broken.jsonl").write_text("\n".join(broken))
        named = here.train("--data.train", "broken.jsonl").error
        assert named == f"2 broken.jsonl:{number}: '{column}' is absent or null. Fix or remove that example"


def test_an_adapter_is_merged_as_documented_into_a_model_that_generates(here: OneRank) -> None:
    lora = ("--peft.type", "lora", "--training.gradient_checkpointing", "true")
    trained = here.train(*lora, "--training.output_dir", "runs/mine")
    assert trained.error is None
    assert "deprecated" not in trained.said
    page = (REPOSITORY / "docs" / "how-to" / "lora.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("zerokit checkpoint merge"))
    start = "from zerokit.cli.main import command_line\n"
    here.run(f"{start}command_line()({line.split()[1:]}, standalone_mode=False)")
    here.run(
        "from pathlib import Path\n"
        "from zerokit.checkpoint.pretrained import read_tokenizer\n"
        "from zerokit.checkpoint.source import check_checkpoint\n"
        "check_checkpoint(Path('runs/merged'), where='w')\n"
        "assert read_tokenizer('runs/merged', where='w').chat_template\n"
    )


@contextmanager
def small_chunks() -> Iterator[None]:
    from zerokit.memory import loss_chunks

    usual, loss_chunks.CHUNK_LOGITS = loss_chunks.CHUNK_LOGITS, 8 * 320
    try:
        yield
    finally:
        loss_chunks.CHUNK_LOGITS = usual


def assert_same_in_chunks(here: OneRank, *recipe: str) -> None:
    """The run reports the same losses with the loss in chunks and of all logits at once."""
    said = here.train(*recipe, force=True, fault=small_chunks).said
    assert "the loss is computed 8 tokens at a time" in said
    chunked = here.json("run.json")
    whole = here.train(*recipe, "--task.chunked_loss", "false", force=True, fault=small_chunks)
    assert "at a time" not in whole.said
    expected = here.json("run.json")
    assert expected["loss_after"] < expected["loss_before"]
    for name in ("loss_before", "loss_after", "train_loss"):
        assert chunked[name] == pytest.approx(expected[name], rel=1e-5)


IN_CHUNKS = (
    *("--training.max_steps", "3", "--training.learning_rate", "0.01"),
    *("--training.per_device_train_batch_size", "4", "--training.output_dir", "out"),
)


def test_a_loss_in_chunks_is_the_same_where_zero_divides_an_adapter_on_the_output_matrix(here: OneRank) -> None:
    zero = ("--deepspeed.zero_optimization.stage", "3")
    zero += ("--deepspeed.zero_optimization.stage3_param_persistence_threshold", "0")
    assert_same_in_chunks(here, *zero, *IN_CHUNKS, "--peft.target_modules", '["lm_head", "q_proj"]')


@pytest.mark.parametrize("stage", ["0", pytest.param("2", marks=REST), "3"])
def test_preferences_are_learned_in_chunks_as_from_all_logits(stage: str, here: OneRank) -> None:
    rows = [{"prompt": f"{n}: ", "chosen": "yes" * (n % 5), "rejected": "no"} for n in range(40)]
    (here.folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = ("--task.type", "dpo", "--data.train", "pairs.jsonl")
    assert_same_in_chunks(here, "--deepspeed.zero_optimization.stage", stage, *task, *IN_CHUNKS)


def test_a_run_outlives_its_output_folder(here: OneRank) -> None:
    words = ("--training.max_steps", "3", "--training.logging_steps", "1")
    assert here.train(*words, fault=partial(after_the_first_step, partial(shutil.rmtree, "out"))).error is None
    assert (here.folder / "out" / "model.safetensors").is_file()
    assert here.json("run.json")["steps"] == 3


@contextmanager
def full_disk(*names: str) -> Iterator[None]:
    """No more than a few bytes can be written into files of these names, or below them."""
    import safetensors.torch
    import torch
    from safetensors import SafetensorError
    from transformers import modeling_utils

    save, save_file = torch.save, safetensors.torch.save_file

    def is_full(file: Any) -> bool:
        return any(name in str(file) for name in names)

    def torch_save(what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if is_full(file):
            Path(file).write_bytes(b"a part")
            raise RuntimeError("[enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file")
        save(what, file, *args, **kwargs)

    def save_safely(what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if is_full(file):
            Path(file).write_bytes(b"a part")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save_file(what, file, *args, **kwargs)

    with patch.object(torch, "save", torch_save), patch.object(modeling_utils, "safe_save_file", save_safely):
        yield


SAVING = ("--training.save_strategy", "steps", *steps(4), "--training.save_total_limit", "1")

BEST = ("--training.load_best_model_at_end", "true", "--training.eval_steps", "1")


@pytest.mark.parametrize(
    "name", ["checkpoint-2/model", "checkpoint-2/global_step2/", pytest.param("checkpoint-2/rng", marks=REST)]
)
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(name: str, here: OneRank) -> None:
    words = (*SAVING, *BEST, "--training.max_steps", "3", "--training.learning_rate", "0.01")
    ended = here.train(*words, fault=partial(full_disk, name, "checkpoint-3"))
    assert ended.error is None
    assert "zerokit: out/checkpoint-2 cannot be saved: " in ended.said
    assert "The run goes on; checkpoint-1 stays\n" in ended.said
    assert [path.name for path in (here.folder / "out").glob("checkpoint-*")] == ["checkpoint-1"]
    assert (here.folder / "out" / "model.safetensors").is_file()
    (here.folder / "out" / "run.json").unlink()
    assert here.train(*words, *RESUME).error is None


def test_a_model_that_finds_no_room_leaves_the_earlier_one_and_a_checkpoint(here: OneRank) -> None:
    here.train(*steps(1))
    before = contents(here.folder / "out")
    ended = here.error_of(*steps(1), force=True, fault=partial(full_disk, "out/.saving"))
    assert ended.startswith("1 out: the trained model cannot be saved: No space left on device ")
    assert "out/checkpoint-1 is left: make room, and go on with --resume auto" in ended
    after = contents(here.folder / "out")
    assert all(after[name] == before[name] for name in ("model.safetensors", "run.json", "config.json"))


@contextmanager
def no_memory() -> Iterator[None]:
    import torch
    from transformers import Trainer

    text = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.64 GiB."
    with patch.object(Trainer, "training_step", side_effect=torch.OutOfMemoryError(text)):
        yield


def test_a_rank_without_memory_says_so_in_one_line(here: OneRank) -> None:
    ended = here.error_of(fault=no_memory)
    assert ended.startswith("1 rank 0: out of memory (Tried to allocate 2.50 GiB). Lower training.per_device_")
    assert not (here.folder / "out" / "run.lock").exists()


_TEXTS = [{"prompt": f"Is {i} odd?", "completion": "yes" if i % 2 else "no, it is not"} for i in range(11)]
_PAIRS = [{"prompt": f"Is {i} odd?", "chosen": f"It is {i}.", "rejected": "No"} for i in range(11)]
_PLAIN = [{"text": row["prompt"]} for row in _TEXTS]
_CLASSES = [{"text": f"number {i}", "label": "odd" if i % 2 else "even"} for i in range(11)]
_LORA = ("--peft.type", "lora", "--peft.target_modules", "all-linear")


@pytest.mark.parametrize(
    ("rows", "task", "words", "metrics"),
    [
        (_TEXTS, "causal_lm", (), {"token_accuracy", "perplexity"}),
        (_TEXTS, "causal_lm", (*_LORA, "--precision", "bf16"), {"token_accuracy", "perplexity"}),
        pytest.param(_PLAIN, "causal_lm", (), {"token_accuracy", "perplexity"}, marks=REST),
        pytest.param(_CLASSES, "sequence_classification", (), {"accuracy", "f1"}, marks=REST),
        (_CLASSES, "sequence_classification", _LORA, {"accuracy", "f1"}),
        (
            _PAIRS,
            "dpo",
            (*_LORA, "--training.weight_decay", "0"),
            {"reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected"},
        ),
    ],
    ids=["answers", "adapter in bf16", "texts", "classes", "adapter for classes", "pairs"],
)
def test_an_evaluation_has_the_figures_of_the_training(
    rows: list[dict[str, str]], task: str, words: tuple[str, ...], metrics: set[str], here: OneRank
) -> None:
    (here.folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here.folder / "held-out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
    given = ("--data.eval", "held-out.jsonl", "--task.type", task, "--training.learning_rate", "0.01")
    outcome = here.train(*given, *words, *steps(2))
    assert outcome.error is None
    report = here.json("run.json")
    for folder, measured in (("out", report), ("out/checkpoint-1", None)):
        here.run(
            "from tests.launched.one_rank import _group\n"
            "from zerokit.training.evaluation import evaluate\n"
            "with open('found.json', 'w') as results:\n"
            f"    options = {{'batch_size': 3, 'as_json': True, 'results': results}}\n"
            f"    evaluate(_group(), {folder!r}, 'held-out.jsonl', None, (), **options)\n"
        )
        found = json.loads((here.folder / "found.json").read_text())
        assert found.keys() - {"model", "data", "task", "num_examples"} == metrics | {"loss"}
        assert (found["task"], found["num_examples"]) == (task, 11)
        if measured is not None:
            assert found["loss"] == pytest.approx(measured["loss_after"], rel=2e-3 if "bf16" in words else 1e-5)
            for name, value in measured["metrics_after"].items():
                assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert found["loss"] != pytest.approx(report["loss_after"], rel=1e-6), "an earlier checkpoint"
