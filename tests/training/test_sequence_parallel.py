"""Rows that several ranks share: their parts, attention within documents, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import accelerator
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DataLoader
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, LlamaForCausalLM, TrainingArguments
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.named_options import foreign_options
from zerokit.distributed.group import RankGroup
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.distributed.ranks import Ranks
from zerokit.errors import RecipeError
from zerokit.hardware.cluster import Parallelism
from zerokit.recipe import load_recipe
from zerokit.recipe.model import TaskSection
from zerokit.resolving.contradictions import Resolved
from zerokit.training.batch_source import BatchSource, share_batches
from zerokit.training.sequence_parallel import (
    _attend_to_documents,
    _register,
    attend,
    check_model,
    check_parallelism,
    check_sequence_parallel,
    collate_part,
    divide_attention,
)
from zerokit.training.tasks import task_of
from zerokit.training.tasks.causal_lm import PackedCollator

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

LENGTHS = st.lists(st.integers(1, 13), min_size=1, max_size=5)


def test_groups_are_consecutive_ranks_with_tensor_parallelism_innermost() -> None:
    places = [GroupPlace(rank, 8, Parallelism(sequence=2, tensor=2)) for rank in range(8)]
    assert [place.data_rank for place in places] == [0] * 4 + [1] * 4
    assert [place.sequence_rank for place in places] == [0, 0, 1, 1] * 2
    assert places[0].data_ranks == 2


@given(LENGTHS, st.sampled_from([2, 3, 4]))
def test_the_parts_of_a_row_have_each_token_and_each_target_once(lengths: list[int], ranks: int) -> None:
    examples = [{"input_ids": [7] * length, "labels": [*range(length)]} for length in lengths]
    collator = PackedCollator(1, None, ranks, shares=True)
    whole = collator(examples)
    parts = [collate_part(collator, GroupPlace(rank, ranks, Parallelism(ranks)), examples) for rank in range(ranks)]
    for name in ("input_ids", "position_ids", "attention_mask"):
        assert torch.equal(torch.cat([part[name] for part in parts], dim=1), whole[name])
    after = torch.cat([part["labels"][:, 1:] for part in parts], dim=1)
    assert torch.equal(after[:, :-1], whole["labels"][:, 1:])
    assert after[0, -1] == -100
    padding = whole["input_ids"].shape[1] - sum(lengths)
    assert 0 <= padding < ranks
    assert parts[0]["documents"] == [*lengths[:-1], lengths[-1] + padding]


@given(LENGTHS, st.sampled_from([None, 1, 3, 5, 64]), st.integers(0, 99))
def test_attention_of_documents_is_that_of_a_mask(lengths: list[int], window: int | None, seed: int) -> None:
    """Also its gradient, with fewer heads of keys than of queries, and a sliding window."""
    size = sum(lengths)
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(1, heads, size, 8, generator=generator, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2)
    )
    module: Any = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    document = torch.repeat_interleave(torch.tensor(lengths))
    distance = torch.arange(size)[:, None] - torch.arange(size)
    mask = (distance >= 0) & (document[:, None] == document) & (distance < (window or size))
    expected, _ = sdpa_attention_forward(module, query, key, value, mask[None, None])
    found, _ = attend(module, query, key, value, None, documents=lengths, sliding_window=window)
    assert torch.allclose(found, expected)
    weights = torch.randn(found.shape, generator=generator, dtype=found.dtype)
    wanted = torch.autograd.grad((expected * weights).sum(), (query, key, value))
    got = torch.autograd.grad((found * weights).sum(), (query, key, value))
    assert all(torch.allclose(one, other) for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize(("heads", "keys"), [(4, 4), (4, 2), (4, 1)])
def test_all_layers_share_the_mask_of_a_window(heads: int, keys: int) -> None:
    """Of documents, too. What else is saved: a result, its sums, and keys and values repeated for all heads."""
    size, window, width, layers = 512, 64, 8, 3
    module: Any = SimpleNamespace(num_key_value_groups=heads // keys, is_causal=True)
    made = [
        torch.randn(1, each, size, width, dtype=torch.bfloat16, requires_grad=True) for each in (heads, keys, keys)
    ]
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = [
            attend(module, *made, None, documents=[size - 128, 128], sliding_window=window)[0] for _ in range(layers)
        ]
    assert len(kept) == layers
    for each in made:
        del saved[each.untyped_storage().data_ptr()]
    mask = 2 * window * 2 * window
    result = heads * (2 * width + 4) * size
    repeated = 2 * 2 * heads * width * 2 * (size - 2 * window) if 1 < keys < heads else 0
    assert sum(saved.values()) == mask + layers * (result + repeated)


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_a_later_run_has_the_attention_of_transformers(attention: str) -> None:
    """A run whose attention DeepSpeed divides, such a run again, and one without groups."""
    model = SimpleNamespace(config=SimpleNamespace(_attn_implementation=attention))
    mappings: tuple[Any, ...] = (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS)
    usual = [functions[attention] for functions in mappings]
    divided = []

    def as_deepspeed(cls: None, model: Any, *, core_attn_implementation: str, **_: Any) -> None:
        divided.append(ALL_ATTENTION_FUNCTIONS[core_attn_implementation])
        ALL_ATTENTION_FUNCTIONS[core_attn_implementation] = lambda *_, **__: "exchanged"

    for _ in range(2):
        divide_attention(GroupPlace(0, 2, Parallelism(2)))
        assert [functions[attention] for functions in mappings] == usual
        _register(as_deepspeed, None, model)
        assert ALL_ATTENTION_FUNCTIONS[attention]() == "exchanged"
    _register(as_deepspeed, None, model)
    divide_attention(GroupPlace())
    assert [functions[attention] for functions in mappings] == usual
    assert all(each is attend if attention == "sdpa" else each.args == (usual[0],) for each in divided)


def test_attention_without_documents_is_that_of_transformers() -> None:
    module: Any = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    query, key, value = (torch.randn(2, heads, 5, 8) for heads in (4, 2, 2))
    mask = torch.rand(2, 1, 5, 5).tril() > 0.2
    mask |= torch.eye(5, dtype=torch.bool)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask)
    assert torch.equal(attend(module, query, key, value, mask, sliding_window=3)[0], expected)
    given = _attend_to_documents(lambda *_, **given: given, None, query, scaling=1.0)
    assert given == {"scaling": 1.0}


def test_each_run_of_a_process_has_batches_of_its_own_groups() -> None:
    for sequence, expected in ((2, [1, 3, 5, 7]), (4, [*range(8)]), (1, [3, 7])):
        share_batches(GroupPlace(3, 4, Parallelism(sequence)))
        loader = accelerator.prepare_data_loader(DataLoader([*range(8)]), "cpu", num_processes=4, process_index=3)
        assert [int(batch) for batch in loader] == expected


def loaded(tmp_path: Path, *words: str) -> Any:
    file = tmp_path / "recipe.yaml"
    file.write_text("model: x\ndata: {train: x}\nparallel:\n  sequence: 4\n")
    return load_recipe(file, words)


@pytest.mark.parametrize(
    ("words", "stage", "message"),
    [
        ((), 1, "needs ZeRO-3, and the run has stage 1: DeepSpeed multiplies gradients"),
        ((), 0, "without ZeRO, DeepSpeed has no groups for it. Set stage 3, in a ds_config"),
        (("--task.type", "dpo"), 3, "does not go with task dpo"),
        (("--training.torch_compile", "true"), 3, "does not go with training.torch_compile True"),
        (("--training.dataloader_drop_last", "true"), 3, "does not go with training.dataloader_drop_last True"),
    ],
)
def test_a_run_that_cannot_be_divided_is_refused_in_a_line(
    words: tuple[str, ...], stage: int, message: str, tmp_path: Path
) -> None:
    recipe = loaded(tmp_path, *words)
    ds_config = {"zero_optimization": {"stage": stage}}
    with pytest.raises(RecipeError) as refused:
        check_sequence_parallel(Resolved(ds_config, dict(recipe.recipe.training)), recipe)
    assert message in str(refused.value)
    assert "recipe.yaml:4" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert foreign_options(str(refused.value), ["train"]) == []


def test_reduce_scatter_is_needed(tmp_path: Path) -> None:
    recipe = loaded(tmp_path)
    resolved = Resolved({"zero_optimization": {"stage": 3, "reduce_scatter": False}}, {})
    with pytest.raises(RecipeError, match="needs reduce_scatter"):
        check_sequence_parallel(resolved, recipe)


@pytest.mark.parametrize(
    ("keys", "mixed", "message"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, None, "does not divide 6 attention heads, 6 of keys"),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, None, "does not divide 12 attention heads, 3 of keys"),
        ({"attn_implementation": "eager"}, None, "does not go with eager attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, None, "does not divide layers of linear_attention"),
        ({"kv_lora_rank": 8}, None, "latent attention"),
        ({}, "its forward() takes no position_ids", "its forward() takes no position_ids"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(
    keys: dict[str, Any], mixed: str | None, message: str, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2, **keys}
    config = AutoConfig.for_model("llama", **sizes)
    for name in ("layer_types", "kv_lora_rank"):  # which are of other models
        setattr(config, name, keys.get(name))
    with pytest.raises(RecipeError) as refused:
        check_model(LlamaForCausalLM, config, mixed, loaded(tmp_path))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("kinds", "words", "message"),
    [
        (
            "gemma2 vaultgemma",
            (),
            "does not go with eager attention of {kind}. Set model.attn_implementation to flash_attention_2",
        ),
        (
            "gemma2",
            ("--model.attn_implementation", "sdpa"),
            "does not go with sdpa attention of {kind}. Set model.attn_implementation to flash_attention_2",
        ),
        (
            "llama",
            ("--model.attn_implementation", "flex_attention"),
            "does not go with flex_attention attention of {kind}. Set model.attn_implementation to sdpa",
        ),
        ("gpt_oss granite_swa granitemoe_swa mimo_v2_flash", (), "does not divide its attention sinks"),
        ("gpt_neox gpt2 ctrl persimmon", (), "DeepSpeed reads num_key_value_heads of its config"),
    ],
)
def test_attention_that_deepspeed_cannot_divide_is_refused(
    kinds: str, words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    for kind in kinds.split():
        config = AutoConfig.for_model(kind, num_attention_heads=8)
        with pytest.raises(RecipeError) as refused:
            check_model(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config, None, loaded(tmp_path, *words))
        assert message.format(kind=kind) in str(refused.value), kind
        assert "\n" not in str(refused.value)


def test_attention_that_the_class_supports_is_divided(tmp_path: Path) -> None:
    config = AutoConfig.for_model("gemma2", num_attention_heads=8)
    flash = loaded(tmp_path, "--model.attn_implementation", "flash_attention_2")
    check_model(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config, None, flash)


def test_keys_may_have_fewer_heads_than_ranks(tmp_path: Path) -> None:
    config = AutoConfig.for_model("llama", num_attention_heads=8, num_key_value_heads=2)
    check_model(LlamaForCausalLM, config, None, loaded(tmp_path))


def test_groups_divide_the_ranks(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="6 GPUs do not divide into groups of 4 of sequence parallelism"):
        check_parallelism(loaded(tmp_path), num_gpus=6)


def test_a_batch_of_a_rank_is_that_of_its_group(tmp_path: Path) -> None:
    """Of groups of two on four ranks: each step has two micro batches of two examples for each group."""
    args = TrainingArguments(
        str(tmp_path),
        use_cpu=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        train_sampling_strategy="sequential",
    )
    rows = Dataset.from_list([{"input_ids": [1] * 4, "labels": [1] * 4}] * 13)
    place = GroupPlace(0, 4, Parallelism(2))
    task = task_of(TaskSection(seq_len=16, padding_free=False))
    source = BatchSource(RankGroup(Ranks()), args, task, rows, lambda numbers: [f"{each}" for each in numbers], place)
    assert len(source.dataset) == 16
    named = [source.name_batch(rank, 1, 0) for rank in range(4)]
    assert named == ["rank 0 with 4, 5", "rank 1 with 4, 5", "rank 2 with 6, 7", "rank 3 with 6, 7"]
    assert source.name_batch(3, 0, 1) == "rank 3 with 10, 11"
