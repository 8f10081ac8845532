"""Streamed data on real ranks: the losses of loaded ones, uneven ends, resuming, faults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.combinations import REST
from tests.launched.test_train import run, write_recipe
from tests.tiny import launch, tiny_llama, tiny_tokenizer
from tests.training.task_table import TRIALS, write

ZERO_2 = {"zero_optimization": {"stage": 2}}
IN_ORDER = {"train_sampling_strategy": "sequential"}


def lines(numbers: range) -> list[str]:
    """Prompts and answers of many lengths; every seventh has no answer within 64 tokens."""
    return [
        json.dumps(
            {
                "prompt": "What is it? " * (40 if number % 7 == 5 else number % 4 + 1),
                "completion": f"The number {number} of a sequence.",
            }
        )
        for number in numbers
    ]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its tokenizer, and 22 examples to train on, of which 19 are of use."""
    folder = tmp_path_factory.mktemp("start")
    for name, dropout in (("model", 0.0), ("dropout", 0.1)):
        tiny_tokenizer(folder / name)
        tiny_llama(folder / name, initializer_range=0.05, attention_dropout=dropout)
    for name, numbers in (("train", range(22)), ("eval", range(50, 55))):
        (folder / f"{name}.jsonl").write_text("\n".join(lines(numbers)) + "\n")
    return folder


def recipe_of(start: Path, folder: Path, data: dict[str, Any], **training: Any) -> Path:
    folder.mkdir(exist_ok=True)
    files = {"train": str(start / "train.jsonl"), "eval": str(start / "eval.jsonl")}
    given = {"max_steps": 7, "gradient_accumulation_steps": 2, **training}
    return write_recipe(start, folder, ds_config=ZERO_2, data={**files, **data}, training=given)


def test_streamed_data_train_as_loaded_ones_in_every_epoch(start: Path, tmp_path: Path) -> None:
    """19 sequences, 8 a step: the last step of each epoch has 3. Read ahead by a process of its own, too."""
    loaded = run(recipe_of(start, tmp_path / "loaded", {}, **IN_ORDER), launcher="none")
    recipe = recipe_of(start, tmp_path / "streamed", {"streaming": True, "buffer_size": 6}, **IN_ORDER)
    streamed = run(recipe, "--training.dataloader_num_workers", "1", launcher="none")
    assert streamed["losses"] == pytest.approx(loaded["losses"], abs=1e-5)
    assert streamed["loss_after"] == pytest.approx(loaded["loss_after"], abs=1e-5)
    # A blank is a token: of the last steps of two epochs, streamed ones have four more.
    assert streamed["tokens"] == loaded["tokens"] + 2 * 4
    assert streamed["num_train_examples"] is None
    entries = (tmp_path / "streamed" / "out" / "metrics.jsonl").read_text().splitlines()
    epochs = [entry["epoch"] for entry in map(json.loads, entries) if "loss" in entry]
    assert epochs == [0, 0, 1, 1, 1, 2, 2]


def test_a_resumed_stream_goes_on_where_it_was_on_any_number_of_ranks(start: Path, tmp_path: Path) -> None:
    """In the second epoch, in the midst of a buffer, with shuffling and dropout."""
    data = {"streaming": True, "buffer_size": 6}
    recipe = recipe_of(start, tmp_path, data, save_strategy="steps", save_steps=4)
    dropout = ("--model", str(start / "dropout"))
    whole = run(recipe, *dropout, launcher="none")
    out = tmp_path / "out"
    shutil.rmtree(out / "checkpoint-7")
    place = json.loads((out / "checkpoint-4" / "zerokit_stream.json").read_text())
    assert (place["epoch"], place["taken"] > 0) == (1, True)
    shutil.copytree(out / "checkpoint-4", tmp_path / "kept")
    resumed = run(recipe, *dropout, "--training.resume_from_checkpoint", "true", launcher="none")
    assert resumed["losses"][-3:] == whole["losses"][-3:]
    assert resumed["loss_after"] == whole["loss_after"]
    loaded = recipe_of(start, tmp_path / "loaded", {})
    replaced = tmp_path / "replaced.jsonl"  # by as many bytes, after the first buffer
    replaced.write_text((start / "train.jsonl").read_text().replace("number 20", "number 21"))
    others = {  # which are refused
        "data.buffer_size is 7, was 6": [recipe, "--data.buffer_size", "7"],
        "data.streaming is not set, was true": [loaded],
        "the content of the streamed files has changed": [recipe, "--data.train", replaced],
    }
    for message, words in others.items():
        kept = ("--force", "--training.resume_from_checkpoint", tmp_path / "kept")
        failed = launch(["launch/train.py", "--recipe", *words, *kept, *dropout], ranks=2, launcher="none")
        assert failed.returncode == 2
        assert message in failed.stderr
    accumulated = ("--training.gradient_accumulation_steps", "4", "--force")
    at = ("--training.resume_from_checkpoint", str(tmp_path / "kept"))
    one = run(recipe, *dropout, *at, *accumulated, ranks=1, launcher="none")
    assert one["tokens"] == whole["tokens"]


def test_a_broken_example_ends_all_ranks_with_one_line(start: Path, tmp_path: Path) -> None:
    """In the third buffer, after some steps."""
    file = tmp_path / "broken.jsonl"
    good = lines(range(30))
    for number, (bad, message) in enumerate(
        [
            (json.dumps({"prompt": "Why?", "completion": None}), "'completion' is absent or null"),
            ('{"prompt": "Why?", ', "broken.jsonl:18"),
        ]
    ):
        file.write_text("\n".join([*good[:17], bad, *good[17:]]) + "\n")
        data = {"train": str(file), "streaming": True, "buffer_size": 6}
        recipe = recipe_of(start, tmp_path / str(number), data, gradient_accumulation_steps=1)
        failed = launch(["launch/train.py", "--recipe", recipe], ranks=2, launcher="none")
        assert failed.returncode == 2
        assert failed.stderr.count("broken.jsonl:18") == 1, failed.stderr[-3000:]
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr
        assert (recipe.parent / "out" / "metrics.jsonl").exists() == (number == 0)


@pytest.mark.parametrize(
    ("task", "section"),
    [
        pytest.param("masked_lm", {"whole_words": True, "packing": True}, marks=REST),
        ("seq2seq", {"target_len": 16, "predict_with_generate": False}),
    ],
)
def test_encoders_learn_from_a_stream(task: str, section: dict[str, Any], tmp_path: Path) -> None:
    """Under ZeRO-3, where a rank that has a batch less would leave the others waiting."""
    write(TRIALS[task], task, tmp_path)
    recipe = write_recipe(
        tmp_path,
        tmp_path,
        ds_config={"zero_optimization": {"stage": 3}},
        data={"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl"), "streaming": True}
        | {"buffer_size": 50, "max_examples": 150},
        task={"type": task, "seq_len": 64, **section},
        training={"max_steps": 12, "learning_rate": TRIALS[task].learning_rate, "data_seed": 1},
    )
    report = run(recipe, launcher="none")
    assert report["loss_after"] < 0.9 * report["loss_before"]
