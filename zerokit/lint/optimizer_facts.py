"""A config's optimizer and schedule, as rules read them."""

from typing import Any

from zerokit.config.base import AUTO, Section
from zerokit.config.optimizer import params_of_optimizer
from zerokit.config.optimizers import OptimizerSpec, optimizer_spec
from zerokit.config.params import OptimizerParams, SchedulerParams
from zerokit.lint.subject import Subject
from zerokit.releases.versions import default_at
from zerokit.tables import table_of

OPTIMIZER = ("optimizer", "params")
SCHEDULER = ("scheduler", "params")


def spec(subject: Subject) -> OptimizerSpec | None:
    """The optimizer that the file certainly names."""
    section = subject.config.optimizer
    if section is None or subject.is_uncertain("optimizer", "type"):
        return None
    return optimizer_spec(section.type)


def optimizer_name(subject: Subject) -> str | None:
    """The optimizer's `type`, in lower case if it is one of DeepSpeed's own; None if none is certain.

    Source: `DeepSpeedConfig._initialize_params` in `deepspeed/runtime/config.py`.
    """
    named = spec(subject)
    if named is None:
        return None
    return named.name if named.library == "torch" else named.name.lower()


def optimizer_type(subject: Subject) -> str:
    """The optimizer's `type` as the file has it."""
    section = subject.config.optimizer
    return "" if section is None else section.type


def optimizer_params(subject: Subject) -> OptimizerParams | None:
    """The constructor's arguments, with its defaults for those that are not set."""
    section = subject.config.optimizer
    if section is None:
        return None
    model = params_of_optimizer(section.type, None)
    return section.params or (model.defaults() if model is not None else None)


def optimizer_argument(subject: Subject, name: str) -> Any:
    """The value that the optimizer's constructor gets; None if it is "auto", not certain, or not known."""
    return _argument(subject, optimizer_params(subject), OPTIMIZER, name)


def torch_adam(subject: Subject) -> bool:
    """Whether PyTorch's Adam or AdamW takes the place of DeepSpeed's."""
    return optimizer_name(subject) in ("adam", "adamw") and optimizer_argument(subject, "torch_adam") is True


def schedule_name(subject: Subject) -> str | None:
    """The schedule's `type`; None if there is none for sure."""
    section = subject.config.scheduler
    return None if section is None or subject.is_uncertain("scheduler", "type") else section.type


def schedule_params(subject: Subject) -> SchedulerParams | None:
    """The arguments of the schedule's constructor, with its defaults for those that are not set."""
    section = subject.config.scheduler
    return None if section is None else section.params


def schedule_argument(subject: Subject, name: str) -> Any:
    """The value that the schedule's constructor gets; None if it is "auto", not certain, or not known."""
    return _argument(subject, schedule_params(subject), SCHEDULER, name)


def _argument(
    subject: Subject, params: OptimizerParams | SchedulerParams | None, section: tuple[str, str], name: str
) -> Any:
    if params is None or subject.is_uncertain(*section, name):
        return None
    value = params.get(name)
    return None if value == AUTO else value


_RATE_OF_SCHEDULE: dict[str, str] = table_of(__file__)["rate_of_schedule"]


def rate_of_schedule(subject: Subject) -> str | None:
    """The argument by which the schedule sets the learning rate itself; None if it uses the optimizer's.

    `WarmupLR` uses the optimizer's where `warmup_max_lr` is absent, `WarmupCosineLR` always.
    Source: the constructors in `deepspeed/runtime/lr_schedules.py` (0.19.8).
    """
    name = schedule_name(subject)
    argument = _RATE_OF_SCHEDULE.get(name or "")
    params: Section | None = schedule_params(subject)
    if argument is None or params is None or getattr(params, argument, None) is None:
        return None
    return argument


def default_clipping(subject: Subject) -> float:
    """The norm at which gradients are clipped if the file does not say; 0 for none.

    Source: `GRADIENT_CLIPPING_DEFAULT` in `deepspeed/runtime/constants.py`: 1.0 since 0.19.3, 0 before.
    """
    if subject.run.deepspeed_version is None:
        return 1.0
    return float(default_at(("gradient_clipping",), subject.run.deepspeed_version))
