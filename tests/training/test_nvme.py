"""Buffers for parameters on NVMe, sized to the model of a run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from zerokit.errors import ConfigError
from zerokit.recipe.load import load_recipe
from zerokit.resolving.settle import Resolved
from zerokit.training.nvme import size_buffers

NVME = {"device": "nvme", "nvme_path": "/nvme"}
LLAMA_1B = LlamaConfig(
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=True,
)


def sized(section: dict[str, Any], folder: Path, ranks: int = 1, **training: Any) -> tuple[Any, str | None]:
    recipe = folder / "recipe.yaml"
    recipe.write_text("model: a/b\ndata: {train: a.jsonl}\ntraining: {output_dir: out}\n")
    config = {"zero_optimization": {"stage": 3, "offload_param": section}}
    resolved = Resolved(config, {"bf16": True, **training})
    resolved, line = size_buffers(resolved, load_recipe(recipe, ()), LLAMA_1B, ranks)
    return resolved.ds_config["zero_optimization"]["offload_param"], line


def test_what_the_ds_config_leaves_open_goes_by_the_model(tmp_path: Path) -> None:
    section, line = sized(NVME, tmp_path, ranks=2)
    assert section == {**NVME, "buffer_count": 12, "buffer_size": 128_256 * 2048 // 2}
    assert line is not None
    assert "12 buffers of 131,334,144 elements (2.94 GiB of each rank's host memory)" in line
    section, line = sized({**NVME, "buffer_count": 14}, tmp_path)
    assert section["buffer_count"] == 14
    assert "buffer_size in zero_optimization" in str(line)


def test_what_it_says_stays(tmp_path: Path) -> None:
    said = {**NVME, "buffer_count": 5, "buffer_size": 300_000_000}
    assert sized(said, tmp_path) == (said, None)
    # With recomputed activations a layer of which all is on NVMe takes seven; most of this model stays.
    assert sized(said, tmp_path, gradient_checkpointing=True) == (said, None)
    for other in ({"device": "cpu"}, {**NVME, "device": "none"}):
        assert sized(other, tmp_path) == (other, None)


def test_too_few_or_too_small_ones_are_refused(tmp_path: Path) -> None:
    refused = functools.partial(sized, folder=tmp_path, gradient_checkpointing=True)
    with pytest.raises(ConfigError, match="5 does not do: a layer has 7 large parameters"):
        refused({**NVME, "buffer_count": 5, "max_in_cpu": 0})
    with pytest.raises(ConfigError, match=r"100,000,000 does not do: a rank's share of .* 262,668,288"):
        refused({**NVME, "buffer_size": 100_000_000})
