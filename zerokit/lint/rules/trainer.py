"""A config against the Trainer: what it fills, compares, overwrites and does not read."""

import json
from collections.abc import Iterator, Mapping

from zerokit.config.base import AUTO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.documents import value_at
from zerokit.findings import Move, SetValue, Severity
from zerokit.lint.optimizer_facts import OPTIMIZER, SCHEDULER, default_clipping, optimizer_params, schedule_params
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.resolving.filled_keys import FILLED


def for_trainer(subject: Subject) -> bool:
    """Whether the Trainer hands the config over; ``zerokit train``, which runs recipes, is built on it."""
    return subject.run.target == "trainer" or (subject.run.target is None and subject.run.recipe is not None)


@rule("lost-argument")
def lost_argument(subject: Subject) -> Iterator[Hit]:
    """An absent key: DeepSpeed's default overrides the Trainer's argument"""
    if subject.run.target != "trainer" or subject.run.recipe is not None:
        return
    if subject.is_absent("gradient_clipping"):
        outcome = "clips at 1.0" if default_clipping(subject) else "does not clip"
        message = f"'gradient_clipping' is absent, so DeepSpeed {outcome} whatever max_grad_norm says"
        yield _absent("gradient_clipping", message)
    if subject.is_absent(STEPS):
        message = f"'{STEPS}' is absent, so DeepSpeed counts with 1 whatever the Trainer's argument says"
        stops = subject.is_set(TRAIN) and subject.is_set(MICRO)
        if stops:
            message += f", and stops where that is more: it does not go with '{TRAIN}'"
        yield _absent(STEPS, message, None if stops else "info")
    params = optimizer_params(subject)
    decay = params.get("weight_decay") if params is not None else None
    if decay is not None and subject.is_absent(*OPTIMIZER, "weight_decay"):
        message = f"'weight_decay' is absent, so it is {decay:g} whatever the Trainer's argument says"
        yield _absent(("optimizer", "params", "weight_decay"), message, "info")
    schedule = schedule_params(subject)
    warmup = schedule.get("warmup_num_steps") if schedule is not None else None
    if warmup is not None and subject.is_absent(*SCHEDULER, "warmup_num_steps"):
        message = f"'warmup_num_steps' is absent, so it is {warmup} whatever the Trainer's warmup_steps says"
        yield _absent(("scheduler", "params", "warmup_num_steps"), message)


def _absent(key: str | tuple[str, ...], message: str, severity: Severity | None = None) -> Hit:
    """The finding about a key that should be "auto", at the nearest section that is there."""
    path = (key,) if isinstance(key, str) else key
    hint = f'Add "{path[-1]}": "auto"' + (f" to '{'.'.join(path[:-1])}'" if path[:-1] else "")
    return Hit(path[:1] if path[:-1] else (), message, hint, (SetValue(path, AUTO),), severity)


@rule("fixed-value")
def fixed_value(subject: Subject) -> Iterator[Hit]:
    """A value that must equal an argument of the Trainer"""
    if subject.run.target != "trainer" or subject.run.recipe is not None:
        return
    fixed = [
        filled
        for filled in FILLED.values()
        if filled.other == "refused" and value_at(subject.written, filled.path) not in (None, AUTO)
    ]
    fixed = [one for one in fixed if one.path[-1] != "enabled" or subject.written_value(*one.path) is not False]
    if len(fixed) == 1 and fixed[0].trainer is not None:
        path, words = fixed[0].path, fixed[0].trainer.words
        value = json.dumps(value_at(subject.written, path))
        message = f"the ds_config has {fixed[0].name} {value}, and the Trainer stops if TrainingArguments differ"
        yield Hit(path, f"{message} ({words})", 'Make them equal, or write "auto" in the ds_config')
    elif fixed:
        names = ", ".join(one.name for one in fixed)
        message = f"the Trainer stops if one of {len(fixed)} values differs from TrainingArguments: {names}"
        yield Hit(fixed[0].path, message, 'Make them equal, or write "auto" for each')


@rule("bfloat16-section")
def bfloat16_section(subject: Subject) -> Iterator[Hit]:
    """bfloat16 under its old name"""
    if subject.run.target not in ("trainer", "accelerate") or subject.run.recipe is not None:
        return
    section = subject.written.get("bfloat16")
    if "bf16" not in subject.written and isinstance(section, Mapping) and section.get("enabled") is True:
        message = "'bfloat16' does nothing here: accelerate adds a 'bf16', which takes precedence over it"
        # The Trainer would compare what it has not seen so far with its arguments, and may stop.
        fix = () if subject.run.target == "trainer" else (Move(("bfloat16",), ("bf16",)),)
        yield Hit(("bf16",), message, "Call it 'bf16'", fix)
