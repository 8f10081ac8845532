"""A tiny model, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_llama, tiny_tokenizer
from zerokit.generation.model import ModelFiles, read_model
from zerokit.generation.options import Options


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama and its tokenizer. Read only."""
    folder = tmp_path_factory.mktemp("model")
    tiny_tokenizer(folder)
    tiny_llama(folder)
    return folder


@pytest.fixture(scope="session")
def model(model_folder: Path) -> ModelFiles:
    """What is read from that folder."""
    return read_model(model_folder, Options(model=str(model_folder), texts=("x",)))
