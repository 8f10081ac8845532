import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from zerokit.errors import ModelError
from zerokit.generation.model import ModelFiles, find_model, read_model
from zerokit.generation.options import Options


def options(folder: Path | str) -> Options:
    return Options(model=str(folder), texts=("x",))


def set_config(folder: Path, **keys: object) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **keys}), encoding="utf-8")


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def test_a_good_folder(model: ModelFiles) -> None:
    assert (model.vocab_size, model.max_positions) == (320, 256)
    assert model.defaults.eos_token_id == 0


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        find_model(options(tmp_path / "none"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json:1"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (pickled, "only pickled weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x10"), "damaged or cut short"),
        (without_tokenizer, "has no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "no tokenizer can be loaded"),
        (lambda folder: (folder / "generation_config.json").write_text("{"), "generation_config.json"),
        (lambda folder: set_config(folder, model_type="unheard-of"), "`unheard-of`"),
        (lambda folder: set_config(folder, intermediate_size=96), "but config.json gives"),
        (lambda folder: set_config(folder, model_type="t5"), "not a causal language model"),
    ],
)
def test_what_is_wrong_is_named(
    model_folder: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    spoil(folder)
    with pytest.raises(ModelError) as caught:
        read_model(folder, options(folder))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
