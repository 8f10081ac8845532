"""The batch identity: train_batch_size = micro batch size x accumulation steps x data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from zerokit.config.problem import Problem
from zerokit.config.root import DeepSpeedConfig

_TRAIN = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"


def check_batch_sizes(config: DeepSpeedConfig, num_gpus: int | None) -> Iterator[Problem]:
    """Whether the batch sizes can hold at once, on `num_gpus` GPUs if that is known.

    DeepSpeed computes what is missing by floor division and asserts the identity afterwards
    (`_configure_train_batch_size` in `deepspeed/runtime/config.py`).
    """
    ranks, problem = _data_parallel_ranks(config, num_gpus)
    if problem is not None:
        yield problem
    train = _number(config.train_batch_size)
    if train is None:
        return
    factors = {
        name: value
        for name, value in (
            (_MICRO, _number(config.train_micro_batch_size_per_gpu)),
            (_STEPS, _number(config.gradient_accumulation_steps)),
            ("data-parallel ranks", ranks),
        )
        if value is not None
    }
    divisor = prod(factors.values())
    shown = " x ".join(f"{value} ({name})" for name, value in factors.items())
    if len(factors) == 3 and train != divisor:
        yield _problem(f"{_TRAIN} {train} is not {shown} = {divisor}", divisor)
    elif train % divisor:
        yield _problem(f"{_TRAIN} {train} is no multiple of {shown} = {divisor}", divisor)


def _data_parallel_ranks(config: DeepSpeedConfig, num_gpus: int | None) -> tuple[int | None, Problem | None]:
    """How many ranks see different samples, or None if that cannot be told."""
    if num_gpus is None or _splits_the_model(config):
        return None, None
    sequence = config.sequence_parallel_size or 1
    if num_gpus % sequence:
        message = f"sequence_parallel_size {sequence} does not divide {num_gpus} GPUs"
        hint = f"Choose a divisor of {num_gpus}, or another number of GPUs"
        return None, Problem(("sequence_parallel_size",), message, hint, rule="batch-size")
    return num_gpus // sequence, None


def _splits_the_model(config: DeepSpeedConfig) -> bool:
    # The groups of tensor and pipeline parallelism come from the script, not only from the file.
    tensor_parallel = config.tensor_parallel or {}
    return bool(config.pipeline) or tensor_parallel.get("autotp_size", 0) not in (0, 1)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _problem(message: str, divisor: int) -> Problem:
    hint = f"Remove '{_TRAIN}' and DeepSpeed computes it, or make it a multiple of {divisor}"
    return Problem((_TRAIN,), message, hint, rule="batch-size")
