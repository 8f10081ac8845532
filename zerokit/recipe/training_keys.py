"""The recipe's section ``training``, held against the fields of transformers' TrainingArguments."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter, ValidationError

from zerokit.errors import RecipeError, ZerokitError, noted, raise_together
from zerokit.recipe.also_called import meant
from zerokit.recipe.origins import Origins
from zerokit.recipe.validation_errors import wrong_type


@dataclass(frozen=True)
class OwnKeys:
    """The keys that are zerokit's own, with what they are where the recipe is silent."""

    rescue_dir: str | None = None
    """Where the model goes if it cannot be saved in the output folder."""
    on_spike: Literal["note", "skip", "stop"] = "note"
    """What to do where the loss leaps."""
    max_skipped_steps: int = 5
    """In a row, with ``skip``."""
    bind_cores: bool = True
    """Whether each rank whose optimizer steps on the host keeps to cores of its own."""


_EXTRA = get_type_hints(OwnKeys)


# Arguments with a section of their own, or that contradict what zerokit runs.
_OWNED = {
    "deepspeed": "Put it in the section 'deepspeed' of the recipe",
    "fsdp": "zerokit runs DeepSpeed ZeRO; remove it",
    "fsdp_config": "zerokit runs DeepSpeed ZeRO; remove it",
    "local_rank": "The launcher sets it; remove it",
    "ddp_timeout": "Remove it: ranks wait 30 minutes for each other in a step, and days for downloads",
    "use_cpu": "Train on CPU with DS_ACCELERATOR=cpu deepspeed launch/train.py ...",
    "push_to_hub": "Upload the finished model with --push-to-hub OWNER/NAME; remove it",
    "save_on_each_node": "Save to a folder that all nodes see; remove it",
    "accelerator_config": "It would change how examples are shared among ranks; remove it",
    "bf16_full_eval": "Evaluation runs in the precision of training; remove it",
    "fp16_full_eval": "Evaluation runs in the precision of training; remove it",
}

# Values below these break the run only after the model is loaded.
_AT_LEAST = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "dataloader_num_workers": 0,
    "num_train_epochs": 0.001,
    "max_skipped_steps": 1,
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "seed", "data_seed"), 0),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon"), 0),
}
_BELOW = {"adam_beta1": 1, "adam_beta2": 1}
NO_LIMIT = -1
"""TrainingArguments' word for a run as long as its epochs say."""

_PERIODIC = ("save", "eval", "logging")
"""What is done by a `..._strategy`, of which "steps" reads `..._steps`; YAML reads a bare ``no`` as false."""

_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "None": None}


def check_training_keys(
    training: Mapping[str, Any], origins: Origins, types: Mapping[str, Any]
) -> dict[str, Any]:
    """The section, each key known to TrainingArguments or zerokit, and of its type.

    Args:
        training: the section.
        origins: where its values were written.
        types: field of TrainingArguments -> its type.

    Raises:
        RecipeError: an unknown key (with the nearest one), one that zerokit sets itself, a value of the
            wrong type, or steps that a strategy beside them passes over; all of them at once.
    """
    types = {**types, **_EXTRA}
    checked: dict[str, Any] = {}
    errors: list[ZerokitError] = []
    for name, value in training.items():
        try:
            checked[name] = _checked(name, value, types)
        except RecipeError as error:
            where = origins.where(("training", name))
            errors.append(RecipeError(error.message, where=where, hint=error.hint))
    for kind in _PERIODIC:
        with noted(errors):
            _honour_steps(f"{kind}_steps", f"{kind}_strategy", checked, origins)
    raise_together(errors)
    return checked


def _checked(name: str, value: Any, types: Mapping[str, Any]) -> Any:
    if name in _OWNED:
        raise RecipeError(f"'{name}' is not set here", hint=_OWNED[name])
    if name not in types:
        raise RecipeError(f"'{name}' is not a TrainingArguments key", hint=meant("training", name, types))
    if value is False and name in [f"{kind}_strategy" for kind in _PERIODIC]:
        value = "no"
    try:
        # Its type says text alone, but true, for the last checkpoint, is what people write.
        kind: Any = str | bool | None if name == "resume_from_checkpoint" else types[name]
        checked = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        message, hint = wrong_type(error, name)
        raise RecipeError(message, hint=hint) from None
    if checked is None:
        return None
    if name == "max_steps" and checked < 1 and checked != NO_LIMIT:
        raise RecipeError(f"max_steps is {value}", hint="Make it at least 1, or remove it")
    if name == "learning_rate" and checked == 0:
        raise RecipeError("learning_rate is 0, which trains nothing", hint="Make it more than 0")
    if name in _AT_LEAST and not checked >= _AT_LEAST[name]:  # nor is what is no number at all
        raise RecipeError(f"{name} is {value}", hint=f"Make it at least {_AT_LEAST[name]}")
    if name in _BELOW and not checked < _BELOW[name]:
        raise RecipeError(f"{name} is {value}", hint=f"Make it less than {_BELOW[name]}")
    return checked


def _honour_steps(steps: str, strategy: str, checked: dict[str, Any], origins: Origins) -> None:
    """Have the strategy follow the steps where those are given alone, or later: on the command line.

    The Trainer passes over them beside any other strategy, and over those of evaluation without one.
    """
    if checked.get(steps) is None:
        return
    chosen = checked.get(strategy, "steps" if strategy != "eval_strategy" else None)
    if getattr(chosen, "value", chosen) == "steps":
        return
    later = {name: ("training", name) in origins.overrides for name in (steps, strategy)}
    if chosen is None or later[steps] > later[strategy]:
        checked[strategy] = "steps"
    elif later[steps] == later[strategy]:
        raise RecipeError(
            f"{steps} would have no effect: {strategy} is {getattr(chosen, 'value', chosen)}",
            where=origins.where(("training", steps)),
            hint=f"Remove one of the two, or set {strategy} to steps",
        )


def installed_types() -> Mapping[str, Any] | None:
    """The fields of the installed TrainingArguments from their source, which imports nothing.

    Returns:
        None where transformers is not installed. Names of classes that a text chooses from are ``str``.
    """
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).with_name("training_args.py").read_text(encoding="utf-8")
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    arguments = next(node for node in classes if node.name == "TrainingArguments")
    return {
        field.target.id: _type(field.annotation)
        for field in arguments.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def check_without_imports(training: Mapping[str, Any], origins: Origins) -> dict[str, Any]:
    """As :func:`check_training_keys`, by the :func:`installed_types`; the section as it is where none are.

    Raises:
        RecipeError: a key or a value is not valid.
    """
    types = installed_types()
    return dict(training) if types is None else check_training_keys(training, origins, types)


def free_keys() -> list[str]:
    """The keys of the section that a recipe may set; of zerokit's own alone where transformers is missing."""
    return [name for name in {**(installed_types() or {}), **_EXTRA} if name not in _OWNED]


def _type(annotation: ast.expr) -> Any:
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            return functools.reduce(operator.or_, (_type(left), _type(right)))
        case ast.Subscript(ast.Name("Literal"), ast.Constant(value)):
            return Literal[value]
        case ast.Subscript(ast.Name(name)) | ast.Name(name):
            return _TYPES.get(name, str)
    return None
