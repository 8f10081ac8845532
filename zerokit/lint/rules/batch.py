"""Batch sizes: train_batch_size = micro batch size x accumulation steps x data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from zerokit.config.base import AUTO, ZERO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.findings import SetValue, Severity
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject, autotp_size

rule = Rules("batch")
_RANKS = "data-parallel ranks"
_STAGE_2 = {ZERO: {"stage": 2}}


@rule(
    "batch-size",
    stops=True,
    bad={TRAIN: 64, MICRO: 4, STEPS: 4, **_STAGE_2},
    good={MICRO: 4, STEPS: 4, **_STAGE_2},
    given={"num_gpus": 8},
)
def batch_size(subject: Subject) -> Iterator[Hit]:
    """Batch sizes that do not multiply out

    `train_batch_size` is the number of samples per optimizer step over all GPUs:
    `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x data-parallel ranks. DeepSpeed computes
    what is missing, rounding down, and then asserts the identity, on each rank and after the processes have
    started. Ranks that share a sequence (`sequence_parallel_size`) count once.

    What is known decides what is checked: without `--num-gpus`, only that `train_batch_size` is a multiple of
    the other numbers. Under the Trainer and accelerate an absent `gradient_accumulation_steps` is not
    computed: accelerate writes 1.

    Leave `train_batch_size` out; then a config holds for any number of GPUs. An assertion that ends in
    "* 1" on a run with several GPUs means that the processes were not started by a launcher.

    Source: `_set_batch_related_parameters` and `_batch_assertion` in `deepspeed/runtime/config.py`;
    `DeepSpeedPlugin.__post_init__` in accelerate `utils/dataclasses.py`.
    """
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
    if _RANKS in factors and subject.run.target in (None, "deepspeed") and divisor % train == 0:
        hint += "; or does the script split the model over several GPUs?"
    yield Hit((TRAIN,), f"'{TRAIN}' {train} {relation} {product}", hint)


@rule("no-batch-size", stops=True, bad=_STAGE_2, good={MICRO: AUTO, **_STAGE_2}, given={"target": "trainer"})
def no_batch_size(subject: Subject) -> Iterator[Hit]:
    """No batch size

    DeepSpeed needs `train_batch_size` or `train_micro_batch_size_per_gpu`, and asserts one of them when it
    reads the config. The Trainer and accelerate fill in these keys where they are "auto", and add neither.
    (`zerokit train` adds it by itself.)

    Add `train_micro_batch_size_per_gpu`: "auto" for the Trainer and accelerate, a number otherwise.

    Source: `_set_batch_related_parameters` in `deepspeed/runtime/config.py`; `fill_match` in transformers
    `integrations/deepspeed.py`.
    """
    if subject.run.recipe is not None or not (_absent(subject, TRAIN) and _absent(subject, MICRO)):
        return
    severity: Severity = "warning" if subject.run.target is None else "error"
    unless = " unless the script adds one" if subject.run.target is None else ""
    message = f"no batch size is given, so DeepSpeed fails when it starts{unless}"
    if subject.run.target == "deepspeed":
        yield Hit((), message, f'Add "{MICRO}": the samples per GPU and forward pass', severity=severity)
        return
    fix = (SetValue((MICRO,), AUTO),) if subject.run.target is not None else ()
    yield Hit((), message, f'Add "{MICRO}": "auto"', fix, severity)


@rule(
    "fixed-train-batch-size",
    severity="warning",
    bad={TRAIN: 64, MICRO: 4, STEPS: 2, **_STAGE_2},
    good={MICRO: 4, STEPS: 2, **_STAGE_2},
)
def fixed_train_batch_size(subject: Subject) -> Iterator[Hit]:
    """A config that works for one number of GPUs only

    With all three batch sizes given there is one number of data-parallel ranks for which they agree. On any
    other, and in a process that was started without a launcher, DeepSpeed stops. Under the Trainer and
    accelerate an absent `gradient_accumulation_steps` is given, too: accelerate writes 1.

    Leave `train_batch_size` out: DeepSpeed computes it. With `--num-gpus` zerokit says whether the numbers
    agree for that run.

    Source: `_batch_assertion` in `deepspeed/runtime/config.py`.
    """
    train, micro = _number(subject, TRAIN), _number(subject, MICRO)
    steps = 1 if _accelerate_writes_the_steps(subject) else _number(subject, STEPS)
    if subject.cluster.num_gpus is not None or _splits_the_model(subject) or not (train and micro and steps):
        return
    if train % (micro * steps) == 0:
        gpus = train // (micro * steps) * (subject.config.sequence_parallel_size or 1)
        plural = "" if gpus == 1 else "s"
        message = f"'{TRAIN}' {train} with {micro} x {steps} holds for {gpus} GPU{plural} and no other number"
        yield Hit((TRAIN,), message, "Remove it: DeepSpeed computes it")


@rule(
    "computed-micro-batch",
    severity="info",
    bad={TRAIN: 64, **_STAGE_2},
    good={MICRO: 8, STEPS: 1, **_STAGE_2},
    given={"num_gpus": 8},
)
def computed_micro_batch(subject: Subject) -> Iterator[Hit]:
    """A batch size per GPU that changes with the number of GPUs

    Without `train_micro_batch_size_per_gpu` DeepSpeed divides `train_batch_size` by the ranks and by
    `gradient_accumulation_steps`. The samples per forward pass, and with them the memory for activations,
    then change with the number of GPUs: on a quarter of them the same file needs four times as much.

    Give the batch of one GPU, which memory bounds, and let DeepSpeed compute the rest.

    Source: `_set_batch_related_parameters` in `deepspeed/runtime/config.py`.
    """
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


@rule(
    "fractional-batch-size",
    severity="warning",
    bad={TRAIN: 16, STEPS: 1, "sequence_parallel_size": 2, **_STAGE_2},
    good={MICRO: 4, STEPS: 1, "sequence_parallel_size": 2, **_STAGE_2},
)
def fractional_batch_size(subject: Subject) -> Iterator[Hit]:
    """Batch sizes that are floating-point numbers

    PyTorch's `DataLoader` and Python's `range` refuse 4.0 where 4 is meant. DeepSpeed uses batch sizes as
    they are, and computes another float from 4.0. With `sequence_parallel_size` in the file, and
    neither `data_parallel_size` nor an `mpu` from the script, it divides the number of GPUs by it as
    floating-point numbers, so that what it computes is one, too.

    Write whole numbers without a point. Where a sequence is shared, give both
    `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps`, so that only `train_batch_size` is
    computed; or give `data_parallel_size` too.

    Source: `DeepSpeedConfig.__init__` in `deepspeed/runtime/config.py`.
    """
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
    """Ranks that see different samples, or None if that cannot be told or does not divide."""
    if subject.cluster.num_gpus is None or _splits_the_model(subject):
        return None
    sequence = subject.config.sequence_parallel_size or 1
    return None if subject.cluster.num_gpus % sequence else subject.cluster.num_gpus // sequence


def _accelerate_writes_the_steps(subject: Subject) -> bool:
    """Whether the accumulation steps are 1 because they are absent."""
    # zerokit train, which runs recipes, adds "auto" in place of that 1.
    through_accelerate = subject.run.target in ("trainer", "accelerate") and subject.run.recipe is None
    return through_accelerate and subject.is_absent(STEPS)


def _splits_the_model(subject: Subject) -> bool:
    # The groups of tensor and pipeline parallelism come from the script, not only from the file.
    pipeline = subject.written_value("pipeline")
    return (isinstance(pipeline, Mapping) and bool(pipeline)) or autotp_size(subject) > 1


def _number(subject: Subject, name: str) -> int | None:
    value = getattr(subject.config, name)
    return value if isinstance(value, int) and not subject.is_uncertain(name) else None


def _absent(subject: Subject, name: str) -> bool:
    """Whether DeepSpeed finds no value; null counts as none."""
    return subject.is_absent(name) or (subject.is_set(name) and subject.written_value(name) is None)
