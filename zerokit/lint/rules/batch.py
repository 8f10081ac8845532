"""Batch sizes: train_batch_size = micro batch size x accumulation steps x data-parallel ranks."""

from collections.abc import Iterator, Mapping
from math import prod

from zerokit.config.base import AUTO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.findings import SetValue
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject, autotp_size

_RANKS = "data-parallel ranks"


@rule("batch-size")
def batch_size(subject: Subject) -> Iterator[Hit]:
    """Batch sizes that do not multiply out"""
    train = _number(subject, TRAIN)
    if train is None:
        return
    steps = _number(subject, STEPS)
    by_whom = ""
    if _accelerate_writes_the_steps(subject):
        steps, by_whom = 1, ", which accelerate writes"
    known = {MICRO: _number(subject, MICRO), STEPS: steps, _RANKS: data_parallel_ranks(subject)}
    factors = {name: value for name, value in known.items() if value is not None}
    divisor = prod(factors.values())
    if (train == divisor) if len(factors) == 3 else (train % divisor == 0):
        return
    notes = {STEPS: by_whom}
    shown = " x ".join(f"{value} ({name}{notes.get(name, '')})" for name, value in factors.items())
    product = f"{shown} = {divisor}" if len(factors) > 1 else shown
    relation = "is not" if len(factors) == 3 else "is no multiple of"
    hint = f"Remove '{TRAIN}', or make it a multiple of {divisor}"
    if MICRO in factors:
        hint = f"Remove '{TRAIN}' and DeepSpeed computes it, or change the numbers"
    elif subject.written_value(MICRO) is None:
        hint = f"Give '{MICRO}' in place of '{TRAIN}', or make this a multiple of {divisor}"
    if _RANKS in factors and subject.run.target in (None, "deepspeed") and divisor % train == 0:
        hint += "; or does the script split the model over several GPUs?"
    yield Hit((TRAIN,), f"'{TRAIN}' {train} {relation} {product}", hint)


@rule("fixed-train-batch-size")
def fixed_train_batch_size(subject: Subject) -> Iterator[Hit]:
    """A config that works for one number of GPUs only"""
    train, micro = _number(subject, TRAIN), _number(subject, MICRO)
    steps = 1 if _accelerate_writes_the_steps(subject) else _number(subject, STEPS)
    if subject.cluster.num_gpus is not None or _splits_the_model(subject) or not (train and micro and steps):
        return
    if train % (micro * steps) == 0:
        group = subject.run.batch_group(subject.config.sequence_parallel_size, by_deepspeed=False)
        gpus = train // (micro * steps) * group
        plural = "" if gpus == 1 else "s"
        message = f"'{TRAIN}' {train} with {micro} x {steps} holds for {gpus} GPU{plural} and no other number"
        yield Hit((TRAIN,), message, "Remove it: DeepSpeed computes it")


@rule("computed-micro-batch")
def computed_micro_batch(subject: Subject) -> Iterator[Hit]:
    """A batch size per GPU that changes with the number of GPUs"""
    train, steps = _number(subject, TRAIN), _number(subject, STEPS) or 1
    if train is None or not _absent(subject, MICRO) or subject.written_value(STEPS) == AUTO:
        return
    ranks = data_parallel_ranks(subject)
    over = f"{_RANKS}" + (f" / {steps}" if steps > 1 else "")
    message = f"'{MICRO}' is absent, so each GPU sees {train} / {over} samples at a time"
    hint = f"Give '{MICRO}' in place of '{TRAIN}'"
    if ranks is not None:
        if train % (ranks * steps):
            return
        message += f": {train // (ranks * steps)} on {subject.cluster.num_gpus} GPUs"
    yield Hit((TRAIN,), message, hint)


@rule("fractional-batch-size")
def fractional_batch_size(subject: Subject) -> Iterator[Hit]:
    """Batch sizes that are floating-point numbers"""
    for name in (TRAIN, MICRO, STEPS):
        value = subject.written_value(name)
        if isinstance(value, float):
            message = f"'{name}' is {value:.1f}, a floating-point number, which data loaders refuse"
            yield Hit((name,), message, f"Write {value:.0f}", (SetValue((name,), int(value)),))
    if not subject.is_set("sequence_parallel_size") or not subject.is_absent("data_parallel_size"):
        return
    if subject.config.sequence_parallel_size is None or _number(subject, TRAIN) is None:
        return
    computed = [name for name in (MICRO, STEPS) if _absent(subject, name)]
    if subject.run.target in ("trainer", "accelerate"):
        computed = [name for name in computed if name == MICRO]
    elif len(computed) == 2:
        computed = [MICRO]  # the accumulation steps become 1 then
    if computed:
        size = subject.config.sequence_parallel_size
        message = f"'{computed[0]}' is computed with 'sequence_parallel_size' {size}: not 4, say, but 4.0"
        yield Hit((TRAIN,), message, f"Give '{computed[0]}' in place of '{TRAIN}'")


def data_parallel_ranks(subject: Subject) -> int | None:
    """Ranks that the micro batch is multiplied by, or None if that is not known or does not divide.

    A group of a recipe counts once, and ranks that share a sequence. DeepSpeed counts each tensor-parallel rank
    of a ds_config (see `Run.batch_group`).
    """
    if subject.run.data_parallel_ranks is not None:
        return subject.run.data_parallel_ranks
    if subject.cluster.num_gpus is None or _splits_the_model(subject):
        return None
    shared = subject.run.batch_group(subject.config.sequence_parallel_size, by_deepspeed=False)
    return None if subject.cluster.num_gpus % shared else subject.cluster.num_gpus // shared


def _accelerate_writes_the_steps(subject: Subject) -> bool:
    """Whether the accumulation steps are 1 because they are absent."""
    # zerokit train, which runs recipes, adds "auto" in place of that 1.
    through_accelerate = subject.run.target in ("trainer", "accelerate") and subject.run.recipe is None
    return through_accelerate and subject.is_absent(STEPS)


def _splits_the_model(subject: Subject) -> bool:
    # A script of its own may give DeepSpeed the groups (`mpu`) that it counts by; accelerate gives none.
    pipeline = subject.written_value("pipeline")
    own_groups = subject.run.target not in ("trainer", "accelerate") and autotp_size(subject) > 1
    return own_groups or (isinstance(pipeline, Mapping) and bool(pipeline))


def _number(subject: Subject, name: str) -> int | None:
    value = getattr(subject.config, name)
    return value if isinstance(value, int) and not subject.is_uncertain(name) else None


def _absent(subject: Subject, name: str) -> bool:
    """Whether DeepSpeed finds no value; null counts as none."""
    return subject.is_absent(name) or (subject.is_set(name) and subject.written_value(name) is None)
