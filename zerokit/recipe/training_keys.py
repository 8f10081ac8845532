"""Compares the recipe's section ``training`` with the fields of transformers' TrainingArguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter, ValidationError

from zerokit.errors import RecipeError, ZerokitError, collect_errors, raise_together
from zerokit.recipe.origins import Origins
from zerokit.recipe.synonyms import meant
from zerokit.recipe.trainer_keys import AT_LEAST, BELOW, NEEDS, OWNED, WITHOUT_EFFECT, installed_types, is_on
from zerokit.validation import wrong_value


@dataclass(frozen=True)
class OwnKeys:
    """The keys that are zerokit's own, with what they are where the recipe is silent."""

    on_spike: Literal["note", "stop"] = "note"
    """What to do where the loss leaps."""
    bind_cores: bool = True
    """Whether each rank with an optimizer on the host keeps to cores of its own."""
    tiled_mlp: bool = False
    """Whether the MLP of each layer runs on one part of the tokens after another."""
    activation_offloading: bool = False
    """Whether inputs of checkpointed layers wait in host memory for the backward pass."""
    sample_prompts: str | None = None
    """A file of prompts, which the model completes at each evaluation."""


_EXTRA = get_type_hints(OwnKeys)


_LEVELS = Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]
_CHOICES: Mapping[str, Any] = {
    "log_level": _LEVELS,
    "log_level_replica": _LEVELS,
    "include_num_input_tokens_seen": bool | Literal["all", "non_padding", "no"],
    "train_sampling_strategy": Literal["random", "sequential", "group_by_length", "batch_rebalance"],
    "dataloader_multiprocessing_context": Literal["fork", "spawn", "forkserver"] | None,
    "torch_compile_mode": Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite"]
    | None,
}
"""The words of arguments whose type is any text, and that the Trainer would fail at or pass over."""

_NOTHING_AT_0 = {"learning_rate": "which trains nothing", "save_steps": "by which nothing is saved before the end"}
NO_LIMIT = -1
"""TrainingArguments' word for a run as long as its epochs say."""

_PERIODIC = ("save", "eval", "logging")
"""What has a `..._strategy`; with "steps" it reads `..._steps`; YAML reads a bare ``no`` as false."""


def check_training_keys(training: Mapping[str, Any], origins: Origins, types: Mapping[str, Any]) -> dict[str, Any]:
    """The section, each key known to TrainingArguments or zerokit, and of its type.

    Raises:
        RecipeError: an unknown key (with the nearest one), one that zerokit sets itself or that has no
            effect here, a value of the wrong type, or steps that the strategy ignores; all of them at once.
    """
    types = {**types, **_EXTRA}
    checked: dict[str, Any] = {}
    errors: list[ZerokitError] = []
    for name, value in training.items():
        with collect_errors(errors, where=origins.where(("training", name))):
            checked[name] = _checked(name, value, types)
    for kind in _PERIODIC:
        with collect_errors(errors):
            _honour_steps(f"{kind}_steps", f"{kind}_strategy", checked, origins)
    for name, others in NEEDS.items():
        with collect_errors(errors, where=origins.where(("training", name))):
            is_idle = checked.get(name) and not any(is_on(other, checked) for other in others)
            # An option may switch off what a key of the recipe belongs to.
            if is_idle and not any(origins.is_later(("training", other), ("training", name)) for other in others):
                value = checked.get(others[0])
                why = f" without {others[0]}" if value is None else f": {others[0]} is {_plain(value)}"
                raise RecipeError(f"{name} has no effect{why}", hint=f"Set {others[0]}, or remove it")
    with collect_errors(errors, where=origins.where(("training", "num_train_epochs"))):
        _check_length(checked, origins)
    raise_together(errors)
    return checked


def _checked(name: str, value: Any, types: Mapping[str, Any]) -> Any:
    if name in OWNED:
        raise RecipeError(f"'{name}' is not set here", hint=OWNED[name])
    if name not in types:
        raise RecipeError(f"'{name}' is not a TrainingArguments key", hint=meant("training", name, types))
    if name in WITHOUT_EFFECT:
        harmless, hint = WITHOUT_EFFECT[name]
        if value not in (None, harmless):
            raise RecipeError(f"{name} has no effect here", hint=hint)
        return value
    if value is False and name in [f"{kind}_strategy" for kind in _PERIODIC]:
        value = "no"
    try:
        # Its type says text alone, but true, for the last checkpoint, is what people write.
        kind: Any = str | bool | None if name == "resume_from_checkpoint" else _CHOICES.get(name, types[name])
        checked = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        message, hint = wrong_value(error, name)
        raise RecipeError(message, hint=hint) from None
    if checked is None:
        return None
    if name == "max_steps" and checked < 1 and checked != NO_LIMIT:
        raise RecipeError(f"max_steps is {value}", hint="Make it at least 1, or remove it")
    if name in _NOTHING_AT_0 and checked == 0:
        raise RecipeError(f"{name} is 0, {_NOTHING_AT_0[name]}", hint="Make it more than 0")
    if name in AT_LEAST and not checked >= AT_LEAST[name]:  # nor is what is no number at all
        raise RecipeError(f"{name} is {value}", hint=f"Make it at least {AT_LEAST[name]}")
    if name in BELOW and not checked < BELOW[name]:
        raise RecipeError(f"{name} is {value}", hint=f"Make it less than {BELOW[name]}")
    return checked


def _honour_steps(steps: str, strategy: str, checked: dict[str, Any], origins: Origins) -> None:
    """Have the strategy follow the steps where those are given alone, or later: on the command line.

    The Trainer ignores them with any other strategy, and ignores those of evaluation without one.
    """
    if checked.get(steps) is None:
        return
    chosen = checked.get(strategy, "steps" if strategy != "eval_strategy" else None)
    if _plain(chosen) == "steps":
        return
    at_steps, at_strategy = ("training", steps), ("training", strategy)
    if chosen is None or origins.is_later(at_steps, at_strategy):
        checked[strategy] = "steps"
    elif not origins.is_later(at_strategy, at_steps):
        raise RecipeError(
            f"{steps} would have no effect: {strategy} is {_plain(chosen)}",
            where=origins.where(("training", steps)),
            hint=f"Remove one of the two, or set {strategy} to steps",
        )


def _plain(value: Any) -> Any:
    """The value of a member of an enumeration; any other value as it is."""
    return getattr(value, "value", value)


def _check_length(checked: Mapping[str, Any], origins: Origins) -> None:
    """Check that a run has one length. ``max_steps`` as an option replaces the epochs of the recipe.

    Raises:
        RecipeError: both keys are set, and the Trainer would ignore the epochs.
    """
    if checked.get("num_train_epochs") is None or checked.get("max_steps") in (None, NO_LIMIT):
        return
    if not origins.is_later(("training", "max_steps"), ("training", "num_train_epochs")):
        raise RecipeError(
            f"num_train_epochs has no effect: the run has {checked['max_steps']} steps by max_steps",
            hint=f"Remove one of the two, or set max_steps to {NO_LIMIT}",
        )


def check_without_imports(training: Mapping[str, Any], origins: Origins) -> dict[str, Any]:
    """As :func:`check_training_keys`, by the :func:`installed_types`; the section as it is where none are.

    Raises:
        RecipeError: a key or a value is not valid.
    """
    types = installed_types()
    return dict(training) if types is None else check_training_keys(training, origins, types)
