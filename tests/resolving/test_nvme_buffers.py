"""Buffers for parameters on NVMe: as many and as large as a model takes."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit.documents import Document, dotted
from zerokit.hardware.cluster import Cluster
from zerokit.lint.examples import llama_8b, recipe
from zerokit.models import Tensor, load_model_shape
from zerokit.resolving.nvme_buffers import NvmeBuffers
from zerokit.resolving.run import Run
from zerokit.resolving.trace import Resolution, resolve_settled

NVME = {"device": "nvme", "nvme_path": "/nvme", "max_in_cpu": 0}
SECTION = "zero_optimization.offload_param"


def buffers(model: str, ranks: int = 1, **keys: Any) -> NvmeBuffers:
    return NvmeBuffers(load_model_shape(model, allow_network=False), ranks, **keys)


@pytest.mark.parametrize(
    ("model", "large", "why"),
    [
        ("meta-llama/Llama-3.1-8B", 7, "four of attention and three of the MLP"),
        ("google-t5/t5-large", 10, "of the decoder, not of both stacks"),
        ("facebook/bart-large", 10, "the same, in other words"),
        ("deepseek-ai/DeepSeek-V3", 11, "five of attention, six of the experts, which 58 of 61 layers have"),
        ("stabilityai/stablelm-2-12b", 7, "the norms of its heads are a list of their own, and small"),
    ],
)
def test_parameters_are_counted_in_the_layer_that_has_most(model: str, large: int, why: str) -> None:
    assert buffers(model).of_layer == large, why
    assert buffers(model).least_count(held=0) == large
    assert buffers(model).count == max(12, large + 5)


def test_what_a_layer_surely_has_is_no_more_than_one_of_them_has() -> None:
    def layers(of_half: int, of_others: int) -> NvmeBuffers:
        names = [("attention", 8), *((f"a.{i}", 4) for i in range(of_half))]
        names += [(f"b.{i}", 4) for i in range(of_others)]
        shape = load_model_shape("gpt2", allow_network=False)
        tensors = tuple(Tensor(f"h.*.{name}", (1024, 1024), "mlp", count) for name, count in names)
        return NvmeBuffers(shape.__class__(**{**vars(shape), "tensors": tensors}), 1)

    assert layers(3, 3).of_layer == 4
    assert layers(6, 3).of_layer == 6  # one layer has seven
    # Which layers have the six is not known: where nothing stays, one of them surely goes to NVMe.
    assert layers(6, 3).least_count(held=1) == 0
    assert layers(6, 3).least_count(held=0) == 6


def test_a_model_of_two_stacks_surely_swaps_the_last_layer_of_neither_unless_little_stays() -> None:
    model = buffers("google-t5/t5-large")
    decoder = sum(one.total_elements for one in model.model.tensors if one.name.startswith("decoder.block"))
    assert model.least_count(held=decoder * 23 // 24 - 100_000) == 10
    assert model.least_count(held=decoder) == 0


def test_what_goes_to_nvme_follows_from_block_and_type() -> None:
    assert NvmeBuffers(llama_8b(), 1).block_bytes == 2**20
    section = {"zero_optimization": {"stage": 3, "offload_param": NVME}, "aio": {"block_size": 2**26}}
    of_large_blocks = NvmeBuffers.under(section, llama_8b(), 8, 2)
    assert (of_large_blocks.block_bytes, of_large_blocks.of_layer) == (2**26, 0)
    # A key of 1024 x 4096 elements on 8 ranks is a file in 16 bits as in 32; on 16 only in 32.
    assert [NvmeBuffers(llama_8b(), 16, size).of_layer for size in (2, 4)] == [5, 7]


def resolved(section: dict[str, Any], training: dict[str, Any], **run: Any) -> Resolution:
    config = {"zero_optimization": {"stage": 3, "offload_param": section}}
    run = {"model": llama_8b(), "recipe": recipe(training=training), **run}
    described = Run(target="trainer", cluster=Cluster(8), given=training, **run)
    return resolve_settled(Document(config, "ds.json"), described)


def test_a_recipe_resolves_to_the_buffers_that_train_adds() -> None:
    resolution = resolved(NVME, {"gradient_checkpointing": True})
    assert resolution[f"{SECTION}.buffer_count"] == 12
    assert resolution[f"{SECTION}.buffer_size"] == 128_256 * 4096 // 8
    of = {dotted(value.path): (value.origin, value.detail) for value in resolution.values}
    for key in ("buffer_count", "buffer_size"):
        assert of[f"{SECTION}.{key}"] == ("added", "zerokit train, by the model")


def test_what_is_written_stays_and_without_a_recipe_or_nvme_nothing_is_added() -> None:
    own = resolved({**NVME, "buffer_count": 9}, {})
    assert own[f"{SECTION}.buffer_count"] == 9
    assert own[f"{SECTION}.buffer_size"] == 128_256 * 4096 // 8
    for resolution in (resolved(NVME, {}, recipe=None), resolved(NVME, {}, model=None)):
        assert resolution[f"{SECTION}.buffer_count"] == 5
    cpu = {dotted(value.path): value.origin for value in resolved({"device": "cpu"}, {}).values}
    assert cpu.get(f"{SECTION}.buffer_count", "default") == "default"
