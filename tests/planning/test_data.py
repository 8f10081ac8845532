"""The workload of a plan: what is counted in files and recipes, and what is made of numbers."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import ZerokitError
from zerokit.models import load_model_shape
from zerokit.planning.data import workload_of
from zerokit.recipe import load_recipe
from zerokit.recipe.model import Columns, DataSection, TaskSection
from zerokit.training.formats import detect_format
from zerokit.training.packing import best_fit
from zerokit.training.tasks import task_of

MODEL = load_model_shape("qwen2.5-7b")
CHAT = [{"role": "user", "content": "How many ranks?"}, {"role": "assistant", "content": "Eight of them."}]
SHAREGPT = [{"from": "human", "value": "How many?"}, {"from": "gpt", "value": "Eight."}]
FORMATS: dict[str, dict[str, Any]] = {
    "text": {"text": "a text of some words, é and 漢字 " * 9},
    "completion": {"prompt": "count 1", "completion": " 2 and 3"},
    "chat": {"messages": CHAT},
    "two answers": {"messages": [*CHAT, *CHAT]},
    "sharegpt": {"conversations": SHAREGPT},
    "alpaca": {"instruction": "Count.", "input": "to 3", "output": "1 2 3"},
}


def _write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(file)


@pytest.mark.torch
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seq_len", [56, 256])
def test_tokens_are_those_that_training_has(name: str, seq_len: int, tmp_path: Path) -> None:
    from tests.tiny import tiny_tokenizer

    task, row = task_of(TaskSection(seq_len=seq_len)), FORMATS[name]
    format_ = detect_format(list(row), DataSection(train="x"), task.formats, where="x")
    encoder = task.encoder(tiny_tokenizer(tmp_path / "model"), format_, Columns())
    encoder.apart = True
    lengths = [len(one.features["input_ids"]) for one in encoder.sequences(row)] * 3
    if name == "text":
        lengths = [sum(lengths[place] for place in packed) for packed in best_fit(lengths, seq_len)]
    data = _write(tmp_path / "data.jsonl", [row] * 3)
    found = workload_of(MODEL, model_name=str(tmp_path / "model"), data=[data], seq_len=seq_len)
    assert found.lengths == Counter(lengths)
    assert (found.num_sequences, found.packing) == (len(lengths), name == "text")
    assert "with the model's tokenizer" in found.notes[0]


@pytest.mark.parametrize("name", FORMATS)
def test_without_a_tokenizer_bytes_are_counted(name: str, tmp_path: Path) -> None:
    data = _write(tmp_path / "data.jsonl", [FORMATS[name]] * 3)
    found = workload_of(MODEL, data=[data], seq_len=4096)
    num_bytes = sum(len(text.encode()) for text in _texts(FORMATS[name]))
    assert found.lengths is not None
    total = sum(length * count for length, count in found.lengths.items()) / 3
    assert num_bytes / 4 <= total <= num_bytes / 4 + 20 * len(_texts(FORMATS[name]))
    assert "3 examples of" in found.notes[0]
    assert "one token per 4 bytes, since the tokenizer's files are not here" in found.notes[0]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for part in (value.values() if isinstance(value, dict) else value) for text in _texts(part)]


def test_a_sample_is_counted_of_many_always_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerokit.planning.data._MOST_EXAMPLES", 50)
    rows = [{"prompt": "p" * (number % 40 + 1), "completion": "c"} for number in range(1000)]
    data = _write(tmp_path / "data.jsonl", rows)
    first, second = (workload_of(MODEL, data=[data]) for _ in range(2))
    assert first == second
    assert first.num_sequences == 1000
    assert sum((first.lengths or {}).values()) == 50
    assert "50 of 1,000 examples" in first.notes[1]


def test_a_recipe_says_what_and_how_long(tmp_path: Path) -> None:
    data = _write(tmp_path / "data.jsonl", [FORMATS["completion"]] * 100)
    keys: dict[str, Any] = {"model": "Qwen/Qwen2.5-7B", "data": {"train": data}, "task": {"seq_len": 512}}
    keys["training"] = {
        **{"output_dir": "runs", "max_steps": 30},
        **{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(keys), encoding="utf-8")
    found = workload_of(MODEL, recipe=load_recipe(file))
    # A twentieth is held out.
    assert (found.num_sequences, found.seq_len, found.global_batch_size) == (95, 512, 64)
    assert found.steps == 30
    assert "A step has 64 sequences: the recipe's on 8 GPUs" in found.notes[-1]
    other = workload_of(MODEL, recipe=load_recipe(file), seq_len=64, global_batch_size=10, epochs=2)
    assert (other.seq_len, other.steps) == (64, 19)
    assert found.padding_free
    keys["task"] = {"padding_free": False}
    file.write_text(json.dumps(keys), encoding="utf-8")
    padded = workload_of(MODEL, recipe=load_recipe(file))
    assert not padded.padding_free
    assert any(note.startswith("Examples are padded") for note in padded.notes)
    keys["task"] = {"seq_len": 400_000}
    file.write_text(json.dumps(keys), encoding="utf-8")
    with pytest.raises(ZerokitError, match=r"recipe.yaml:1.*400,000 tokens are more than the 131,072 positions"):
        workload_of(MODEL, recipe=load_recipe(file))


def test_tokens_alone_are_packed() -> None:
    found = workload_of(MODEL, tokens=10**9, seq_len=4096)
    assert (found.num_sequences, found.packing, found.lengths) == (math.ceil(1e9 / 4096), True, None)
    assert "1B tokens are assumed to be packed into sequences of 4,096" in found.notes[0]


@given(st.floats(8, 2000), st.floats(1.0, 3.8))
def test_lengths_have_the_mean_and_the_percentile_that_are_given(mean: float, ratio: float) -> None:
    found = workload_of(MODEL, num_examples=10, mean_tokens=mean, p95_tokens=mean * ratio, seq_len=32768)
    lengths = sorted(Counter(found.lengths).elements())
    assert len(lengths) == 64
    assert sum(lengths) / 64 == pytest.approx(mean, rel=0.01, abs=0.5)
    # The 61st of 64 parts is that around the 95th percentile.
    assert lengths[59] - 1 <= mean * ratio <= lengths[61] + 1
    assert min(lengths) >= 1


def test_the_mean_alone_has_a_usual_spread() -> None:
    found = workload_of(MODEL, num_examples=10, mean_tokens=100)
    p95 = 100 * math.exp(NormalDist().inv_cdf(0.95) * 0.8 - 0.32)
    assert f"mean 100, 95% up to {p95:.0f}; --p95-tokens changes it" in found.notes[1]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "--data: there are no data to plan for"),
        ({"tokens": 0}, "--tokens: 0 is not positive"),
        ({"num_examples": -1, "mean_tokens": 5}, "--examples: -1 is not positive"),
        ({"tokens": 5, "epochs": 0}, "--epochs: 0 is not positive"),
        ({"tokens": 5, "epochs": math.nan}, "--epochs: must be less than 1e+15"),
        ({"tokens": 5, "global_batch_size": 10**400}, "--global-batch-size: must be less than 1e+15"),
        ({"num_examples": 5, "mean_tokens": math.inf}, "--mean-tokens: must be less than 1e+15"),
        ({"num_examples": 5}, "--examples: their mean length is missing. Add --mean-tokens M"),
        ({"num_examples": 5, "mean_tokens": 9, "p95_tokens": 8}, "--p95-tokens: 8 is no 95th percentile"),
        ({"num_examples": 5, "mean_tokens": 9, "p95_tokens": 99}, "of lengths with the mean 9. Give 9 to 35"),
        ({"tokens": 5, "seq_len": 999_999}, "--seq-len: 999,999 tokens are more than the 131,072 positions"),
        ({"data": ["none.jsonl"]}, "--data: no such file: 'none.jsonl'"),
        ({"data": ["owner/name"]}, "--data: 'owner/name' is no file on this machine. Download it"),
        ({"data": ["{}/empty.jsonl"]}, "empty.jsonl: the file is empty"),
        ({"data": ["{}/other.jsonl"]}, "--data: cannot tell what an example is from the columns a"),
        ({"data": ["{}/broken.jsonl"]}, "broken.jsonl:1"),
    ],
)
def test_bad_input_is_one_line(options: dict[str, Any], line: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text("{", encoding="utf-8")
    _write(tmp_path / "other.jsonl", [{"a": 1}])
    if "data" in options:
        options = {"data": [name.format(tmp_path) for name in options["data"]]}
    with pytest.raises(ZerokitError) as caught:
        workload_of(MODEL, **options)
    assert line in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_tokenizer_or_a_template_that_is_broken_is_no_error(tmp_path: Path) -> None:
    data = _write(tmp_path / "data.jsonl", [FORMATS["chat"]] * 3)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text("{% for", encoding="utf-8")
    found = workload_of(MODEL, model_name=str(tmp_path), data=[data])
    assert "cannot be used" in found.notes[1]
