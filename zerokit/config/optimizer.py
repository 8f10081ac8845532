"""The sections `optimizer` and `scheduler`.

`params` are handed to the constructor that `type` names. They are not yet modelled per class; what is
checked is what no constructor takes: numbers and booleans in quotes, and `max_grad_norm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from zerokit.config.base import AUTO, Section
from zerokit.errors import did_you_mean, nearest

DEEPSPEED_OPTIMIZERS = ("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", "MuAdam", "MuAdamW", "MuSGD")
"""DeepSpeed's own; it compares their names without regard to case (`deepspeed/runtime/config.py`)."""

TORCH_OPTIMIZERS = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adamax",
    "LBFGS",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)
"""Classes of `torch.optim` beyond those; DeepSpeed finds them by their exact name."""

REMOVED_OPTIMIZERS = {"onebitadam": "Adam", "zerooneadam": "Adam", "onebitlamb": "Lamb"}
"""In lower case, with what comes nearest. Known to older versions; DeepSpeed 0.19.8 refuses them,
although its pages still describe them."""

DEEPSPEED_SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
"""DeepSpeed's own, by their exact names (`deepspeed/runtime/lr_schedules.py`)."""

TORCH_SCHEDULERS = (
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
)
"""Classes of `torch.optim.lr_scheduler`; they work in stage 0 in fp32 only."""


def _known_optimizer(name: str) -> str:
    if name.lower() in {known.lower() for known in DEEPSPEED_OPTIMIZERS} or name in TORCH_OPTIMIZERS:
        return name
    replacement = REMOVED_OPTIMIZERS.get(name.lower())
    if replacement is not None:
        hint = f"It was removed; use {replacement}"
    else:
        close = nearest(name, (*DEEPSPEED_OPTIMIZERS, *TORCH_OPTIMIZERS))
        hint = did_you_mean(name, [close] if close else DEEPSPEED_OPTIMIZERS)
    raise PydanticCustomError("name", "DeepSpeed has no optimizer '{name}'", {"name": name, "hint": hint})


def _known_scheduler(name: str) -> str:
    if name in DEEPSPEED_SCHEDULERS or name in TORCH_SCHEDULERS:
        return name
    hint = did_you_mean(name, DEEPSPEED_SCHEDULERS)
    raise PydanticCustomError("name", "DeepSpeed has no scheduler '{name}'", {"name": name, "hint": hint})


def _plain_values(params: dict[str, Any]) -> dict[str, Any]:
    for name, value in _leaves(params):
        if isinstance(value, str) and value != AUTO and _is_quoted_number(value):
            raise PydanticCustomError(
                "quoted",
                "'{name}' is a number or boolean in quotes",
                {"name": name, "hint": "Remove the quotes"},
            )
        if isinstance(value, float) and value - value != 0:
            raise PydanticCustomError(
                "finite_number",
                "'{name}' is not a finite number",
                {"name": name, "hint": "Write a finite number"},
            )
    return params


def _optimizer_params(params: dict[str, Any]) -> dict[str, Any]:
    if "max_grad_norm" in params:
        raise PydanticCustomError(
            "misplaced",
            "'max_grad_norm' is no parameter of an optimizer",
            {"hint": "Use the key 'gradient_clipping' at the top of the file"},
        )
    return _plain_values(params)


def _leaves(params: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        for item in value if isinstance(value, list) else [value]:
            yield name, item


def _is_quoted_number(text: str) -> bool:
    try:
        return isinstance(json.loads(text.lower()), bool | int | float)
    except ValueError:
        return False


class Optimizer(Section):
    """The optimizer that DeepSpeed builds.

    DeepSpeed ignores it when the training script passes an optimizer of its own. Under the Trainer it
    overrides the argument `optim` in silence.
    """

    type: Annotated[
        str,
        AfterValidator(_known_optimizer),
        Field(examples=["AdamW", "Adam", "Lion", "Muon", "SGD"]),
    ]
    """One of DeepSpeed's optimizers, or the exact name of a class in `torch.optim`. Needed: without it
    DeepSpeed ignores the section."""

    params: Annotated[dict[str, Any], AfterValidator(_optimizer_params)] | None = None
    """Arguments of its constructor, such as `lr`, `betas`, `eps` and `weight_decay`. Default none: the
    class's defaults."""

    legacy_fusion: bool = False
    """Use the older fused step of the fp16 and bf16 optimizers. Stage 0 only. Default false."""


class Scheduler(Section):
    """The learning-rate schedule that DeepSpeed builds.

    DeepSpeed ignores it when the training script passes one of its own. Under the Trainer it overrides
    the argument `lr_scheduler_type` in silence.
    """

    type: Annotated[str, AfterValidator(_known_scheduler), Field(examples=list(DEEPSPEED_SCHEDULERS))]
    """One of DeepSpeed's schedules. Needed: without it DeepSpeed ignores the section."""

    params: Annotated[dict[str, Any], AfterValidator(_plain_values)]
    """Arguments of its constructor, such as `warmup_num_steps` and `total_num_steps`. Needed: DeepSpeed
    fails without it."""
