"""Few rows and even micro batches, in which the same tokens have the same loss."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from tests.examples import examples
from zerokit.data.row_dataset import RowDataset
from zerokit.generation import CACHE_NAMES
from zerokit.recipe.model import Columns, TaskSection
from zerokit.training.examples import IGNORED, tokenize
from zerokit.training.packing import (
    Layout,
    _masks_by_position,
    best_fit,
    can_arrange,
    fewest_rows,
    packing_unsupported_reason,
    padding_of,
)
from zerokit.training.tasks.causal_lm import CausalLM, PackedCollator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CAPACITY = 32
LENGTHS = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=40)


@given(LENGTHS)
def test_every_sequence_lies_in_one_row_and_no_two_rows_would_fit_in_one(lengths: list[int]) -> None:
    rows = best_fit(lengths, CAPACITY)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    filled = [sum(lengths[index] for index in row) for row in rows]
    assert max(filled) <= CAPACITY
    assert all(one + other > CAPACITY for one, other in combinations(filled, 2))


def test_best_fit_leaves_no_room_where_none_must_be() -> None:
    """First fit would put the 3 into the first row, and need a third one."""
    assert best_fit([3, 7, 6, 4], 10) == [[0, 1], [2, 3]]


@given(LENGTHS)
def test_a_micro_batch_has_the_fewest_rows_that_come_out_even(lengths: list[int]) -> None:
    rows = fewest_rows(lengths, CAPACITY)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    filled = [sum(lengths[index] for index in row) for row in rows]
    assert max(filled) <= CAPACITY
    assert len(rows) * max(filled) <= len(lengths) * max(lengths)
    if sum(lengths) <= CAPACITY and len(rows) > 1:
        assert sum(lengths) == len(lengths) * max(lengths)
    assert max(filled) - min(filled) <= max(lengths)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_step_keeps_its_examples_and_its_micro_batches_their_size(
    lengths: list[int], batch: int, ranks: int, steps: int, in_rows: bool
) -> None:
    lengths = [*lengths, *[1] * (-len(lengths) % (batch * ranks))]  # as blanks fill them up
    layout = Layout(batch, batch * ranks * steps, CAPACITY, 1, in_rows=in_rows)
    order = random.Random(0).sample(range(len(lengths)), len(lengths))
    arranged = list(layout.arranged(order, lengths))
    size = layout.step_size
    for start in range(0, len(order), size):
        assert sorted(arranged[start : start + size]) == sorted(order[start : start + size])
    # At once on all ranks: none waits long for another.
    for start in range(0, len(order), batch * ranks):
        at_once = [
            sum(lengths[index] for index in arranged[begin : begin + batch])
            for begin in range(start, start + batch * ranks, batch)
        ]
        assert max(at_once) - min(at_once) <= batch * max(lengths)


def _sequences(lengths: Sequence[int], seed: int) -> list[dict[str, list[int]]]:
    chance = random.Random(seed)
    made = []
    for length in lengths:
        input_ids = [chance.randrange(2, 60) for _ in range(length)]
        labels = [token if chance.random() < 0.7 else IGNORED for token in input_ids]
        made.append({"input_ids": input_ids, "labels": labels})
    return made


def _sums(task: CausalLM, model: Any, batches: Sequence[list[dict[str, Any]]], collator: Any) -> tuple[float, int]:
    """Sum of the losses of micro batches, and the number of tokens that they are of."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            inputs = collator(batch)
            total += float(task.loss(model, inputs)[0])
            count += int(task.num_targets(inputs))
    return total, count


@examples(10)
@given(st.lists(st.integers(2, CAPACITY), min_size=2, max_size=8), st.integers(1, 5), st.integers(0, 99), st.data())
def test_however_tokens_lie_in_batches_their_loss_is_the_same(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lengths: list[int],
    size: int,
    seed: int,
    data: st.DataObject,
) -> None:
    """Padded, padding-free in any split, arranged by length, packed: in fp32 within 1e-5 a token."""
    section = TaskSection(seq_len=CAPACITY)
    task, padding = CausalLM(section), CausalLM(section, mixed="to pad")
    sequences = _sequences(lengths, seed)
    alone, count = _sums(padding, model, [[one] for one in sequences], padding.collator(tokenizer, model))
    order = data.draw(st.permutations(range(len(lengths))))
    layout = task.layout(size, size * 2)
    assert layout is not None
    arranged = [sequences[index] for index in layout.arranged(order, lengths)]
    packed = [
        {
            "input_ids": [token for index in row for token in sequences[index]["input_ids"]],
            "labels": [label for index in row for label in [IGNORED, *sequences[index]["labels"][1:]]],
            "position_ids": [place for index in row for place in range(lengths[index])],
        }
        for row in best_fit(lengths, CAPACITY)
    ]
    one_row = CausalLM(section, one_row=True).collator(tokenizer, model)
    for rows, owner, collator in (
        (arranged, padding, padding.collator(tokenizer, model)),
        (arranged, task, task.collator(tokenizer, model)),
        (arranged, task, one_row),
        (packed, task, task.collator(tokenizer, model)),
    ):
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        total, same = _sums(owner, model, batches, collator)
        assert same == count
        assert total / max(same, 1) == pytest.approx(alone / max(count, 1), abs=1e-5)


SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 64, "pad_token_id": 0}


@pytest.mark.parametrize(
    ("model_type", "keys", "mixed"),
    [
        ("gpt2", {}, None),  # learned positions
        ("mistral", {"sliding_window": 4, "num_key_value_heads": 2}, None),
        ("gemma2", {"head_dim": 8, "num_key_value_heads": 2, "attn_implementation": "eager"}, None),
        ("bloom", {}, "its forward() takes no position_ids"),
        ("opt", {}, "its code makes masks without regard to positions"),
        ("gpt_oss", {"head_dim": 8}, "its code makes masks without regard to positions"),
        ("mamba", {}, "its forward() takes no position_ids"),
        (
            "mixtral",
            {"num_key_value_heads": 2, "output_router_logits": True},
            "it balances its experts over a whole row",
        ),
        (
            "qwen3_next",
            {"num_key_value_heads": 2},
            "it has layers other than attention, which carry on from token to token",
        ),
    ],
)
def test_a_model_is_packed_where_its_code_keeps_documents_apart(
    model_type: str, keys: dict[str, Any], mixed: str | None
) -> None:
    config = AutoConfig.for_model(model_type, **SMALL, **keys)
    known = AutoModelForCausalLM._model_mapping
    assert packing_unsupported_reason(known[type(config)], config, keys.get("attn_implementation"), CAPACITY) == mixed
    if mixed is not None:
        return
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config).eval()
    made.config.use_cache = False
    first, second = torch.arange(3, 12)[None], torch.arange(20, 31)[None]
    positions = torch.cat([torch.arange(9), torch.arange(11)])[None]
    with torch.no_grad():
        both = made(torch.cat([first, second], dim=1), position_ids=positions).logits
        alone = made(second).logits
    assert both[:, 9:] == pytest.approx(alone, abs=1e-5)


def test_texts_are_packed_whole_and_long_ones_go_on(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["x" * 20, "", "y", "z" * 3]
    encoder = CausalLM(TaskSection(seq_len=8)).encoder(tokenizer, "text", Columns())
    rows = [{"text": text} for text in texts]
    packed = tokenize(RowDataset.of_rows(rows), encoder, seq_len=8, where="data.train").dataset
    assert [tokenizer.decode(row["input_ids"]) for row in packed] == [
        "x" * 8,
        "x" * 8,
        "x" * 4 + "<|end|>" + "y<|end|>",
        "zzz<|end|>",
    ]
    assert packed[2]["position_ids"] == [0, 1, 2, 3, 4, 0, 1]
    assert [place for place, label in enumerate(packed[2]["labels"]) if label == IGNORED] == [0, 5]


def test_a_preview_shows_where_documents_of_a_sequence_begin(tokenizer: PreTrainedTokenizerBase) -> None:
    task = CausalLM(TaskSection(seq_len=32, packing=True))
    pairs = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    encoder = task.encoder(tokenizer, "prompt_completion", Columns())
    (row,) = tokenize(RowDataset.of_rows(pairs), encoder, seq_len=32, where="data.train").dataset
    assert ["".join(text for text, _ in line) for line in task.marked(row, tokenizer)] == [
        "Document 1 of the sequence:",
        "a⟦b<|end|>⟧",
        "Document 2 of the sequence:",
        "c⟦d<|end|>⟧",
    ]


@pytest.mark.parametrize("packed", [[8, 8], [8, 6], [5]])
def test_one_row_has_all_of_a_micro_batch(packed: list[int], tokenizer: PreTrainedTokenizerBase) -> None:
    """Flash attention tells documents apart in a batch of one row alone, however long they are."""
    features = [
        {"input_ids": [1] * size, "labels": [1] * size, "position_ids": [at % 4 for at in range(size)]}
        for size in packed
    ]
    for shares in (True, False):
        made = PackedCollator(0, None, 1, shares=shares)(features)
        assert made["input_ids"].shape == (1, sum(packed))
        assert made["position_ids"][0].tolist() == [at % 4 for size in packed for at in range(size)]


def test_rows_have_positions_of_their_documents_and_padding_behind_them() -> None:
    features = [
        {"input_ids": [7, 8], "labels": [IGNORED, 8]},
        {"input_ids": [3, 4, 5], "labels": [3, 4, 5]},
        {"input_ids": [6, 9, 6], "labels": [6, 9, 6], "position_ids": [0, 1, 0]},
    ]
    made = {name: values.tolist() for name, values in PackedCollator(1, None, 5, shares=True)(features).items()}
    assert made == {
        "input_ids": [[7, 8, 3, 4, 5, 6, 9, 6, 1, 1]],
        "labels": [[IGNORED, 8, IGNORED, 4, 5, IGNORED, 9, 6, IGNORED, IGNORED]],
        "position_ids": [[0, 1, 0, 1, 2, 0, 1, 0, 1, 2]],
        "attention_mask": [[1] * 8 + [0] * 2],
    }
    made = {name: values.tolist() for name, values in PackedCollator(1, 4, 4, shares=False)(features[:2]).items()}
    assert made == {
        "input_ids": [[7, 8, 1, 1], [3, 4, 5, 1]],
        "labels": [[IGNORED, 8, IGNORED, IGNORED], [IGNORED, 4, 5, IGNORED]],
        "position_ids": [[0, 1, 2, 3], [0, 1, 2, 3]],
        "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 0]],
    }


def test_temperature_by_place_in_a_row_tells_documents_apart_within_its_first_step_alone() -> None:
    keys = {"num_key_value_heads": 2, "floor_scale": 64, "head_dim": 8, "num_local_experts": 1}
    config = AutoConfig.for_model("llama4_text", **SMALL, **keys, no_rope_layers=[1, 0])
    model = AutoModelForCausalLM._model_mapping[type(config)]
    reason = "its attention's temperature depends on where in a row a token is"
    assert packing_unsupported_reason(model, config, None, 63) is None
    assert packing_unsupported_reason(model, config, None, 64) == reason
    assert packing_unsupported_reason(model, config, "flash_attention_2", 8, one_row=True) == reason
    config.no_rope_layers = [1, 1]
    assert packing_unsupported_reason(model, config, None, 64) is None


def test_the_share_of_padding_is_that_of_the_batches() -> None:
    rows = [{"input_ids": [1] * length} for length in (8, 2, 2, 2)] * 4
    found = padding_of(Dataset.from_list(rows), Layout(4, 8, 8, 1, in_rows=True), 0)
    assert found.share == pytest.approx(0.125)  # 14 tokens in two rows of 8
    assert found.share_if_padded == pytest.approx(1 - 14 / 32, abs=0.2)
    assert found.examples_per_step == 8
    rows = [{"input_ids": [1] * length} for length in (100, 30, 20, 10)]
    layout = CausalLM(TaskSection(seq_len=128), one_row=True).layout(4, 4)
    assert layout is not None
    assert padding_of(Dataset.from_list(rows), layout, 0).share == 0


def test_batches_that_come_as_they_do_have_their_own_share_of_padding() -> None:
    arranged = Layout(2, 4, 10, 1, in_rows=True)
    lengths = [9, 9, 1, 1]
    assert arranged.left(lengths) == 0
    assert replace(arranged, arranges=False).left([9, 8, 1, 1]) == pytest.approx(1 - 19 / 20)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"dataloader_drop_last": True}, False),
        ({"average_tokens_across_devices": False}, False),
        ({"train_sampling_strategy": "batch"}, False),
    ],
)
def test_examples_are_arranged_where_their_order_is_free(changed: dict[str, Any], expected: bool) -> None:
    usual = {"dataloader_drop_last": False, "average_tokens_across_devices": True}
    args: Any = SimpleNamespace(**{**usual, "train_sampling_strategy": "random", **changed})
    assert can_arrange(args) is expected


@pytest.mark.parametrize("cache", CACHE_NAMES)
@pytest.mark.parametrize("positions", [True, False])
def test_masks_are_told_by_either_name_of_the_cache(
    cache: str, positions: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers calls the functions that make them before release 5.24, and since."""
    more = "position_ids=None" if positions else ""
    (tmp_path / "modeling_own.py").write_text(
        "def create_causal_mask(**given): ...\n\n\n"
        f"create_causal_mask(config=None, attention_mask=None, {cache}=None, {more})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "modeling_own", raising=False)
    module = importlib.import_module("modeling_own")
    monkeypatch.setitem(sys.modules, "modeling_own", module)
    assert _masks_by_position(module) is positions
