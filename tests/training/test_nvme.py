"""Buffers for parameters on NVMe, sized to the model of a run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PretrainedConfig, T5Config

from zerokit.errors import ConfigError
from zerokit.recipe.load import load_recipe
from zerokit.resolving.contradictions import Resolved
from zerokit.training.arguments import size_nvme_buffers

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


def sized(
    section: dict[str, Any],
    folder: Path,
    ranks: int = 1,
    config: PretrainedConfig = LLAMA_1B,
    aio: dict[str, Any] | None = None,
    **training: Any,
) -> tuple[Any, str | None]:
    recipe = folder / "recipe.yaml"
    recipe.write_text("model: a/b\ndata: {train: a.jsonl}\ntraining: {output_dir: out}\n")
    ds_config = {"zero_optimization": {"stage": 3, "offload_param": section}, "aio": aio or {}}
    resolved = Resolved(ds_config, {"bf16": True, **training})
    resolved, line = size_nvme_buffers(resolved, load_recipe(recipe, ()), config, ranks)
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


def test_an_encoder_decoder_and_large_blocks_take_what_they_need(tmp_path: Path) -> None:
    shape = {"vocab_size": 32_128, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16}
    t5 = T5Config(**shape)
    run = functools.partial(sized, folder=tmp_path, gradient_checkpointing=True, config=t5)
    own = {**NVME, "buffer_count": 12, "max_in_cpu": 0}
    assert run(own)[0]["buffer_count"] == 12
    with pytest.raises(ConfigError, match="9 does not do: a layer has 10 large parameters"):
        run({**own, "buffer_count": 9})
    # Blocks so large that nothing leaves the memory.
    assert run({**own, "buffer_count": 1, "buffer_size": 1}, aio={"block_size": 2**28})[1] is None
