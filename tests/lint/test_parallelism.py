"""Sequence and tensor parallelism of a recipe, beside the ds_config."""

from contextlib import nullcontext
from typing import Any

import pytest

from tests.lint.asking import found
from zerokit.documents import Document
from zerokit.errors import ConfigError
from zerokit.hardware.cluster import Parallelism
from zerokit.lint.examples import llama_8b, recipe
from zerokit.lint.refusals import with_refusals
from zerokit.models import load_model_shape
from zerokit.releases.versions import parse_version
from zerokit.resolving.contradictions import resolve_for_trainer
from zerokit.resolving.run import Run
from zerokit.resolving.trace import resolve

STAGE_3 = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (3, "sequence parallelism over 3 GPUs does not divide 32 attention heads, 8 of keys and values"),
        (16, None),
        (4, None),
        (64, "sequence parallelism over 64 GPUs does not divide 32 attention heads, 8 of keys and values"),
    ],
)
def test_heads_are_divided_as_deepspeed_divides_them(size: int, message: str | None) -> None:
    facts = {"recipe": recipe(parallel={"sequence": size}), "model": llama_8b(), "num_gpus": 192}
    assert [hit.message for hit in found("parallel-sizes", STAGE_3, **facts)] == ([message] if message else [])


@pytest.mark.parametrize(
    ("size", "more", "message"),
    [
        (3, {}, "8 GPUs do not divide into groups of 3 of tensor parallelism"),
        (8, {}, "tensor parallelism over 8 GPUs does not divide 28 attention heads, 4 of keys and values"),
        (2, {"peft": {"r": 8}}, "tensor parallelism does not go with peft"),
        (4, {}, None),
    ],
)
def test_tensor_parallelism_of_a_recipe_fits_or_is_found(size: int, more: dict[str, Any], message: str | None) -> None:
    facts = {"recipe": recipe(parallel={"tensor": size}, **more), "model": load_model_shape("Qwen/Qwen2.5-7B")}
    hits = found("parallel-sizes", STAGE_3, num_gpus=8, **facts)
    assert [hit.message.partition(":")[0] for hit in hits] == ([message] if message else [])


def test_groups_that_do_not_divide_the_gpus_are_refused_once() -> None:
    document = Document({**STAGE_3, "train_micro_batch_size_per_gpu": "auto"}, "ds.json")
    run = Run.of(target="trainer", recipe=recipe(parallel={"sequence": 3}), num_gpus=8)
    refused = with_refusals(resolve(document, run), document, run).refused
    assert [one.message for one in refused] == ["8 GPUs do not divide into groups of 3 of sequence parallelism"]


def test_groups_that_do_not_divide_the_gpus_have_no_batch_size() -> None:
    document = Document({**STAGE_3, "train_micro_batch_size_per_gpu": "auto"}, "ds.json")
    resolution = resolve(document, Run.of(target="trainer", recipe=recipe(parallel={"sequence": 4}), num_gpus=2))
    assert resolution.refused == ()
    assert [value for value in resolution.values if value.path == ("train_batch_size",)] == []


@pytest.mark.parametrize(
    ("parallel", "train", "right"),
    [({"sequence": 4}, 2, True), ({"sequence": 4}, 8, False), ({"tensor": 4}, 2, True), ({"tensor": 4}, 8, False)],
)
def test_a_group_of_a_recipe_counts_once(parallel: dict[str, int], train: int, right: bool) -> None:
    config: dict[str, Any] = {**STAGE_3, "gradient_accumulation_steps": 1, "train_batch_size": train}
    assert (found("batch-size", config, recipe=recipe(parallel=parallel), num_gpus=8) == []) is right
    with nullcontext() if right else pytest.raises(ConfigError, match="2 groups of 4 ranks is 2"):
        resolve_for_trainer(config, {}, default_precision="bf16", world_size=8, parallelism=Parallelism(**parallel))


def test_gradients_need_reduce_scatter() -> None:
    zero = {"zero_optimization": {"stage": 3, "reduce_scatter": False}}
    (hit,) = found("sequence-parallel-stage", {**STAGE_3, **zero}, recipe=recipe(parallel={"sequence": 2}))
    assert hit.path == ("zero_optimization", "reduce_scatter")


@pytest.mark.parametrize(("train", "right"), [(8, True), (4, False)])
def test_deepspeed_counts_each_tensor_parallel_rank_of_a_ds_config(train: int, right: bool) -> None:
    config = {**STAGE_3, "gradient_accumulation_steps": 1, "train_batch_size": train}
    config["tensor_parallel"] = {"autotp_size": 2}
    assert (found("batch-size", config, target="trainer", num_gpus=8) == []) is right


@pytest.mark.parametrize(("version", "is_found"), [(None, True), ("0.19.8", True), ("0.19.7", False)])
def test_expert_parallelism_is_reported_of_the_release_that_was_tried(version: str | None, is_found: bool) -> None:
    config = {**STAGE_3, "expert_parallel": {"enabled": True, "autoep_size": 2}}
    facts = {"deepspeed_version": parse_version(version)} if version else {}
    assert bool(found("expert-parallel-transformers", config, target="trainer", **facts)) is is_found


def test_a_key_that_is_not_understood_may_be_meant_for_one_that_is_absent() -> None:
    config = {**STAGE_3, "expert_parallel": {"enabled": True, "autoep_size": 2, "note": "x"}}
    assert found("expert-parallel-combination", config) == []


@pytest.mark.torch
def test_expert_and_pipeline_parallelism_still_fail_upstream() -> None:
    """Where this fails, `parallel.expert` or `parallel.pipeline` of a recipe can be built; see
    `zerokit/recipe/mistakes.py` and the rule "expert-parallel-transformers"."""
    presets = pytest.importorskip("deepspeed.module_inject.auto_ep_presets.base")
    pipe = pytest.importorskip("deepspeed.runtime.pipe.engine")
    from torch import nn
    from transformers.utils import output_capturing

    with pytest.raises(TypeError, match="takes 2 positional arguments"):
        presets._install_instance_transformers_output_recorders(nn.Linear(1, 1), {"a": {}}, output_capturing, id)
    with pytest.raises(pipe.PipelineError, match="Only train_batch"):  # the Trainer calls the engine
        pipe.PipelineEngine.forward(None)
