"""``zerokit resolve``: every final value of a ds_config, with its origin."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zerokit import choices, console
from zerokit.choices import Target
from zerokit.cli.command import required_unless, with_options
from zerokit.cli.output import print_json
from zerokit.errors import ConfigError, ModelError
from zerokit.units import quantity

if TYPE_CHECKING:
    from zerokit.documents import Document
    from zerokit.models import ModelShape
    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.trace import Resolution, Value


_PRECISIONS = (("bf16", "enabled"), ("fp16", "enabled"))


@dataclass(frozen=True, kw_only=True)
class ResolveOptions:
    num_gpus: int | None = None
    file: Path | None = None
    recipe: Path | None = None
    model: str | None = None
    target: choices.Target = "trainer"
    argument: list[str] | None = None
    show_all: bool = False
    output_format: choices.OutputFormat = "text"


_file_required = required_unless(
    lambda given: given.get("recipe"), "argument 'FILE'", "Give it, or name a recipe with --recipe"
)


@with_options(ResolveOptions, "resolve", file=_file_required)
def resolve(options: ResolveOptions) -> None:
    """Print every value that DeepSpeed will use, with its origin.

    Below the table: what is silently lost, and what the run will refuse; then it exits with 1.
    """
    from zerokit.hardware.cluster import Cluster
    from zerokit.lint.refusals import with_refusals
    from zerokit.recipe.training_keys import check_without_imports
    from zerokit.resolving.run import Run
    from zerokit.resolving.trace import resolve as resolve_config
    from zerokit.resolving.trace import resolve_settled
    from zerokit.writing.named_optimizer import write_optimizer

    loaded, document = _read(options.file, options.recipe, options.target)
    arguments = _parse_arguments(options.argument or [], options.target, loaded is not None)
    written = document
    if loaded is not None:
        document, loaded = write_optimizer(written, loaded)
    settings = {} if loaded is None else check_without_imports(loaded.recipe.training, loaded.origins)
    count = options.num_gpus or 1
    run = Run(target=options.target, cluster=Cluster(count), model=_shape(options.model, loaded))
    if loaded is None:
        run = replace(run, given=arguments, where="--argument {}".format)
        resolution = resolve_config(document, run)
    else:
        run = replace(run, given=settings, where=partial(loaded.where, "training"), recipe=loaded.recipe)
        resolution = resolve_settled(document, run, written=written)
    resolution = with_refusals(resolution, document, run)
    if options.output_format == "json":
        print_json(_as_data(document.name, options.target, count, resolution, options.show_all))
    else:
        _print_text(resolution, options.show_all, accepts_arguments=loaded is None)
    if options.num_gpus is None:
        console.note("for 1 GPU, as --num-gpus does not say how many")
    if resolution.refused:
        raise typer.Exit(1)


def _read(file: Path | None, recipe: Path | None, target: str) -> tuple[LoadedRecipe | None, Document]:
    from zerokit.config import read_ds_config
    from zerokit.lint.recognition import refuse_other_files

    if file is not None:
        refuse_other_files(read_ds_config(file))
    if recipe is None:
        assert file is not None
        return None, read_ds_config(file)
    if target != "trainer":
        raise ConfigError(
            f"a recipe is run by the Trainer, not by {target}", where="--recipe", hint="Leave --target out"
        )
    from zerokit.recipe import load_recipe
    from zerokit.writing.named_optimizer import recipe_ds_config

    loaded = load_recipe(recipe)
    if file is not None:
        return loaded, read_ds_config(file)
    document = recipe_ds_config(loaded)
    return loaded, replace(document, name=str(recipe)) if isinstance(loaded.recipe.deepspeed, dict) else document


def _parse_arguments(words: list[str], target: Target, has_recipe: bool) -> dict[str, Any]:
    from zerokit.documents import parse_scalar
    from zerokit.resolving.arguments import DEFAULTS, check_arguments

    if words and has_recipe:
        raise ConfigError("the recipe has the arguments", where="--argument", hint="Leave it out")
    known = DEFAULTS[target]
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"'{word}' is not NAME=VALUE", where="--argument", hint="Write it like bf16=true")
        # YAML reads a bare `no` as false, and it is one of the words for mixed_precision.
        found[name] = text if isinstance(known.get(name), str) else parse_scalar(text)
    check_arguments(target, found, "--argument {}".format)
    return found


def _shape(model: str | None, loaded: LoadedRecipe | None) -> ModelShape | None:
    """The shape of the model that an option or the recipe names; None without either.

    Raises:
        ModelError: it cannot be read. What a recipe describes itself may be of a kind that is not counted.
    """
    if model is None and loaded is None:
        return None
    from zerokit.models import load_model_shape

    if model is not None:
        return load_model_shape(model)
    assert loaded is not None
    section = loaded.recipe.model
    if section.path is not None:
        try:
            return load_model_shape(section.path, revision=section.revision)
        except ModelError as error:
            hint = "If it lies on another machine, name a model of its sizes with --model"
            raise ModelError(error.message, where=loaded.where("model"), hint=hint) from None
    assert section.from_config is not None
    try:
        return load_model_shape(section.from_config, allow_network=False, allow_torch=False)
    except ModelError:
        return None


def _as_data(name: str, target: str, num_gpus: int, resolution: Resolution, show_all: bool) -> dict[str, Any]:
    from zerokit.documents import dotted, replace_nonfinite

    return {
        "file": name,
        "target": target,
        "num_gpus": num_gpus,
        "values": [
            {**vars(value), "path": dotted(value.path), "value": replace_nonfinite(value.value)}
            for value in _shown(resolution, show_all)
        ],
        "lost": [vars(one) for one in resolution.lost],
        "refused": [one.message for one in resolution.refused],
    }


def _shown(resolution: Resolution, show_all: bool) -> list[Value]:
    return [value for value in resolution.values if show_all or value.origin != "default"]


def _print_text(resolution: Resolution, show_all: bool, *, accepts_arguments: bool) -> None:
    from zerokit.documents import dotted
    from zerokit.reporting.terminal import show, show_rows

    shown = _shown(resolution, show_all)
    rows = [(dotted(value.path), _show(value), value.origin, _detail(value)) for value in shown]
    show_rows(rows, ("key", "value", "origin", "from"))
    of_model = {"(--model)" in value.detail for value in shown if not value.known}
    options = ["--argument NAME=VALUE"] * (False in of_model and accepts_arguments)
    options += ["--model MODEL"] * (True in of_model)
    if options:
        show([f"?: not known. Fill it with {' and '.join(options)}"])
    if accepts_arguments and _is_fp32_by_default(resolution):
        show(
            [
                "No argument names a precision, so that the Trainer trains in fp32. zerokit estimate and "
                "zerokit train assume bf16: --argument bf16=true"
            ]
        )
    hidden = len(resolution.values) - len(shown)
    if hidden:
        show([f"{quantity(hidden, 'value')} at DeepSpeed's default: show them with --all"])
    for one in resolution.lost:
        line = f" (line {one.line})" if one.line else ""
        show([f"lost: {one.name}{line}: {one.message}"])
    for refused in resolution.refused:
        show([f"refused: {refused.message}{f'. {refused.hint}' if refused.hint else ''}"])


def _is_fp32_by_default(resolution: Resolution) -> bool:
    """Whether "auto" left both 16-bit formats off."""
    of_precision = [value for value in resolution.values if value.path in _PRECISIONS]
    return not any(value.value for value in of_precision) and any(
        value.origin == "auto" and value.detail.startswith("the default of") for value in of_precision
    )


def _show(value: Value) -> str:
    if not value.known:
        return "?"
    return "inf" if value.value == math.inf else json.dumps(value.value)


def _detail(value: Value) -> str:
    return f"{value.detail}, line {value.line}" if value.origin == "file" and value.line else value.detail
