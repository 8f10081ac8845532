"""A config against the recipe that it is run with."""

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.base import AUTO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.lint.optimizer_facts import SCHEDULER, optimizer_params, schedule_params
from zerokit.lint.rule import Hit, rule
from zerokit.lint.rules.batch import data_parallel_ranks
from zerokit.lint.rules.trainer import for_trainer
from zerokit.lint.subject import Subject
from zerokit.resolving.filled_keys import FILLED, REPLACED_ARGUMENTS


def _training(subject: Subject) -> Mapping[str, Any]:
    """The arguments that the recipe sets; none where something else than the Trainer runs the config."""
    return subject.run.recipe.training if subject.run.recipe is not None and for_trainer(subject) else {}


@rule("recipe-mismatch")
def recipe_mismatch(subject: Subject) -> Iterator[Hit]:
    """A value that the recipe contradicts"""
    training = _training(subject)
    for filled in FILLED.values():
        written = subject.written_value(*filled.path)
        if not filled.adopted or written in (None, AUTO):
            continue
        for name, value in filled.conflicts(written, training):
            message = f"'{filled.name}' is {_shown(value)}, but the recipe's {name} is "
            yield Hit(filled.path, message + _shown(training[name]), 'Write "auto", or make them equal')
    path = (*SCHEDULER, "total_num_steps")
    total, steps = subject.written_value(*path), training.get("max_steps", -1)
    if subject.run.recipe is not None and isinstance(total, int) and total != steps and for_trainer(subject):
        reason = f"the recipe's max_steps is {steps}"
        if not isinstance(steps, int) or steps <= 0:
            reason = "the recipe leaves the number of steps to the data"
        yield Hit(path, f"'scheduler.params.total_num_steps' is {total}, but {reason}", 'Write "auto"')
    yield from _train_batch_size(subject, training)


def _train_batch_size(subject: Subject, training: Mapping[str, Any]) -> Iterator[Hit]:
    train, ranks = subject.written_value(TRAIN), data_parallel_ranks(subject)
    micro = _either(subject, MICRO, training, "per_device_train_batch_size")
    steps = _either(subject, STEPS, training, "gradient_accumulation_steps")
    from_recipe = {"per_device_train_batch_size", "gradient_accumulation_steps"} & training.keys()
    if not isinstance(train, int) or ranks is None or micro is None or steps is None or not from_recipe:
        return
    if train != micro * steps * ranks:
        product = f"{micro} x {steps} x {subject.run.parallelism.describe_data_ranks(ranks)} = {micro * steps * ranks}"
        yield Hit((TRAIN,), f"'{TRAIN}' is {train}, but with the recipe it is {product}", "Remove it")


def _either(subject: Subject, key: str, training: Mapping[str, Any], argument: str) -> int | None:
    for value in (training.get(argument), subject.written_value(key)):
        if isinstance(value, int):
            return value
    return None


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@rule("replaced-recipe-argument")
def replaced_recipe_argument(subject: Subject) -> Iterator[Hit]:
    """An argument of the recipe that a section of the config replaces"""
    training = _training(subject)
    for section, argument in REPLACED_ARGUMENTS.items():
        if argument in training and subject.is_set(section):
            message = f"'{section}' replaces the recipe's {argument} '{training[argument]}'"
            hint = f"Remove '{section}', or {argument} from the recipe"
            yield Hit((section,), message, hint)


@rule("lost-recipe-argument")
def lost_recipe_argument(subject: Subject) -> Iterator[Hit]:
    """An argument of the recipe that does not reach the optimizer or the schedule"""
    training = _training(subject)
    params = {"optimizer": optimizer_params(subject), "scheduler": schedule_params(subject)}
    for filled in FILLED.values():
        section, key = filled.path[0], filled.path[-1]
        values = params.get(section)
        default = values.get(key) if values is not None else None
        if not filled.adopted or default is None or not subject.is_absent(*filled.path):
            continue
        for name, value in filled.conflicts(default, training):
            message = f"the recipe's {name} {_shown(training[name])} is lost: '{key}' is absent, so it is "
            hint = f'Add "{key}": "auto" to \'{section}.params\''
            yield Hit((section,), message + _shown(value), hint)
