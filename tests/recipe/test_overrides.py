"""Command-line words on top of a recipe."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.json_data import load_json
from zerokit.errors import ZerokitError
from zerokit.recipe import load_recipe
from zerokit.recipe.load import parse_overrides

ROWS = load_json("recipe/test_overrides.json")

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


def is_no_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    # PyYAML writes "0E0" without quotes; zerokit reads the number that it looks like.
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20).filter(is_no_number)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
PATHS = st.tuples(st.sampled_from(["model", "data", "task", "peft", "training"]), NAMES) | st.tuples(
    st.just("deepspeed"), NAMES, NAMES
)


def as_text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("...\n")


@given(st.lists(st.tuples(PATHS, VALUES, st.booleans()), max_size=4))
def test_pairs_written_as_words_are_read_back(pairs: list[tuple[tuple[str, ...], Any, bool]]) -> None:
    words: list[str] = []
    for path, value, with_equals in pairs:
        option, text = "--" + ".".join(path), as_text(value)
        words += [f"{option}={text}"] if with_equals or text.startswith("--") else [option, text]
    assert parse_overrides(words) == [(path, value) for path, value, _ in pairs]


def error_of(words: list[str]) -> ZerokitError | None:
    try:
        load_recipe(None, words)
    except ZerokitError as error:
        return error
    return None


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_whatever_the_words_an_error_is_one_line_that_names_where(words: list[str]) -> None:
    error = error_of(words)
    assert error is not None
    assert "\n" not in str(error)
    assert error.where


@given(st.sampled_from(["--task.seq_len", "--data.columns.text", "--training.seed", "--model"]), st.text())
def test_whatever_the_value_an_error_is_one_line_that_names_the_option(option: str, value: str) -> None:
    error = error_of([option, value])
    if error is not None:
        assert "\n" not in str(error)
        assert error.where == option


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.5E3", 1500.0),
        ("5", 5),
        ("true", True),
        ("null", None),
        ("a=b", "a=b"),
        ("[1, 2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
        ("'1e-5'", "1e-5"),
        ("", None),
    ],
)
def test_values_are_yaml(text: str, value: Any) -> None:
    assert parse_overrides(["--training.x", text]) == [(("training", "x"), value)]
    assert parse_overrides([f"--training.x={text}"]) == [(("training", "x"), value)]


def test_a_value_that_looks_like_an_option_is_written_with_an_equals_sign() -> None:
    assert parse_overrides(["--training.x=--y"]) == [(("training", "x"), "--y")]
    with pytest.raises(ZerokitError, match=r"--training\.x: has no value\. Write --training\.x=VALUE"):
        parse_overrides(["--training.x", "--training.y"])


def test_overrides_reach_every_depth_and_the_last_one_counts() -> None:
    words = ["--task.seq_len", "64", "--task.seq_len=32", "--model.from_config.hidden_size", "128"]
    recipe = load_recipe(None, [*words, "--deepspeed.zero_optimization.stage=3", "--peft.r=4"]).recipe
    assert recipe.task.seq_len == 32
    assert isinstance(recipe.model.from_config, dict)
    assert recipe.model.from_config["hidden_size"] == 128
    assert recipe.model.from_config["model_type"] == "llama"
    assert isinstance(recipe.deepspeed, dict)
    assert recipe.deepspeed["zero_optimization"]["stage"] == 3
    assert recipe.peft == {"r": 4}


def test_overrides_leave_the_next_recipe_alone() -> None:
    load_recipe(None, ["--training.seed", "7"])
    assert load_recipe().recipe.training["seed"] == 42


def test_model_and_deepspeed_may_be_replaced_whole() -> None:
    recipe = load_recipe(None, ["--model", "org/name", "--deepspeed=ds.json"]).recipe
    assert recipe.model.path == "org/name"
    assert recipe.model.from_config is None
    assert recipe.deepspeed == "ds.json"


def test_keys_may_be_added_to_a_model_given_by_name() -> None:
    recipe = load_recipe(None, ["--model", "org/name", "--model.revision", "main"]).recipe
    assert (recipe.model.path, recipe.model.revision) == ("org/name", "main")


@pytest.mark.parametrize(("words", "where", "message"), ROWS["mistakes_name_the_option_and_how_to_fix_them"])
def test_mistakes_name_the_option_and_how_to_fix_them(words: list[str], where: str, message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        load_recipe(None, words)
    assert caught.value.where == where
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_mistakes_of_the_options_are_reported_at_once() -> None:
    with pytest.raises(ZerokitError) as caught:
        load_recipe(None, ["run.yaml", "--epochs", "2", "--lr", "3", "more", "--task.seq_len", "--model", "[1"])
    assert [error.where for error in (caught.value, *caught.value.others)] == [
        "--epochs",
        "--lr",
        "--task.seq_len",
        "--model",
        "command line",
        "command line",
    ]
    with pytest.raises(ZerokitError) as caught:
        load_recipe(None, ["--data.train.x", "1", "--deepspeed", "ds.json", "--deepspeed.bf16", "1"])
    assert [error.where for error in (caught.value, *caught.value.others)] == ["--data.train.x", "--deepspeed.bf16"]
