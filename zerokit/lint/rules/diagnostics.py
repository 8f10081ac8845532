"""Diagnostics that slow training and are easily left on."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("performance")
_SWITCH_OFF = "Set it to false once you know what you wanted to know"


@rule(
    "wall-clock-breakdown",
    severity="warning",
    bad={**zero(2), "wall_clock_breakdown": True},
    good={**zero(2), "wall_clock_breakdown": False},
)
def wall_clock_breakdown(subject: Subject) -> Iterator[Hit]:
    """Timers around every part of a step

    `wall_clock_breakdown` times the forward pass, the backward pass, the reduction and the step of every
    micro batch, and prints them. To read a timer the host waits for the GPU, so that it can no longer queue
    work ahead.

    Source: `_update_wall_clock_timers` in `deepspeed/runtime/engine.py`, `CudaEventTimer` in
    `deepspeed/utils/timer.py`.
    """
    path = ("wall_clock_breakdown",)
    if subject.is_set(*path, to=True):
        message = "'wall_clock_breakdown' makes the host wait for the GPU in every micro batch"
        yield Hit(path, message, _SWITCH_OFF)


@rule(
    "flops-profiler",
    severity="warning",
    bad={**zero(2), "flops_profiler": {"enabled": True, "profile_step": 5}},
    good={**zero(2), "flops_profiler": {"enabled": False, "profile_step": 5}},
)
def flops_profiler(subject: Subject) -> Iterator[Hit]:
    """A flops profile that slows every step

    The profiler profiles the step `profile_step` alone. But `flops_profiler.enabled` also switches
    `wall_clock_breakdown` on, for the whole run: its timers make the host wait for the GPU in every micro
    batch, before and after.

    Source: `DeepSpeedConfig._initialize_params` in `deepspeed/runtime/config.py`.
    """
    path = ("flops_profiler", "enabled")
    if subject.is_set(*path, to=True):
        step = subject.value("flops_profiler", "profile_step")
        profiled = "one step" if step is None else f"step {step}"  # None: what the file has is no step
        message = f"the profile is of {profiled}, but 'flops_profiler' times and slows every step"
        yield Hit(path, message, _SWITCH_OFF)


@rule(
    "memory-breakdown",
    severity="warning",
    bad={**zero(2), "memory_breakdown": True},
    good={**zero(2), "memory_breakdown": False},
)
def memory_breakdown(subject: Subject) -> Iterator[Hit]:
    """Memory statistics printed around every pass

    `memory_breakdown` prints the GPU's and the host's memory on rank 0 before and after each forward and
    backward pass and each step. For each of them it runs Python's garbage collector, while the other ranks
    wait, and resets PyTorch's record of the highest use, so that a script that reads it gets the peak of
    the last pass only.

    Source: `see_memory_usage` in `deepspeed/runtime/utils.py`.
    """
    path = ("memory_breakdown",)
    if subject.is_set(*path, to=True):
        message = "'memory_breakdown' collects garbage around every pass and resets PyTorch's memory peak"
        yield Hit(path, message, _SWITCH_OFF)


@rule(
    "comms-logger",
    severity="warning",
    bad={**zero(2), "comms_logger": {"enabled": True}},
    good={**zero(2), "comms_logger": {"enabled": False}},
)
def comms_logger(subject: Subject) -> Iterator[Hit]:
    """A communication logger that blocks every collective

    While `comms_logger` is enabled the host waits for the GPU after *every* collective, also those that
    `prof_ops` leaves out. Nothing overlaps any more, in stage 3 least of all.

    Source: `timed_op` in `deepspeed/comm/comm.py`.
    """
    path = ("comms_logger", "enabled")
    if subject.is_set(*path, to=True):
        message = "'comms_logger' makes the host wait after every collective, so that nothing overlaps"
        yield Hit(path, message, _SWITCH_OFF)


@rule(
    "sanity-checks",
    severity="warning",
    bad={**zero(2), ZERO: {"stage": 3, "enable_sanity_checks": True}},
    good={**zero(2), ZERO: {"stage": 3}},
)
def sanity_checks(subject: Subject) -> Iterator[Hit]:
    """DeepSpeed's sanity checks of its own bookkeeping

    `enable_sanity_checks` lets all ranks compare, with a collective of its own, which parameters are in each
    bucket of gradients before it is reduced. It is for those who work on DeepSpeed, or look for a model that
    takes different ways on different ranks.

    Source: `__reduce_and_partition_ipg_grads` in `deepspeed/runtime/zero/stage3.py`.
    """
    path = (ZERO, "enable_sanity_checks")
    if subject.stage == 3 and subject.is_set(*path, to=True):
        message = "'enable_sanity_checks' adds a collective to each bucket of gradients"
        yield Hit(path, message, _SWITCH_OFF)


@rule(
    "checkpoint-profiling",
    severity="warning",
    bad={**zero(2), "activation_checkpointing": {"synchronize_checkpoint_boundary": True}},
    good={**zero(2), "activation_checkpointing": {"synchronize_checkpoint_boundary": False}},
)
def checkpoint_profiling(subject: Subject) -> Iterator[Hit]:
    """Activation checkpoints that are synchronized or timed

    With `synchronize_checkpoint_boundary` the host waits for the GPU at the start and the end of each
    checkpointed part of the model, and with `profile` it times them, in both passes.

    Source: `CheckpointFunction` in `deepspeed/runtime/activation_checkpointing/checkpointing.py`.
    """
    for key, what in (
        ("synchronize_checkpoint_boundary", "waits for the GPU at each checkpoint of activations"),
        ("profile", "times each checkpoint of activations"),
    ):
        path = ("activation_checkpointing", key)
        if subject.is_set(*path, to=True):
            yield Hit(path, f"'{key}' {what}", _SWITCH_OFF)


@rule(
    "hybrid-engine-left-on",
    severity="warning",
    bad={**zero(2), "hybrid_engine": {"enabled": True}},
    good={**zero(2), "hybrid_engine": {"enabled": False}},
    given={"target": "trainer"},
)
def hybrid_engine_left_on(subject: Subject) -> Iterator[Hit]:
    """The hybrid engine in plain training

    `hybrid_engine.enabled` builds an engine that switches between training and fast generation, for scripts
    that call its `generate`. The Trainer never does. It pays with copies of layers in another form and with
    the time to make them.

    Source: `initialize` in `deepspeed/__init__.py`, `DeepSpeedHybridEngine` in
    `deepspeed/runtime/hybrid_engine.py`.
    """
    path = ("hybrid_engine", "enabled")
    if subject.run.target == "trainer" and subject.is_set(*path, to=True):
        message = "'hybrid_engine' is for generation in reinforcement learning; the Trainer does not use it"
        yield Hit(path, message, "Set it to false")


@rule(
    "debug-output",
    severity="info",
    bad={**zero(2), "dump_state": True},
    good={**zero(2), "dump_state": False},
)
def debug_output(subject: Subject) -> Iterator[Hit]:
    """Output for debugging

    `dump_state` prints the whole engine when it is built, and the log level debug prints more than anyone
    reads. `steps_per_print` 1 prints a line for each step; the Trainer and accelerate overwrite it, so that
    DeepSpeed prints nothing.

    Source: `DeepSpeedEngine.__init__` and `_report_progress` in `deepspeed/runtime/engine.py`;
    `DeepSpeedPlugin.__post_init__` in accelerate `utils/dataclasses.py`.
    """
    if subject.is_set("dump_state", to=True):
        yield Hit(("dump_state",), "'dump_state' prints the whole engine when it is built", "Set it to false")
    if subject.is_set("log_level", to="debug"):
        yield Hit(("log_level",), "'log_level' debug prints more than anyone reads", 'Write "info"')
    if subject.run.target == "deepspeed" and subject.is_set("steps_per_print", to=1):
        yield Hit(
            ("steps_per_print",), "'steps_per_print' 1 prints a line for every step", "Write 10 or more"
        )
