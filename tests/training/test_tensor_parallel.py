"""What a run that divides layers writes into its ds_config, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoConfig

from zerokit.errors import ConfigError, RecipeError, ZerokitError
from zerokit.hardware.cluster import Parallelism
from zerokit.recipe import load_recipe
from zerokit.resolving.contradictions import resolve_for_trainer
from zerokit.training.tensor_parallel import check_model, check_tensor_parallel

if TYPE_CHECKING:
    from pathlib import Path

    from zerokit.recipe import LoadedRecipe

pytestmark = pytest.mark.torch


def recipe(folder: Path, text: str) -> LoadedRecipe:
    (folder / "recipe.yaml").write_text(f"model: org/name\ndata: {{train: x.jsonl}}\n{text}\n")
    return load_recipe(folder / "recipe.yaml")


@pytest.mark.parametrize(
    ("text", "section", "expected"),
    [
        ("parallel: {tensor: 2}", None, {"autotp_size": 2, "vocab_parallel_lm_head": False}),
        ("parallel: {tensor: 2}", {"autotp_size": 2}, {"autotp_size": 2, "vocab_parallel_lm_head": False}),
        ("parallel: {sequence: 2}", {"autotp_size": 0}, {"autotp_size": 0}),
        ("", None, None),
        ("", {"autotp_size": 2}, "autotp_size is 2, but the run has groups of 1"),
        ("parallel: {tensor: 4}", {"autotp_size": 2}, "autotp_size is 2, but the run has groups of 4"),
        ("parallel: {tensor: 4}", {"autotp_size": 1}, "autotp_size is 1, but the run has groups of 4"),
        ("parallel: {tensor: 2}", {"vocab_parallel_lm_head": True}, "leaves each rank a part of the logits"),
        ("parallel: {tensor: 2}\npeft: {r: 8}", None, "does not go with peft"),
        ("parallel: {tensor: 2}\ntraining: {use_liger_kernel: true}", None, "does not go with use_liger_kernel"),
        ("parallel: {tensor: 2}\ntask: {type: dpo}", None, "does not go with task dpo"),
    ],
)
def test_the_section_is_written_or_refused(text: str, section: Any, expected: Any, tmp_path: Path) -> None:
    ds_config: dict[str, Any] = {} if section is None else {"tensor_parallel": section}
    loaded = recipe(tmp_path, text)
    parallelism = Parallelism(**loaded.recipe.parallel.model_dump())

    def resolved() -> Any:
        check_tensor_parallel(ds_config, loaded, lambda path: loaded.where("deepspeed", *path))
        found = resolve_for_trainer(ds_config, {}, default_precision="bf16", world_size=4, parallelism=parallelism)
        return found.ds_config.get("tensor_parallel")

    if isinstance(expected, str):
        with pytest.raises((ConfigError, RecipeError), match=expected) as error:
            resolved()
        assert error.value.hint
    else:
        assert resolved() == expected


@pytest.mark.parametrize(("key", "unset"), [("zero_hpz_partition_size", 1), ("zero_quantized_gradients", False)])
def test_groups_of_consecutive_ranks_are_refused(key: str, unset: Any, tmp_path: Path) -> None:
    loaded = recipe(tmp_path, "parallel: {tensor: 2}")

    def check(value: Any) -> None:
        check_tensor_parallel({"zero_optimization": {key: value}}, loaded, lambda path: ".".join(map(str, path)))

    check(unset)
    with pytest.raises(ConfigError, match=f"zero_optimization.{key}: .*different parts of a layer"):
        check(2)


@pytest.mark.parametrize(
    ("kind", "changes", "size", "problem"),
    [
        ("llama", {}, 2, None),
        ("qwen3", {}, 2, None),
        (
            "llama",
            {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
            2,
            "over 2 GPUs does not divide 9 attention heads",
        ),
        ("llama", {}, 8, "over 8 GPUs does not divide 8 attention heads, 4 of keys"),
        ("gpt2", {}, 2, "transformers has no plan for its layers"),
        ("phi3", {}, 2, "transformers has no plan for its layers"),
        ("mixtral", {}, 2, "transformers has no plan for its layers"),
        ("qwen3_moe", {}, 2, "transformers has no plan for its layers"),
        ("mixtral", {}, 1, None),
    ],
)
def test_a_model_is_divided_evenly_or_refused(
    kind: str, changes: dict[str, int], size: int, problem: str | None, tmp_path: Path
) -> None:
    heads = {} if kind == "gpt2" else {"num_attention_heads": 8, "num_key_value_heads": 4}
    config = AutoConfig.for_model(kind, **heads | changes)
    loaded = recipe(tmp_path, f"parallel: {{tensor: {size}}}")
    if problem is None:
        check_model(config, loaded)
        return
    with pytest.raises(ZerokitError, match=problem):
        check_model(config, loaded)
