"""Held-out examples that are trained on, too, are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tiny import tiny_llama, tiny_tokenizer
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.recipe.load import load_recipe
from zerokit.training import datasets, prepare
from zerokit.training.datasets import duplicates_line, load_datasets
from zerokit.training.tasks import task_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def told(tmp_path: Path, rows: Sequence[Any], held_out: Sequence[Any] | None = None, **data: Any) -> str | None:
    files = {"train": rows, "eval": held_out}
    for name, examples in files.items():
        if examples is not None:
            file = tmp_path / f"{name}.jsonl"
            file.write_text("".join(json.dumps(one) + "\n" for one in examples))
            data[name] = str(file)
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"model": "org/name", "data": data, "training": {"max_steps": 1}}))
    loaded = load_recipe(recipe)
    train, held = load_datasets(loaded, seed=0)
    return duplicates_line(train, held, loaded, task_of(loaded.recipe.task))


def pairs(*names: str, **more: str) -> list[dict[str, str]]:
    return [{"prompt": name, "completion": "x", **more} for name in names]


def chats(*names: str, **more: str) -> list[dict[str, Any]]:
    turns = [[{"role": "user", "content": name}, {"role": "assistant", "content": "x"}] for name in names]
    return [{"messages": [*each, {"role": "user", "content": "and?", **more}]} for each in turns]


@pytest.mark.parametrize(
    ("rows", "held_out", "expected"),
    [
        (pairs("a", "b", "c"), pairs("d", "b", "a"), "2 of 3 held-out examples are also trained on (such as {}:2)"),
        (pairs("a", "b"), pairs("d", "b"), "1 of 2 held-out examples is also trained on ({}:2)"),
        (pairs("a", "b"), pairs("b"), "1 of 1 held-out example is also trained on ({}:1)"),
        (pairs("a", "b"), pairs("b", "b"), "2 of 2 held-out examples are also"),
        # Columns that nobody uses make no other example, and neither do keys that are only filled in.
        (pairs("a", id="1"), pairs("a", id="2"), "1 of 1 held-out"),
        ([*chats("a"), *chats("b", name="me")], chats("a"), "1 of 1 held-out"),
        (pairs("a", "a", "b"), pairs("c"), None),
        (pairs("ab"), [{"prompt": "a", "completion": "bx"}], None),
    ],
)
def test_held_out_examples_that_are_trained_on_are_told(
    rows: list[Any], held_out: list[Any], expected: str | None, tmp_path: Path
) -> None:
    said = told(tmp_path, rows, held_out)
    if expected is None:
        assert said is None
    else:
        assert (said or "").startswith(f"warning: {expected.format(tmp_path / 'eval.jsonl')}")
        assert (said or "").endswith(", so the held-out loss flatters")


def test_a_share_that_is_held_out_of_repeated_data_is_looked_at(tmp_path: Path) -> None:
    rows = pairs(*map(str, range(20)))
    said = told(tmp_path, rows + rows, eval_fraction=0.1)
    assert said is not None
    assert f" of 4 held-out examples are also trained on (such as {tmp_path / 'train.jsonl'}:" in said
    assert told(tmp_path, rows, eval_fraction=0.1) is None


def test_nobody_looks_where_it_is_known_streamed_or_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pairs("a", "b")
    assert told(tmp_path, rows, rows[:1], streaming=True) is None
    assert told(tmp_path, rows, eval=str(tmp_path / "train.jsonl")) is None
    monkeypatch.setattr(datasets, "_MOST_EXAMPLES", 2)
    assert told(tmp_path, rows, rows[:1]) is None


@pytest.mark.parametrize(("begin", "rank", "times"), [("run", 0, 1), ("preview", 0, 1), ("preview", 1, 0)])
def test_a_run_and_a_preview_tell_it_once(
    begin: str,
    rank: int,
    times: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("set_up_libraries", "compile_extensions"):  # which are for a process of its own
        monkeypatch.setattr(prepare, name, lambda *_, **__: None)
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model")
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in pairs("a", "b", "c", "a", "b", "c")))
    recipe = tmp_path / "recipe.json"
    model, data = str(tmp_path / "model"), {"train": str(file), "eval_fraction": 0.2}
    training = {"output_dir": str(tmp_path / "out")}
    recipe.write_text(json.dumps({"model": model, "data": data, "task": {"seq_len": 16}, "training": training}))
    group = RankGroup(Ranks(rank=rank))
    if begin == "run":
        prepare.prepare(group, load_recipe(recipe))
    else:
        prepare.preview(group, load_recipe(recipe), 1)
    assert capsys.readouterr().err.count("held-out example is also trained on") == times
