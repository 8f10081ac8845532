"""Tokenizers made for a run, and those that cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny import tiny_tokenizer
from zerokit.errors import ModelError
from zerokit.recipe import load_recipe
from zerokit.training.prepare_data import load_run_tokenizer
from zerokit.training.tasks import task_of
from zerokit.training.tokenizer import load_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS = ["the cat sat on the mat, and the dog sat by it", "it 's a tree . the tree is tall"] * 8


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerBase:
    return train_tokenizer(TEXTS, 300)


@given(st.text())
def test_any_text_comes_back_exactly(trained: PreTrainedTokenizerBase, text: str) -> None:
    tokens = trained(text)["input_ids"]
    assert trained.decode(tokens) == text
    assert all(0 <= token < len(trained) for token in tokens)


@pytest.mark.parametrize("vocab_size", [260, 275, 290])
def test_the_vocabulary_is_as_large_as_was_asked(vocab_size: int) -> None:
    assert len(train_tokenizer(TEXTS, vocab_size)) == vocab_size
    # Of a small corpus it is smaller.
    assert len(train_tokenizer(["ab"], 1000)) == 256 + 2 + 1


def test_merges_shorten_what_it_was_trained_on(trained: PreTrainedTokenizerBase) -> None:
    assert len(trained(" the tree")["input_ids"]) < len(" the tree") / 2


def test_the_same_texts_give_the_same_tokenizer(trained: PreTrainedTokenizerBase) -> None:
    again = train_tokenizer(iter(TEXTS), 300)
    assert again.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()


def test_padding_differs_from_the_end_of_text(trained: PreTrainedTokenizerBase) -> None:
    assert trained.pad_token_id != trained.eos_token_id
    assert trained.bos_token_id == trained.eos_token_id
    assert trained("x")["input_ids"][0] != trained.bos_token_id


def test_a_saved_tokenizer_is_loaded_again(trained: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    trained.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path, where="w")
    assert loaded.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()
    assert loaded.pad_token_id == trained.pad_token_id


def test_without_a_padding_token_the_end_of_text_pads(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path, where="w").pad_token_id == tokenizer.eos_token_id


def test_without_an_end_of_text_token_it_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no end-of-text token"):
        load_tokenizer(tmp_path, where="w")


@pytest.mark.parametrize("content", [None, "{", "{}", '{"model": {"type": "BPF"}}'])
def test_a_folder_without_a_usable_tokenizer_is_a_model_error(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        load_tokenizer(tmp_path, where="model.tokenizer")
    assert caught.value.where == "model.tokenizer"
    assert str(tmp_path) in caught.value.message
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_the_model_s_own_name_is_of_its_revision(tmp_path: Path) -> None:
    """The folder is the snapshot of that revision; looking for the name would find another one, or none."""
    tiny_tokenizer(tmp_path)
    words = ["--model.path", "org/model", "--model.tokenizer", "org/model", "--model.revision", "v1"]
    loaded = load_recipe(None, [*words, "--data.train", "x"])
    group: Any = SimpleNamespace(node_main_first=lambda load: load())
    examples: Any = None
    task = task_of(loaded.recipe.task)
    context: Any = SimpleNamespace(group=group, loaded=loaded, folder=tmp_path, examples=examples, task=task)
    load_run_tokenizer(context)
    found = context.tokenizer
    assert found.name_or_path == str(tmp_path)
