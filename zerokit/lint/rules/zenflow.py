"""ZenFlow: important gradients at once, the rest later on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import AUTO, ZERO
from zerokit.config.zenflow import ZenFlow
from zerokit.findings import Severity
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("offload")
_ZENFLOW = (ZERO, "zenflow")
_GOOD = {
    **zero(
        3,
        overlap_comm=True,
        offload_optimizer={"device": "cpu"},
        zenflow={"select_strategy": "step", "select_interval": 8, "update_interval": 4},
    ),
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}


def _zero_with(**keys: object) -> dict[str, object]:
    return {**_GOOD, ZERO: {**_GOOD[ZERO], **keys}}


def _section(subject: Subject) -> ZenFlow | None:
    return subject.zero.zenflow


@rule(
    "zenflow-interval",
    stops=True,
    bad=_zero_with(zenflow={"select_strategy": "step", "select_interval": 2, "update_interval": 4}),
    good=_GOOD,
)
def zenflow_interval(subject: Subject) -> Iterator[Hit]:
    """ZenFlow intervals that contradict each other

    DeepSpeed refuses three combinations when training starts: the strategy "auto", which is the default,
    with a `select_interval` in numbers; the strategies "step" and "epoch" without one; and a
    `select_interval` shorter than the `update_interval`.

    Source: `configure_zenflow` in `deepspeed/runtime/zenflow/engine.py`.
    """
    section = _section(subject)
    if section is None or subject.stage == 0 or (*_ZENFLOW,) in subject.doubtful:
        return
    strategy, select, update = section.select_strategy, section.select_interval, section.update_interval
    path = (*_ZENFLOW, "select_interval")
    if strategy == AUTO and select != AUTO:
        hint = 'Set "select_strategy" to "step" or "epoch", or remove the key'
        yield Hit(path, f"'select_interval' {select} needs a 'select_strategy' other than \"auto\"", hint)
    elif strategy != AUTO and select == AUTO:
        message = f"'select_strategy' \"{strategy}\" needs a 'select_interval' in numbers"
        yield Hit((*_ZENFLOW, "select_strategy"), message, 'Add "select_interval"')
    elif strategy == "step" and isinstance(select, int) and isinstance(update, int) and select < update:
        message = f"'select_interval' {select} is shorter than 'update_interval' {update}"
        yield Hit(path, message, f"Make it at least {update}")


@rule(
    "zenflow-auto-update",
    bad=_zero_with(zenflow={"select_strategy": "step", "select_interval": 8}),
    good=_GOOD,
    given={"target": "deepspeed"},
)
def zenflow_auto_update(subject: Subject) -> Iterator[Hit]:
    """ZenFlow with its default 'update_interval' divides the loss by zero

    With `update_interval` "auto", its default, DeepSpeed 0.19.8 counts 0 accumulation steps, and `backward()`
    divides the loss by them: all gradients are infinite, and the model is NaN after the first step. The
    Trainer scales the loss by itself and asks DeepSpeed not to, so it is spared; a script's own loop and
    accelerate are not.

    Write a number, such as 4.

    Source: `configure_zenflow` in `deepspeed/runtime/zenflow/engine.py` (`gradient_accumulation_steps =
    update_interval`) and `DeepSpeedEngine.backward` in `deepspeed/runtime/engine.py`; seen in a run.
    """
    section = _section(subject)
    path = (*_ZENFLOW, "update_interval")
    if (
        section is None
        or subject.stage == 0
        or subject.run.target == "trainer"
        or subject.is_uncertain(*path)
    ):
        return
    if section.update_interval == AUTO:
        message = "without a number for 'update_interval', DeepSpeed divides the loss by 0 accumulation steps"
        severity: Severity = "warning" if subject.run.target is None else "error"
        yield Hit(
            path if subject.is_set(*path) else _ZENFLOW, message, 'Set "update_interval" to 4', (), severity
        )


@rule("zenflow-accumulation", severity="warning", bad={**_GOOD, "gradient_accumulation_steps": 8}, good=_GOOD)
def zenflow_accumulation(subject: Subject) -> Iterator[Hit]:
    """Accumulation steps that ZenFlow overrides

    ZenFlow applies the accumulated gradients every `update_interval` micro-batches and writes that number
    over `gradient_accumulation_steps` when training starts. The batch sizes have been computed by then, so
    `train_batch_size` no longer says how many samples go into an update.

    Source: the last line of `configure_zenflow` in `deepspeed/runtime/zenflow/engine.py`.
    """
    section, steps = _section(subject), subject.config.gradient_accumulation_steps
    if section is None or subject.stage == 0 or not isinstance(steps, int):
        return
    if isinstance(section.update_interval, int) and steps != section.update_interval and steps > 1:
        message = (
            f"ZenFlow's 'update_interval' {section.update_interval} takes the place of these {steps} steps"
        )
        hint = "Make the two equal, or remove 'gradient_accumulation_steps'"
        yield Hit(("gradient_accumulation_steps",), message, hint)


@rule(
    "zenflow-overlap",
    stops=True,
    bad=_zero_with(
        overlap_comm=False,
        zenflow={"select_strategy": "step", "select_interval": 8, "update_interval": 4, "offload": True},
    ),
    good=_zero_with(
        zenflow={"select_strategy": "step", "select_interval": 8, "update_interval": 4, "offload": True}
    ),
)
def zenflow_overlap(subject: Subject) -> Iterator[Hit]:
    """ZenFlow's own offload without overlapped communication

    `zenflow.offload` keeps the states of the important columns on the CPU as well, and copies them while
    gradients are reduced. It asserts `overlap_comm`, which is on by default in stage 3 only.

    Source: `ZenFlowZeroOptimizer.__init__` in `deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py` and
    `_initialize_zenflow_stage3_epilogue` in `deepspeed/runtime/zenflow/engine_stage3.py`.
    """
    section, stage = _section(subject), subject.stage
    if (
        section is None
        or not section.offload
        or stage not in (1, 2, 3)
        or subject.is_uncertain(ZERO, "overlap_comm")
    ):
        return
    overlap = subject.zero.overlap_comm
    if overlap is False or (overlap is None and stage != 3):
        message = f"'zenflow.offload' in stage {stage} needs 'overlap_comm', which is off"
        yield Hit(
            (*_ZENFLOW, "offload"), message, f"Set \"overlap_comm\" to true in '{ZERO}', or remove the key"
        )


@rule(
    "zenflow-optimizer",
    stops=True,
    bad={**_GOOD, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}},
    good=_GOOD,
)
def zenflow_optimizer(subject: Subject) -> Iterator[Hit]:
    """ZenFlow without Adam in the section 'optimizer'

    ZenFlow calls the optimizer on the CPU with arguments of its own, which only DeepSpeed's Adam for ZenFlow
    takes; that is what "Adam" and "AdamW" of the section become. Any other optimizer fails in the first step
    with a TypeError, the Trainer's own among them. Stages 1 and 2 fail without the section as soon as the
    engine is made: they use its `params` for an optimizer of their own. Stage 3 needs no section, and a
    script may hand it a `ZenFlowCPUAdam`, to a Trainer as well.

    Source: `zenflow_cpu_optimizer_step` and `ZenFlowZeroOptimizer.__init__` in
    `deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py`, and `zenflow_cpu_optimizer_step` in
    `deepspeed/runtime/zenflow/engine_stage3.py`.
    """
    optimizer = subject.config.optimizer
    if _section(subject) is None or subject.stage not in (1, 2, 3) or subject.is_uncertain("optimizer"):
        return
    may_be_given = optimizer is None and subject.stage == 3  # by a script, which is not known to do so
    if may_be_given and subject.run.target != "trainer":
        return
    if optimizer is None or optimizer.type.lower() not in ("adam", "adamw"):
        message = "ZenFlow works with Adam and AdamW of the section 'optimizer' only"
        hint = "Give it \"AdamW\" (a recipe: optim deepspeed_adamw), or remove 'zenflow'"
        is_certain = not may_be_given or subject.run.recipe is not None
        yield Hit(_ZENFLOW, message, hint, (), None if is_certain else "warning")
