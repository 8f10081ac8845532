"""A tokenizer and a model, made once, and data sets in a cache of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import datasets
import pytest

from tests.tiny import tiny_llama, tiny_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")
    datasets.disable_progress_bars()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """The tiny tokenizer. Not to be changed."""
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A tiny Llama. Not to be changed."""
    return tiny_llama(tmp_path_factory.mktemp("model"))
