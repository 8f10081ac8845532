"""Read a recipe: a YAML file (or the embedded default), with overrides by dotted name on top."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zerokit.documents import (
    Document,
    KeyPath,
    dotted,
    has_value,
    parse_yaml,
    path_exists,
    read_document,
    value_at,
    with_value,
)
from zerokit.errors import RecipeError, ZerokitError, collect_errors, did_you_mean, nearest, raise_together
from zerokit.passthrough_options import parse_passthrough_options
from zerokit.recipe.mistakes import problems
from zerokit.recipe.model import Recipe
from zerokit.recipe.origins import Origins
from zerokit.recipe.streaming import streaming_problems
from zerokit.recipe.synonyms import full_name
from zerokit.recipe.training_keys import check_without_imports

EMBEDDED = {"default.yaml": "embedded default recipe", "finetune.yaml": "embedded fine-tuning recipe"}
"""Recipes that come with zerokit, and what errors call them."""

SHORTHANDS = ("model", "deepspeed", "precision", "matmul_precision")
"""Sections that one value on the command line can replace as a whole, and keys that are none."""

_HOW = "Write overrides as --section.key value, such as --training.learning_rate 1e-5"


@dataclass(frozen=True)
class LoadedRecipe:
    """A valid recipe that can say where its values come from."""

    recipe: Recipe
    origins: Origins

    def where(self, *path: str | int) -> str:
        """The place of the value at `path`, for an error."""
        return self.origins.where(path)


def load_recipe(path: str | Path | Document | None = None, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load and check a recipe.

    A ds_config that is not in the current folder is looked for in the recipe's.

    Args:
        path: a YAML or JSON file, or what was read from one; None for the embedded default, or, when the
            overrides name a model to start from, for the embedded fine-tuning recipe, whose learning rate is
            for one.
        overrides: command-line words, ``["--training.learning_rate", "1e-5", "--task.packing=false"]``.

    Raises:
        DocumentError: the file cannot be read.
        RecipeError: a key or a value is not valid; it has all others of them with it.
    """
    pairs, errors = _read_overrides(overrides)
    all_read = not errors
    try:
        document = _document(path, pairs)
    except ZerokitError as error:
        errors.append(error)
        raise_together(errors)
        raise
    data = document.data
    overridden: set[KeyPath] = set()
    without_a_place: list[KeyPath] = []
    for key_path, value in pairs:
        try:
            data = _overridden(data, key_path, value)
        except ZerokitError as error:
            errors.append(error)
            without_a_place.append(key_path)
        overridden.add(key_path)
    origins = Origins(document, frozenset(overridden))
    recipe = None
    try:
        recipe = Recipe.model_validate(data)
        found = streaming_problems(recipe)
    except ValidationError as error:
        found = problems(error, Recipe, data)
    errors += [
        RecipeError(problem.message, where=origins.where(problem.path), hint=problem.hint)
        for problem in found
        # An option that could not be read may set the missing key: report only the option.
        if (all_read or has_value(data, problem.path))
        # If a value stands where a section belongs, the option for a key in that section has reported it.
        and not any(path[: len(problem.path)] == problem.path for path in without_a_place)
    ]
    if recipe is None or errors:
        # A caller with a valid recipe checks this section too; without one it is checked here.
        with collect_errors(errors):
            check_without_imports(_of_text(data.get("training")), origins)
        raise_together(errors)
    assert recipe is not None
    named = recipe.deepspeed
    if isinstance(named, str) and ("deepspeed",) not in overridden and not path_exists(named):
        beside = Path(document.name).parent / named
        if path_exists(beside):
            recipe = recipe.model_copy(update={"deepspeed": str(beside)})
    return LoadedRecipe(recipe, origins)


def _of_text(section: Any) -> dict[str, Any]:
    """The keys of a section that may be none, and have keys that are none."""
    return {key: section[key] for key in section if isinstance(key, str)} if isinstance(section, dict) else {}


def _document(path: str | Path | Document | None, pairs: Sequence[tuple[KeyPath, Any]]) -> Document:
    """The recipe's file, or the embedded one that the overrides are made for.

    Raises:
        ZerokitError: it cannot be read, or has no sections.
    """
    if path is None:
        own_model = any(key_path in (("model",), ("model", "path")) for key_path, _ in pairs)
        name = "finetune.yaml" if own_model else "default.yaml"
        return parse_yaml(embedded_text(name), EMBEDDED[name])
    document = path if isinstance(path, Document) else read_document(path)
    if not isinstance(document.data, dict):
        raise RecipeError(
            "a recipe is a mapping of sections", where=document.name, hint="Start with 'model:' and 'data:'"
        )
    return document


def embedded_text(name: str = "default.yaml") -> str:
    """The YAML of a recipe that comes with zerokit: one of :data:`EMBEDDED`."""
    return resources.files("zerokit.recipe").joinpath(name).read_text(encoding="utf-8")


def parse_overrides(words: Sequence[str]) -> list[tuple[KeyPath, Any]]:
    """Read ``--a.b value`` and ``--a.b=value`` pairs; values are YAML.

    Raises:
        ZerokitError: a word that is not an option, an unknown section, or an option without a value; it has
            all others of them with it.
    """
    result, errors = _read_overrides(words)
    raise_together(errors)
    return result


def _read_overrides(words: Sequence[str]) -> tuple[list[tuple[KeyPath, Any]], list[ZerokitError]]:
    """Those of :func:`parse_overrides` that can be read, and what is wrong with the others."""
    result: list[tuple[KeyPath, Any]] = []
    errors: list[ZerokitError] = []
    with collect_errors(errors):
        for given in parse_passthrough_options(words, hint=_instead_of):
            with collect_errors(errors):
                result.append((_key_of(given.option), given.value()))
    return result, errors


def _key_of(name: str) -> KeyPath:
    """The key that an option overrides."""
    sections = list(Recipe.model_fields)
    section, *inner = name.removeprefix("--").split(".")
    if not all((section, *inner)):
        raise RecipeError("names no key", where=name, hint=_HOW)
    if section not in sections:
        hint = did_you_mean(section, sections)
        if not inner:
            close = nearest(name, [f"--{short}" for short in SHORTHANDS])
            meant = f"Did you mean '{close}'? If not, give" if close else "Give"
            such = f"such as --training.{section}"
            if (known := full_name(section)) is not None:
                meant, such = "Give", f"as in --{known}"
            raise RecipeError("unknown option", where=name, hint=f"{meant} the section too, {such}")
        raise RecipeError(f"unknown section '{section}'", where=name, hint=hint)
    if not inner and section not in SHORTHANDS:
        raise RecipeError("names a whole section", where=name, hint=f"Name one key of it: {name}.KEY value")
    return (section, *inner)


def _instead_of(word: str) -> str:
    return f"Write --recipe {word}" if word.endswith((".yaml", ".yml", ".json")) else _HOW


def _overridden(data: dict[str, Any], path: KeyPath, value: Any) -> Any:
    if len(path) > 1 and path[0] == "model" and isinstance(data.get("model"), str):
        data = {**data, "model": {"path": data["model"]}}  # what `model: org/name` is short for
    for end in range(1, len(path)):
        above = value_at(data, path[:end])
        if above is not None and not isinstance(above, dict):
            raise RecipeError(
                f"'{dotted(path[:end])}' is {above!r} in the recipe, which has no keys to override",
                where=f"--{dotted(path)}",
                hint="Edit that file, or write the section inline in the recipe",
            )
    return with_value(data, path, value, replace=True)
