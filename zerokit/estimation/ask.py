"""`zerokit.estimate`: the Python face of the estimate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.errors import ZerokitError
from zerokit.estimation.request import Question, Runs
from zerokit.memory import Estimate
from zerokit.memory import estimate as estimate_run
from zerokit.models import ModelShape, load_model_shape
from zerokit.units import parse_count


def estimate(
    model: str | Path | Mapping[str, Any] | ModelShape | int, *, num_gpus: int, **options: Any
) -> Estimate:
    """What a training run holds in memory, without running it and without torch.

    ::

        answer = zerokit.estimate("llama-3.1-8b", num_gpus=4, zero_stage=2, micro_batch_size=1, seq_len=4096)
        answer.device.peak_bytes, answer.device.peak_phase

    Args:
        model: a shape, or what :func:`zerokit.models.load_model_shape` takes, or a bare number of parameters
            such as ``"7.5B"``: then only model states and buffers are counted.
        num_gpus: data-parallel ranks, one GPU each.
        options: the fields of :class:`zerokit.estimation.Question`: either `ds_config` (a path, a dict or a
            `DSConfig`) or `zero_stage` and its companions, and the sizes of the run.

    Raises:
        ZerokitError: no such model, a ds_config with errors, sizes that cannot be, or settings that do not go
            together.
        TypeError: an option that there is not.
    """
    question = Question(model=as_model(model), num_gpus=num_gpus, **options)
    return estimate_run(Runs().training_run(question))


def as_model(model: str | Path | Mapping[str, Any] | ModelShape | int) -> ModelShape | int:
    """A shape, or a bare number of parameters.

    Raises:
        ZerokitError: neither; the message is that for a model.
    """
    if isinstance(model, ModelShape | int):
        return model
    if isinstance(model, str):
        count = _bare_count(model)
        if count is not None:
            return count
    # torch would take seconds, and this command does not need it; a model that zerokit does not know by
    # itself is built on torch's meta device all the same, since there is no other way to count it.
    return load_model_shape(model)


def _bare_count(text: str) -> int | None:
    """``"7.5B"``; None for whatever else, and for what is a folder of that name."""
    if Path(text).exists():
        return None
    try:
        count = parse_count(text)
    except ZerokitError:
        return None
    if count < 1:
        raise ZerokitError(f"{text} is no number of parameters", where="model", hint="Write it like 7.5B")
    return count
