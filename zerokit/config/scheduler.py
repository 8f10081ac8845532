"""The section `scheduler`. What its `params` may hold depends on its `type`."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny, ValidationInfo, field_validator

from zerokit.config.base import Section
from zerokit.config.params import SchedulerParams, params_of, unknown_name

DEEPSPEED_SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
"""DeepSpeed's own, by their exact names (`deepspeed/runtime/lr_schedules.py`)."""

TORCH_SCHEDULERS = (
    *("ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR"),
    *("ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR"),
    *("PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"),
)
"""Classes of `torch.optim.lr_scheduler`, as of PyTorch 2.13; they work in stage 0 in fp32 only."""


def _known_scheduler(name: str) -> str:
    known = (*DEEPSPEED_SCHEDULERS, *TORCH_SCHEDULERS)
    if name not in known:
        raise unknown_name("a scheduler", name, known, DEEPSPEED_SCHEDULERS)
    return name


def params_of_scheduler(name: object) -> type[SchedulerParams] | None:
    """The model of `scheduler.params` for a schedule's `type`, or None if the type is not known."""
    if not isinstance(name, str) or name not in (*DEEPSPEED_SCHEDULERS, *TORCH_SCHEDULERS):
        return None
    return params_of(name)


class Scheduler(Section):
    """The learning-rate schedule that DeepSpeed builds.

    DeepSpeed ignores it when the training script passes one of its own. Under the Trainer it overrides
    the argument `lr_scheduler_type` silently.
    """

    type: Annotated[
        str,
        AfterValidator(_known_scheduler),
        Field(
            examples=list(DEEPSPEED_SCHEDULERS),
            description="One of DeepSpeed's schedules, or the exact name of a class in "
            "`torch.optim.lr_scheduler`. Needed: without it DeepSpeed ignores the section.",
        ),
    ]
    params: SerializeAsAny[SchedulerParams] = Field(
        description="Arguments of its constructor, such as `warmup_num_steps` and `total_num_steps`. Needed: "
        "DeepSpeed fails without it."
    )

    @field_validator("params", mode="plain")
    @classmethod
    def _params_of_type(cls, value: Any, info: ValidationInfo) -> SchedulerParams:
        model = params_of_scheduler(info.data.get("type"))
        if model is not None:
            return model.model_validate(value)
        if isinstance(value, dict):
            return SchedulerParams.defaults()  # The type is wrong, which is mistake enough.
        return SchedulerParams.model_validate(value)
