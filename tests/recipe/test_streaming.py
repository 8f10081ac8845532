"""What a recipe may not ask for beside streamed data: one line each, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.errors import RecipeError
from zerokit.recipe.load import load_recipe

STREAMED = "model: org/name\ndata:\n  train: a.jsonl\n  streaming: true\n"
STEPS = "training:\n  max_steps: 5\n"


def load(text: str, folder: Path) -> None:
    file = folder / "recipe.yaml"
    file.write_text(text)
    load_recipe(file)


@pytest.mark.parametrize(
    "text",
    [
        STREAMED + STEPS,
        STREAMED + "  buffer_size: 3\n  eval: b.jsonl\n  max_examples: 7\n" + STEPS,
        STREAMED + "  eval_fraction: 0\n" + STEPS + "  train_sampling_strategy: sequential\n",
        STREAMED + "task: {type: masked_lm}\n" + STEPS + "  save_strategy: false\n",
        STREAMED + "task: {type: seq2seq}\n" + STEPS + "  dataloader_num_workers: 1\n",
    ],
)
def test_what_can_be_streamed(text: str, tmp_path: Path) -> None:
    load(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (STREAMED + STEPS + text, f":7 (training.{text.strip().partition(':')[0]})", message)
        for text, message in (
            ("  num_train_epochs: 2\n", "Set max_steps"),
            ("  save_strategy: epoch\n", "Set it to steps"),
            ("  eval_strategy: epoch\n", "Set it to steps"),
            ("  train_sampling_strategy: group_by_length\n", "within data.buffer_size examples"),
            ("  average_tokens_across_devices: false\n", "filled up with blanks"),
            ("  dataloader_drop_last: true\n", "no example of streamed data is dropped"),
            ("  dataloader_num_workers: 2\n", "one process a rank"),
            ("  ignore_data_skip: true\n", "Remove it"),
        )
    ]
    + [
        (STREAMED + f"task: {{type: {type_}}}\n" + STEPS, ":4 (data.streaming)", message)
        for type_, message in (
            ("dpo", "dpo computes reference log-probabilities of all examples first. Remove it: only causal_lm"),
            ("sequence_classification", "reads the classes of all examples first"),
        )
    ]
    + [
        (STREAMED, ":4 (data.streaming)", "streamed data need training.max_steps"),
        (STREAMED + "training:\n  max_steps: -1\n", ":6 (training.max_steps)", "need training.max_steps"),
        (STREAMED + "  eval_fraction: 0.1\n" + STEPS, ":5 (data.eval_fraction)", "no share of streamed data can"),
        (
            STREAMED + "task:\n  type: masked_lm\n" + STEPS + "  dataloader_num_workers: 1\n",
            ":9 (training.dataloader_num_workers)",
            "drawn by the rank itself",
        ),
        (
            "model:\n  from_config: {model_type: llama}\n  tokenizer:\n    train_bpe: {vocab_size: 300}\n"
            "data: {train: a.jsonl, streaming: true}\n" + STEPS,
            ":4 (model.tokenizer.train_bpe)",
            "Name a tokenizer",
        ),
        ("model: a/b\ndata:\n  train: a\n  buffer_size: 5\n", ":2 (data)", "says nothing without"),
        (STREAMED + "  buffer_size: 0\n" + STEPS, ":5 (data.buffer_size)", "is 0. Make it at least 1"),
    ],
)
def test_what_cannot_work_with_streamed_data_is_refused(text: str, where: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load(text, tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.where == f"{tmp_path / 'recipe.yaml'}{where}"
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
