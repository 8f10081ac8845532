"""`zerokit.generate` in one process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import zerokit
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
        ({"stop_strings": {"x"}}, "options", "not JSON serializable"),
        ({"batch_size": 0}, "batch_size", "smaller than 1"),
        ({"max_new_tokens": 0}, "--max_new_tokens", "from 1"),
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
