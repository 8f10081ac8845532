"""Recipes: the default one, files with mistakes, and where each mistake is said to be."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from tests.json_data import load_json
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.errors import DocumentError, RecipeError, ZerokitError
from zerokit.recipe import PYTHON_REFERENCE, load_recipe, trainer_keys
from zerokit.recipe.load import embedded_text
from zerokit.recipe.model import DataSection, ModelSection, ParallelSection, Recipe, TaskSection
from zerokit.recipe.synonyms import _SYNONYMS, _WITHIN, full_name, meant
from zerokit.recipe.trainer_keys import installed_types

ROWS = load_json("recipe/test_load.json")

MINIMAL = "model: org/name\ndata:\n  train: x.jsonl\n"


def error_of(text: str, folder: Path) -> tuple[str, str]:
    """Where the error in a recipe is (relative to the file), and the whole line."""
    file = folder / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ZerokitError) as caught:
        load_recipe(file)
    assert "\n" not in str(caught.value)
    assert caught.value.where is not None
    return caught.value.where.removeprefix(str(file)), str(caught.value)


def test_default_recipe_needs_no_download() -> None:
    recipe = load_recipe().recipe
    assert recipe.model.path is None
    assert recipe.data.train == PYTHON_REFERENCE
    assert recipe.training["learning_rate"] == 1.5e-3
    assert isinstance(recipe.deepspeed, dict)
    assert recipe.deepspeed["zero_optimization"]["stage"] == 2


def test_default_recipe_as_a_file_is_the_same_recipe(tmp_path: Path) -> None:
    file = tmp_path / "copy.yaml"
    file.write_text(embedded_text())
    assert load_recipe(file).recipe == load_recipe().recipe


@pytest.mark.torch
def test_default_recipe_passes_every_check_of_its_keys() -> None:
    from zerokit.training.arguments import resolve_arguments

    resolved = resolve_arguments(load_recipe(), place=GroupPlace(), default_precision="fp32")
    assert resolved.training["max_grad_norm"] == 1.0


def test_an_empty_section_of_sizes_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: org/name\ndata:\n  train: x.jsonl\nparallel:\n", encoding="utf-8")
    assert load_recipe(path).recipe.parallel == ParallelSection()
    assert load_recipe(path, ["--parallel.sequence", "2"]).recipe.parallel.sequence == 2


def test_a_model_may_be_just_its_name(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(MINIMAL)
    recipe = load_recipe(file).recipe
    assert recipe.model.path == "org/name"
    assert recipe.task.seq_len == 1024
    assert recipe.peft is None
    assert recipe.deepspeed is None


def test_a_recipe_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text('{"model": "org/name", "data": {"train": ["a.jsonl", "b.jsonl"]}}')
    assert load_recipe(file).recipe.data.train == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(("text", "where", "message"), ROWS["mistakes_are_named_with_their_line"])
def test_mistakes_are_named_with_their_line(text: str, where: str, message: str, tmp_path: Path) -> None:
    found, line = error_of(text, tmp_path)
    assert found == where
    assert message in line


def told(file: Path, words: list[str] | None = None) -> list[str]:
    """All that is said of a recipe, without the file's name."""
    with pytest.raises(ZerokitError) as caught:
        load_recipe(file, words or [])
    assert all(not error.others for error in caught.value.others)
    return [str(error).removeprefix(str(file)) for error in (caught.value, *caught.value.others)]


def test_all_mistakes_of_a_recipe_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(MINIMAL + "  trian: y\ntask:\n  seq_len: 4k\n  max_length: 8\nlr: 1\n")
    assert sorted(told(file)) == [
        ":4 (data.trian): unknown key 'trian'. Did you mean 'train'?",
        ':6 (task.seq_len): expected a whole number, found the string "4k". Write 4096',
        ":7 (task.max_length): unknown key 'max_length'. It is called seq_len",
        ":8 (lr): unknown key 'lr'. It is training.learning_rate",
    ]


@pytest.mark.torch  # whose transformers says which keys section `training` has
def test_mistakes_of_options_and_of_all_sections_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(MINIMAL + "  trian: y\ntraining:\n  lr: 1\n  max_steps: 0\n")
    words = ["--taks.seq_len", "8", "--training.seed", "x", "--data.eval"]
    assert told(file, words) == [
        "--taks.seq_len: unknown section 'taks'. Did you mean 'task'?",
        "--data.eval: has no value. Write --data.eval=VALUE",
        ":4 (data.trian): unknown key 'trian'. Did you mean 'train'?",
        ":6 (training.lr): 'lr' is not a TrainingArguments key. It is called learning_rate",
        ":7 (training.max_steps): max_steps is 0. Make it at least 1, or remove it",
        '--training.seed: expected a whole number, found the string "x". Change the value',
    ]
    # What an option was to give is not missing; nor is there more to say of a file that is not there.
    file.write_text("data: {train: x}\n")
    assert told(file, ["--model"]) == ["--model: has no value. Write --model=VALUE"]
    assert told(tmp_path / "none.yaml", ["--model"]) == [
        "--model: has no value. Write --model=VALUE",
        ": no such file. Check the path",
    ]


def test_what_is_no_section_is_reported_once(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("model: 5\ndata: {train: x}\n")
    (line,) = told(file, ["--model.dtype=bf16"])
    assert line.startswith("--model.dtype: 'model' is 5 in the recipe, which has no keys to override")


@pytest.mark.parametrize(
    ("text", "unknown", "missing"),
    [
        ("model: a\ndata: {trian: x}\n", "data.trian", None),
        ("model: a\ndata: {train_file: x}\n", "data.train_file", None),
        ("model: a\ndata: {}\ntrain: x\n", "train", None),
        ("base_model: a\ndata: {train: x}\n", "base_model", None),
        ("modl: a\ndata: {train: x}\n", "modl", None),
        ("model: a\ndata: {colour: x}\n", "data.colour", "data.train"),
        ("model: a\ndata: {evel: x}\n", "data.evel", "data.train"),
    ],
)
def test_a_key_that_another_is_to_be_renamed_to_is_not_missing(
    text: str, unknown: str, missing: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(file)
    assert f"({unknown}): unknown key" in str(caught.value)
    others = [str(error) for error in caught.value.others]
    assert len(others) == (missing is not None)
    assert all(f"({missing}): the key" in other for other in others)


@pytest.mark.torch
def test_all_that_a_first_look_finds_is_reported_at_once(tmp_path: Path) -> None:
    from zerokit.training.main import check_recipe_quickly

    file = tmp_path / "recipe.yaml"
    keys = "training: {lr: 1, seq_len: 8, max_steps: 10k, save_steps: 2, save_strategy: epoch}\n"
    file.write_text(f"model: ./none\ndata: {{train: none.jsonl}}\n{keys}")
    with pytest.raises(ZerokitError) as caught:
        check_recipe_quickly(load_recipe(file))
    told = [str(error).removeprefix(f"{file}:") for error in (caught.value, *caught.value.others)]
    assert told[:4] == [
        "3 (training.lr): 'lr' is not a TrainingArguments key. It is called learning_rate",
        "3 (training.seq_len): 'seq_len' is not a TrainingArguments key. It is task.seq_len",
        '3 (training.max_steps): expected a whole number, found the string "10k". Write 10000',
        "3 (training.save_steps): save_steps would have no effect: save_strategy is epoch. "
        "Remove one of the two, or set save_strategy to steps",
    ]
    assert told[4].startswith("1 (model.path): no such model folder: './none'")
    assert told[5].startswith("2 (data.train): no such file: 'none.jsonl'")


@pytest.mark.parametrize(
    ("section", "name", "key"),
    [
        ("data", "path", "train"),
        ("model", "name", "path"),
        ("training", "epochs", "num_train_epochs"),
        ("training", "micro_batch", "per_device_train_batch_size"),
        ("task", "seqlen", "seq_len"),
        ("peft", "lora_targets", "target_modules"),
    ],
)
def test_a_key_is_known_by_its_other_names(section: str, name: str, key: str) -> None:
    assert meant(section, name, [key]) == f"It is called {key}"


@pytest.mark.parametrize("name", ["dropout", "alpha", "rank", "targets", "modules", "prompt_length"])
def test_names_that_mean_something_else_elsewhere_speak_in_their_section_alone(name: str) -> None:
    choices = ["r", "lora_alpha", "lora_dropout", "target_modules", "num_virtual_tokens"]
    assert meant("peft", name, choices).removeprefix("It is called ") in choices
    for section in ("", "model", "task", "training"):
        assert "peft" not in meant(section, name, [])
    assert full_name(name) is None
    assert meant("training", "lora_dropout", []) == "It is peft.lora_dropout"


@pytest.mark.torch  # whose transformers has the names
def test_keys_without_their_section_as_other_tools_have_them_are_reported_at_their_places(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    keys = {
        **{"sample_packing": "task.packing", "train_on_inputs": "task.loss_on", "adapter": "peft.type"},
        **{"warmup_ratio": "training.warmup_steps", "group_by_length": "training.train_sampling_strategy"},
        **{name: f"training.{name}" for name in ("save_steps", "bf16", "seed", "report_to")},
    }
    file.write_text(MINIMAL + "".join(f"{key}: 1\n" for key in keys))
    assert [line.rpartition(". ")[2] for line in told(file)] == [f"It is {key}" for key in keys.values()]
    assert full_name("push_to_hub") is None  # which is no key of that section, either


def test_releases_of_transformers_that_have_a_name_mean_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "transformers" / "training_args.py"
    source.parent.mkdir()
    source.with_name("__init__.py").touch()
    kinds = {"warmup_ratio": "float", "save_total_limit": "Optional[int]", "eval_steps": "Union[int, float]"}
    fields = "".join(f"    {name}: {kind} = None\n" for name, kind in kinds.items())
    source.write_text(f"class TrainingArguments:\n{fields}")
    spec = importlib.util.spec_from_file_location("transformers", source.with_name("__init__.py"))
    monkeypatch.setattr(trainer_keys, "find_spec", lambda _: spec)
    installed_types.cache_clear()
    try:
        assert installed_types() == {"warmup_ratio": float, "save_total_limit": int | None, "eval_steps": int | float}
        assert full_name("warmup_ratio") == "training.warmup_ratio"
    finally:
        installed_types.cache_clear()


def test_the_name_of_a_models_config_is_no_subset_of_data() -> None:
    assert "subset" not in meant("model", "config_name", [])


@pytest.mark.torch
def test_every_other_name_is_of_a_key_that_there_is() -> None:
    from zerokit.training.peft.keys import METHODS, config_class

    types = installed_types()
    assert types is not None
    keys = {
        "": Recipe.model_fields,
        "model": ModelSection.model_fields,
        "data": DataSection.model_fields,
        "task": TaskSection.model_fields,
        "training": types,
        "parallel": set(ParallelSection.model_fields),
        "peft": {"type"} | {f.name for type_ in METHODS for f in dataclasses.fields(config_class(type_))},
    }
    tables = (_SYNONYMS, *_WITHIN.values())
    for table in tables:
        for key, names in table.items():
            section, _, name = key.rpartition(".")
            assert name in keys[section]
            assert not set(names) & set(keys[section])
    for table in tables:
        names = [name for of_key in table.values() for name in of_key]
        assert len(names) == len(set(names))
        assert table is _SYNONYMS or not set(names) & {name for of in _SYNONYMS.values() for name in of}


def test_a_missing_file_and_an_unknown_ending_are_document_errors(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no such file"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(DocumentError, match="no such file"):
        load_recipe(tmp_path / "recipe.txt")
    (tmp_path / "recipe.txt").touch()
    with pytest.raises(DocumentError, match="cannot tell the format"):
        load_recipe(tmp_path / "recipe.txt")


def test_origins_tell_the_line_of_a_value_or_the_option_that_set_it(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(MINIMAL + "training:\n  seed: 1\n")
    loaded = load_recipe(file, ["--training.max_steps", "3", "--deepspeed", "ds.json"])
    assert loaded.where("training", "seed") == f"{file}:5 (training.seed)"
    assert loaded.where("training", "max_steps") == "--training.max_steps"
    assert loaded.where("training", "max_steps", "below") == "--training.max_steps"
    assert loaded.where("deepspeed") == "--deepspeed"
    assert load_recipe().where("task", "seq_len").startswith("embedded default recipe:")


def test_a_loaded_recipe_cannot_change() -> None:
    recipe = load_recipe().recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.task.seq_len = 5  # type: ignore[misc]


def test_a_recipe_error_is_one_line_even_where_its_path_is_not() -> None:
    assert str(RecipeError("a\nb", where="c\nd", hint="e\nf")) == "c d: a b. e f"


def test_the_recipe_to_start_from_saves_something_to_resume_from() -> None:
    training = load_recipe(overrides=["--model", "org/name"]).recipe.training
    assert 0 < training["save_steps"] < 1
    assert "save_strategy" not in training  # the Trainer's: each save_steps
