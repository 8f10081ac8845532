"""`zerokit.generate` in one process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import zerokit
from zerokit.checkpoint.pretrained import read_tokenizer
from zerokit.errors import ZerokitError
from zerokit.generation.decoding import Decoder

pytestmark = pytest.mark.torch
PROMPTS: list[Any] = ["The for statement", "", [{"role": "user", "content": "Hi"}]]


def test_a_model_in_training_and_its_folder_give_the_same(model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder).train()
    model.model.layers[0].eval()
    own, state = model.generation_config, torch.get_rng_state()
    options: dict[str, Any] = {"max_new_tokens": 6, "num_return_sequences": 2, "do_sample": True, "seed": 3}
    records = zerokit.generate(model, PROMPTS, **options)
    assert model.training
    assert not model.model.layers[0].training
    assert model.generation_config is own
    assert torch.equal(torch.get_rng_state(), state)
    assert [record.prompt for record in records] == PROMPTS
    assert [len(record.completions) for record in records] == [2, 0, 2]
    assert "is empty" in (records[1].error or "")
    assert records[0].text == records[0].completions[0].text != records[0].completions[1].text
    assert zerokit.generate(model_folder, PROMPTS, **options) == records
    assert zerokit.generate(model, []) == []


def test_an_error_of_the_loop_leaves_no_thread(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        zerokit.generate(model_folder, ["a"])
    for thread in threading.enumerate():
        if thread.name == "collector":
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("options", "where", "text"),
    [
        ({"temprature": 1.0}, "--temprature", "unknown option"),
        ({"mode": "tensor"}, "mode", "not possible here"),
        ({"do_sample": True, "temperature": -1.0}, "--temperature", "strictly positive"),
        ({"stop_strings": {"x"}}, "options", "a value of type set"),
        ({"batch_size": 0}, "batch_size", "smaller than 1"),
        ({"max_new_tokens": 0}, "--max_new_tokens", "from 1"),
        ({"batch_size": 10**20}, "--batch-size", f"is {10**20}"),
        ({"batch_size": "8"}, "batch_size", "expected a whole number, found '8'"),
        ({"seed": 1.5}, "seed", "expected a whole number, found 1.5"),
        ({"tokenizer": "m"}, "tokenizer", "a str is no tokenizer"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    model_folder: Path, options: dict[str, Any], where: str, text: str
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder)
    with pytest.raises(ZerokitError, match=text) as caught:
        zerokit.generate(model, ["a"], **options)
    assert caught.value.where == where
    with pytest.raises(ZerokitError, match="prompts: is one text"):
        zerokit.generate(model, "a")
    for prompts, kind in ((1, "int"), ({"prompt": ["a"]}, "dict"), (pandas.DataFrame({"prompt": ["a"]}), "DataFrame")):
        with pytest.raises(ZerokitError, match=f"prompts: is of type {kind}"):
            zerokit.generate(model, prompts)  # type: ignore[arg-type]
    with pytest.raises(ZerokitError, match="tokenizer: is for a model that is loaded"):
        zerokit.generate(model_folder, ["a"], tokenizer=read_tokenizer(model_folder, where="tokenizer"))


def test_prompts_and_options_of_all_characters(model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    given: list[GenerationConfig] = []
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    prepare = model._prepare_generation_config
    model._prepare_generation_config = lambda config: given.append(config) or prepare(config)
    odd: list[Any] = ["a", "\ud800", [{"role": "user", "content": "\ud800"}]]
    stops = ["\U0001f600", "\U000e0041", "\x7f\u2028", "\\ud83d", '"']
    for prompts in (odd, np.array([*odd, None], dtype=object)[:3], pandas.Series(odd)):
        records = zerokit.generate(model, prompts, stop_strings=stops, max_new_tokens=2)
        assert [record.prompt for record in records] == odd
        assert [record.error and record.error.partition(".")[0] for record in records] == [None, *["is not UTF-8"] * 2]
        assert given.pop().stop_strings == stops


def test_numbers_of_numpy_are_those_of_python(model_folder: Path) -> None:
    five = np.int64(5)
    expected = zerokit.generate(model_folder, ["a"], seed=5, max_new_tokens=5, do_sample=True)
    options: dict[str, Any] = {"seed": five, "batch_size": five, "max_new_tokens": five, "do_sample": np.True_}
    assert zerokit.generate(model_folder, ["a"], **options, stop_strings=None) == expected
