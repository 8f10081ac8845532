"""The sections `optimizer` and `scheduler` that `zerokit config` writes, and why each value.

What the target fills is "auto"; what it compares with its own arguments is left to it; the rest are numbers
to start from. Constructors: `_configure_basic_optimizer` in `deepspeed/runtime/engine.py` and
`deepspeed/runtime/lr_schedules.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.choices import OptimizerName
from zerokit.config.base import AUTO
from zerokit.config.optimizers import optimizer_spec
from zerokit.documents import KeyPath
from zerokit.resolving.filled_keys import FILLED
from zerokit.writing.request import NEEDS_TOTAL_STEPS, Decisions


@dataclass(frozen=True)
class Choice:
    """One key of a generated config, or one that was left out on purpose."""

    path: KeyPath
    value: Any
    """:data:`LEFT_OUT` for a key that is not written."""
    why: str
    source: str
    """Where the fact can be looked up: a file and function of DeepSpeed, transformers or accelerate, or what
    the person asked for."""


class _LeftOut:
    """The value of a key that is not written."""

    def __repr__(self) -> str:
        return "LEFT_OUT"


LEFT_OUT = _LeftOut()

ASKED = "as asked"
CHOSEN = "chosen: the first that fits"
_ENGINE = "deepspeed/runtime/engine.py, _configure_basic_optimizer"
_SCHEDULES = "deepspeed/runtime/lr_schedules.py"

_OF_ADAM = ("Adam", "AdamW", "Lamb")
"""Optimizers for which the Trainer's adam_epsilon is meant."""

WARMUP_SHARE = 0.03
"""Of all steps, where the number of warmup steps is not given."""
WARMUP_STEPS = 100
"""Where the number of all steps is not given either."""


def starting_point(name: OptimizerName) -> Mapping[str, Any]:
    """Arguments to fine-tune a language model with; a person tunes them."""
    spec = optimizer_spec(name)
    assert spec is not None
    assert spec.starting_point is not None  # each name of OptimizerName has one
    return spec.starting_point


def optimizer_choices(decisions: Decisions) -> Iterator[Choice]:
    """The keys of the section `optimizer`, or the reason why there is none."""
    name = decisions.optimizer_type
    if name is None:
        if not decisions.inference:
            yield Choice(
                ("optimizer",),
                LEFT_OUT,
                "the script's own applies; a section here would replace it silently",
                "transformers integrations/deepspeed.py, deepspeed_optim_sched",
            )
        return
    if decisions.optimizer is None:
        why = "DeepSpeed needs one, unless the script passes its own, which then wins"
        yield Choice(("optimizer", "type"), name, why, _ENGINE)
    else:
        yield Choice(("optimizer", "type"), name, "the optimizer that DeepSpeed builds", ASKED)
    for key, value in starting_point(name).items():
        yield from _parameter(decisions, name, key, value)
    if name == "Adam":
        why = "without it DeepSpeed's Adam decays the weights as AdamW does"
        yield Choice(("optimizer", "params", "adam_w_mode"), False, why, _ENGINE)
    yield from _around_the_optimizer(decisions, name)


def _parameter(decisions: Decisions, name: OptimizerName, key: str, value: Any) -> Iterator[Choice]:
    path = ("optimizer", "params", key)
    target = decisions.target
    filled = FILLED.get(f"optimizer.params.{key}")
    source = filled.source(target) if filled is not None else None
    if key == "lr" and decisions.learning_rate is not None:
        why = "the learning rate"
        if target == "trainer":
            why += "; the Trainer's learning_rate must say the same"
        yield Choice(path, decisions.learning_rate, why, ASKED)
    elif key == "muon_lr" and (
        decisions.learning_rate is not None or target != "deepspeed" or _schedules_the_rate(decisions)
    ):
        why = "one rate for both of Muon's halves"
        yield Choice(path, LEFT_OUT, why, "deepspeed/runtime/engine.py, _muon_half_defaults")
    elif source is not None and (key != "eps" or name in _OF_ADAM):
        why = f"filled from {source.words}"
        if (name, key) == ("Lion", "betas"):
            why += "; Lion's paper takes 0.9 and 0.99"
        yield Choice(path, AUTO, why, source.step)
    elif source is not None:
        why = f"the Trainer would insist on its Adam arguments; {name}'s own default applies"
        yield Choice(path, LEFT_OUT, why, source.step)
    else:
        yield Choice(path, value, "a starting point for fine-tuning", _ENGINE)


def _schedules_the_rate(decisions: Decisions) -> bool:
    """Whether the schedule sets one rate for all parameters, rather than scaling that of each."""
    return decisions.scheduler not in (None, "WarmupCosineLR")


def _around_the_optimizer(decisions: Decisions, name: OptimizerName) -> Iterator[Choice]:
    """Keys elsewhere without which DeepSpeed refuses the optimizer."""
    if decisions.zero_stage > 0 and name == "SGD":
        yield Choice(
            ("zero_allow_untested_optimizer",),
            True,
            "DeepSpeed vouches for Adam, Adagrad, Lion and Muon under ZeRO, and refuses others without it",
            "deepspeed/runtime/zero/utils.py, is_zero_supported_optimizer",
        )
    if decisions.zero_stage == 3 and name == "Muon":
        yield Choice(
            ("zero_optimization", "reduce_scatter"),
            False,
            "Muon needs whole gradients, and DeepSpeed refuses it otherwise",
            "deepspeed/runtime/zero/stage3.py, DeepSpeedZeroOptimizer_Stage3",
        )


def scheduler_choices(decisions: Decisions) -> Iterator[Choice]:
    """The keys of the section `scheduler`, or the reason why there is none."""
    name = decisions.scheduler
    if name is None:
        if decisions.optimizer_type is not None and decisions.target != "deepspeed":
            why = "the script's own applies"
            yield Choice(("scheduler",), LEFT_OUT, why, "transformers and accelerate")
        return
    why = "the schedule that DeepSpeed builds"
    if decisions.target == "trainer":
        why += "; it replaces the Trainer's lr_scheduler_type"
    elif decisions.target == "accelerate":
        why += "; the script makes an accelerate.utils.DummyScheduler"
    yield Choice(("scheduler", "type"), name, why, ASKED)
    yield from (_one_cycle(decisions) if name == "OneCycle" else _warmup(decisions))


def _warmup(decisions: Decisions) -> Iterator[Choice]:
    def choice(key: str, value: Any, why: str, source: str = _SCHEDULES) -> Choice:
        return Choice(("scheduler", "params", key), value, why, source)

    def auto(key: str, else_: str = "") -> Choice:
        source = FILLED[f"scheduler.params.{key}"].source(target)
        assert source is not None  # a target that fills
        return choice(key, AUTO, f"filled from {source.words}{else_}", source.step)

    name, target = decisions.scheduler, decisions.target
    if name != "WarmupCosineLR":  # which scales the optimizer's own rate instead
        if target == "deepspeed":
            rate = decisions.learning_rate or starting_point(decisions.optimizer_type or "AdamW")["lr"]
            yield choice("warmup_max_lr", rate, "the optimizer's rate; absent, it would be 1e-3")
        elif decisions.learning_rate is not None:
            yield choice("warmup_max_lr", decisions.learning_rate, "the learning rate", ASKED)
        else:
            yield auto("warmup_max_lr")
    if decisions.warmup_steps is not None:
        yield choice("warmup_num_steps", decisions.warmup_steps, "steps of warmup", ASKED)
    elif target == "deepspeed":
        steps, why = WARMUP_STEPS, "a starting point; absent, it would be 1000"
        if decisions.total_steps is not None:
            steps = max(1, round(WARMUP_SHARE * decisions.total_steps))
            why = f"{WARMUP_SHARE:.0%} of all steps; absent, it would be 1000"
        yield choice("warmup_num_steps", steps, why)
    else:
        yield auto("warmup_num_steps", "; absent, it would be 1000")
    why = "the shape that transformers' schedules have; absent, it would be logarithmic"
    yield choice("warmup_type", "linear", why)
    if name in NEEDS_TOTAL_STEPS:
        if decisions.total_steps is not None:
            yield choice("total_num_steps", decisions.total_steps, "where the schedule ends", ASKED)
        else:
            yield auto("total_num_steps")


def _one_cycle(decisions: Decisions) -> Iterator[Choice]:
    def choice(key: str, value: Any, why: str) -> Choice:
        return Choice(("scheduler", "params", key), value, why, f"{_SCHEDULES}, OneCycle")

    rate = decisions.learning_rate or starting_point(decisions.optimizer_type or "AdamW")["lr"]
    why = "it is not filled in"
    if decisions.target != "deepspeed":
        why += "; the script's learning rate is not used"
    yield choice("cycle_max_lr", rate, why)
    # Not rate / 10: binary floating point would print 2.0000000000000003e-06.
    yield choice("cycle_min_lr", float(f"{rate / 10:.3g}"), "a tenth of the highest rate")
    if decisions.total_steps is not None:
        half = max(1, decisions.total_steps // 2)
        yield choice("cycle_first_step_size", half, "half of all steps up, half down")
    else:
        yield choice("cycle_first_step_size", LEFT_OUT, "DeepSpeed's 2000 steps up and as many down")
    yield choice("cycle_momentum", False, "true would overwrite the optimizer's betas")
