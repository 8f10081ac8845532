"""Number formats of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from zerokit.config.base import AUTO, ZERO, is_comment
from zerokit.config.normal_form import refused_together
from zerokit.config.scheduler import TORCH_SCHEDULERS
from zerokit.findings import SetValue
from zerokit.lint.examples import ONE_SAMPLE
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("precision")
_BF16 = {**ONE_SAMPLE, "bf16": {"enabled": True}}
_FP16 = {**ONE_SAMPLE, "fp16": {"enabled": True}}
_STAGE_2 = {ZERO: {"stage": 2}}
_CPU = {ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
_SWITCHES: tuple[Literal["bf16", "fp16"], ...] = ("bf16", "fp16")


@rule(
    "bf16-and-fp16",
    stops=True,
    bad={**_BF16, "fp16": {"enabled": True}, **_STAGE_2},
    good={**_BF16, "fp16": {"enabled": False}, **_STAGE_2},
)
def bf16_and_fp16(subject: Subject) -> Iterator[Hit]:
    """bf16 and fp16 at the same time

    A model trains in bfloat16 or in float16; DeepSpeed asserts that one of them is off when it reads the
    config.

    Keep bf16 where the GPUs have it (Ampere and later): it needs no loss scaling, because its range is that
    of fp32.

    Source: `_initialize_params` in `deepspeed/runtime/config.py`.
    """
    for path, message in refused_together(subject.config):
        if path[0] != ZERO:
            yield Hit(path, message, "Disable one of them")


@rule(
    "precision-off",
    severity="warning",
    bad={**ONE_SAMPLE, "bf16": {"check_grad_overflow": False}, **_STAGE_2},
    good={**ONE_SAMPLE, "bf16": {"enabled": True, "check_grad_overflow": False}, **_STAGE_2},
)
def precision_off(subject: Subject) -> Iterator[Hit]:
    """A 16-bit section that is not enabled

    `fp16`, `bf16` and `torch_autocast` are off unless `enabled` says otherwise, and their other keys then do
    nothing. Under the Trainer and accelerate it is worse: they switch on what `--bf16` or `mixed_precision`
    asks for where the section is absent or `enabled` is "auto". A section without `enabled` keeps the run in
    fp32, silently.

    Add `enabled`: "auto" for the Trainer and accelerate, true otherwise.

    Source: `deepspeed/runtime/precision_config.py`; `set_mixed_precision` in accelerate
    `utils/dataclasses.py`.
    """
    others = {"bf16": "fp16", "fp16": "bf16"}
    for name in (*_SWITCHES, "torch_autocast"):
        section = subject.written_value(name)
        if not isinstance(section, Mapping) or not subject.is_absent(name, "enabled"):
            continue
        if name in others and subject.written_value(others[name], "enabled") is True:
            continue
        filled = name in others and subject.run.target in ("trainer", "accelerate")
        if any(not is_comment(key) for key in section) or filled:
            outcome = ", whatever the script requests" if filled else ", and its keys do nothing"
            fix = (SetValue((name, "enabled"), AUTO),) if filled else ()
            value = '"auto"' if filled else "true"
            hint = f'Add "enabled": {value} to it, or remove the section'
            yield Hit((name,), f"'{name}' lacks 'enabled', so it is off{outcome}", hint, fix)


@rule(
    "fp32-training",
    severity="info",
    bad={**ONE_SAMPLE, **_STAGE_2},
    good={**_BF16, **_STAGE_2},
    given={"target": "deepspeed"},
)
def fp32_training(subject: Subject) -> Iterator[Hit]:
    """A config without a precision

    Without `bf16`, `fp16` and `torch_autocast` DeepSpeed leaves the model's weights in the format in which
    the script made them and takes it for fp32. In fp32 weights and gradients take twice the memory of 16
    bits, and matmuls run at a fraction of the speed.

    Add `"bf16": {"enabled": true}`, or `"bf16": {"enabled": false}` if fp32 is meant.

    Source: `get_data_types` in `deepspeed/runtime/engine.py`.
    """
    if subject.run.target == "deepspeed" and all(
        subject.is_absent(name) for name in ("bf16", "bfloat16", "fp16", "torch_autocast")
    ):
        message = "neither 'bf16' nor 'fp16' is given, so DeepSpeed trains in fp32"
        hint = 'Add "bf16": {"enabled": true}, or false if fp32 is meant'
        if subject.written_value("scheduler", "type") in TORCH_SCHEDULERS:  # torch-scheduler says why
            hint = 'Add "bf16": {"enabled": false}, or use bf16 and a schedule of DeepSpeed\'s'
        yield Hit((), message, hint)


@rule(
    "precision-option",
    stops=True,
    bad={**ONE_SAMPLE, "bf16": {"enabled": True, "bf16_optimizer_states": True}, ZERO: {"stage": 1}},
    good={
        **ONE_SAMPLE,
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
        ZERO: {"stage": 1},
    },
)
def precision_option(subject: Subject) -> Iterator[Hit]:
    """16-bit master weights or states that DeepSpeed refuses

    - `bf16_master_weights_and_grads`, `bf16_optimizer_states` and `fp16_master_weights_and_grads` need ZeRO
      stage 1, 2 or 3.
    - `bf16_optimizer_states` needs `bf16_master_weights_and_grads`.
    - Master weights are in bf16 or in fp16, not in both.

    The keys count even where `enabled` of their section is false.

    Source: `_do_error_check` in `deepspeed/runtime/config.py`; `_configure_master_weights` in
    `deepspeed/runtime/base_optimizer.py`.
    """
    given = [path for path in _MASTERS if subject.value(*path) is True]
    for path in given:
        if subject.stage == 0:
            message = f"'{path[-1]}' needs ZeRO stage 1, 2 or 3, not 0"
            yield Hit(path, message, "Raise the stage or remove the key")
    states, masters = _MASTERS[1], _MASTERS[0]
    if states in given and subject.value(*masters) is False:
        yield Hit(states, f"'{states[-1]}' needs '{masters[-1]}'", "Enable both or none")
    if masters in given and _MASTERS[2] in given and subject.stage != 0:
        message = "master weights are requested in bf16 and in fp16"
        yield Hit(_MASTERS[2], message, "Remove one of the two keys")


_MASTERS = (
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
    ("fp16", "fp16_master_weights_and_grads"),
)


@rule(
    "masters-without-offload",
    stops=True,
    bad={**ONE_SAMPLE, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}, **_STAGE_2},
    good={**ONE_SAMPLE, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}, **_CPU},
)
def masters_without_offload(subject: Subject) -> Iterator[Hit]:
    """16-bit master weights without optimizer offload

    Master weights in bf16 or fp16 go with DeepSpeed's Adam for the CPU, which keeps its averages in fp32, so
    they need `offload_optimizer`. DeepSpeed asserts it once the model is loaded. bf16 alone has a form
    without offload: with `bf16_optimizer_states` everything stays on the GPU in bf16.

    Add `offload_optimizer` with device `cpu`, or set `bf16_optimizer_states` too.

    Source: `_configure_master_weights` in `deepspeed/runtime/base_optimizer.py`, and `_enforce_cpu_offload`
    in `deepspeed/runtime/zero/stage_1_and_2.py`.
    """
    if subject.stage not in (1, 2, 3) or subject.offloads_optimizer is not False:
        return
    for section, path in (("bf16", _MASTERS[0]), ("fp16", _MASTERS[2])):
        if subject.value(*path) is not True:
            continue
        if section == "bf16" and subject.value(*_MASTERS[1]) is not False:
            continue
        hint = f'Add "offload_optimizer": {{"device": "cpu"}} to \'{ZERO}\''
        if section == "bf16":
            hint += ', or set "bf16_optimizer_states" to true'
        message = f"'{path[-1]}' needs the optimizer on the CPU, and 'offload_optimizer' is off"
        yield Hit(path, message, hint)
