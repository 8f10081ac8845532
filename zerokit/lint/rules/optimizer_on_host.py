"""The optimizer, when its states are offloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.base import ZERO
from zerokit.config.optimizer_params import offload_only
from zerokit.findings import Edit, Remove
from zerokit.lint.examples import ONE_SAMPLE
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    optimizer_name,
    optimizer_params,
    optimizer_type,
    spec,
    torch_adam,
)
from zerokit.lint.rule import Hit, Rules, unused_key
from zerokit.lint.subject import Subject

rule = Rules("optimizer")
_CPU: Mapping[str, Any] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
_MASTERS = {"enabled": True, "bf16_master_weights_and_grads": True}
_STATES_TOO = {**_MASTERS, "bf16_optimizer_states": True}
_FORCE = "zero_force_ds_cpu_optimizer"

_CHANGES_RESULTS = frozenset({"lr_decay", "initial_accumulator_value", "maximize"})


def _offloaded(kind: str, **params: Any) -> dict[str, Any]:
    """A config for an example."""
    return {**ONE_SAMPLE, "optimizer": {"type": kind, "params": params}, ZERO: _CPU}


@rule(
    "optimizer-argument",
    stops=True,
    bad=_offloaded("AdamW", set_grad_none=True),
    good=_offloaded("AdamW", lr=1e-4),
)
def optimizer_argument_place(subject: Subject) -> Iterator[Hit]:
    """An argument that the optimizer accepts only on the GPU, or only on the CPU

    Under `offload_optimizer` DeepSpeed builds another class than without: DeepSpeedCPUAdam for FusedAdam,
    DeepSpeedCPULion for FusedLion, DeepSpeedCPUAdagrad for PyTorch's Adagrad. Their arguments are not the
    same, and an unknown one stops the run when it starts: "unexpected keyword argument".

    Only `fp32_optimizer_states` of Adam and Muon is ignored where it means nothing.

    Source: `_configure_basic_optimizer` and `get_optimizer_configuration` in `deepspeed/runtime/engine.py`;
    the constructors in `deepspeed/ops/adam/`, `deepspeed/ops/lion/` and `deepspeed/ops/adagrad/`.
    """
    params, offloaded, name = optimizer_params(subject), subject.offloads_optimizer, optimizer_name(subject)
    if params is None or offloaded is None or name is None:
        return
    for key in sorted(params.model_fields_set & offload_only(type(params), offloaded=not offloaded)):
        path = (*OPTIMIZER, key)
        fix: tuple[Edit, ...] = () if key in _CHANGES_RESULTS else (Remove(path),)
        where = "offloaded" if offloaded else "not offloaded"
        if path in subject.unused:
            yield Hit(path, f"'{key}' {subject.unused[path].reason}", "Remove the key", fix, "warning")
        elif key != "fp32_optimizer_states" or name not in ("adam", "adamw", "muon"):
            message = f"'{optimizer_type(subject)}' does not take '{key}' where it is {where}"
            hint = "Remove the key" if fix else "Remove the key, or do not offload the optimizer"
            yield Hit(path, message, hint, fix)


@rule(
    "slow-host-optimizer",
    severity="warning",
    bad=_offloaded("AdamW", torch_adam=True),
    good=_offloaded("AdamW", lr=1e-4),
)
def slow_host_optimizer(subject: Subject) -> Iterator[Hit]:
    """An offloaded optimizer that runs PyTorch's slow CPU code

    DeepSpeed has vectorised CPU code for Adam, AdamW, Adagrad and Lion, and uses Adam's for Muon's other
    half. Every other optimizer, and Adam with `torch_adam`, is stepped by PyTorch on the host, several times
    slower, while the GPUs wait. DeepSpeed reports nothing.

    Source: `_configure_basic_optimizer` in `deepspeed/runtime/engine.py`; the docstring of
    `DeepSpeedCPUAdam`, which mentions a factor of 5 to 7.
    """
    optimizer, is_offloaded = spec(subject), subject.offloads_optimizer and subject.stage in (1, 2, 3)
    if optimizer is None or optimizer.name == "Lamb" or not is_offloaded:
        return
    if torch_adam(subject):
        message = "'torch_adam' steps the offloaded optimizer with PyTorch's code for the host, which is slow"
        yield Hit((*OPTIMIZER, "torch_adam"), message, "Remove the key, for DeepSpeedCPUAdam")
    elif not optimizer.has_cpu_code:
        kind = optimizer_type(subject)
        message = f"DeepSpeed has no code for '{kind}' on the host, so PyTorch steps it there, slowly"
        yield Hit(("optimizer", "type"), message, "Use AdamW, or do not offload the optimizer")


@rule(
    "lamb-offload",
    stops=True,
    bad={**_offloaded("Lamb", lr=1e-3), "zero_allow_untested_optimizer": True},
    good=_offloaded("AdamW", lr=1e-4),
)
def lamb_offload(subject: Subject) -> Iterator[Hit]:
    """Lamb with optimizer offload

    DeepSpeed's Lamb is a CUDA kernel. Offload leaves its weights and states in host memory, where the kernel
    cannot read them, so that the first step fails.

    Source: `FusedLamb.step` in `deepspeed/ops/lamb/fused_lamb.py`, which calls
    `csrc/lamb/fused_lamb_cuda.cpp`: "must be a CUDA tensor".
    """
    if optimizer_name(subject) == "lamb" and subject.offloads_optimizer and subject.stage in (1, 2, 3):
        message = "'Lamb' has no code for the host, to which its states are offloaded"
        yield Hit(("optimizer", "type"), message, "Use AdamW, or do not offload the optimizer")


@rule(
    "masters-optimizer",
    stops=True,
    bad={**_offloaded("Lion", lr=1e-4), "bf16": _MASTERS},
    good={**_offloaded("AdamW", lr=1e-4), "bf16": _MASTERS},
)
def masters_optimizer(subject: Subject) -> Iterator[Hit]:
    """16-bit master weights with an optimizer other than Adam

    Where the optimizer is offloaded, `bf16_master_weights_and_grads` and `fp16_master_weights_and_grads` go
    with DeepSpeedCPUAdam and nothing else. Every other class, `torch_adam` included, is refused with an
    assertion once the model is loaded.

    Source: `_enforce_cpu_offload` in `deepspeed/runtime/zero/stage_1_and_2.py` and
    `deepspeed/runtime/zero/stage3.py`.
    """
    name = optimizer_name(subject)
    suits = name in ("adam", "adamw") and not torch_adam(subject)
    if name is None or suits or not subject.offloads_optimizer or subject.stage not in (1, 2, 3):
        return
    for section in ("bf16", "fp16"):
        path = (section, f"{section}_master_weights_and_grads")
        if subject.value(*path) is True:
            kind = "PyTorch's AdamW" if torch_adam(subject) else f"'{optimizer_type(subject)}'"
            message = f"'{path[1]}' with offload needs DeepSpeed's Adam or AdamW, not {kind}"
            yield Hit(path, message, "Use AdamW without 'torch_adam', or remove the key")


@rule(
    "optimizer-states-dtype",
    severity="warning",
    bad={**_offloaded("AdamW", lr=1e-4, fp32_optimizer_states=True), "bf16": _STATES_TOO},
    good={**_offloaded("AdamW", lr=1e-4), "bf16": _STATES_TOO},
)
def optimizer_states_dtype(subject: Subject) -> Iterator[Hit]:
    """Optimizer states requested in fp32 and in bf16

    With `bf16.bf16_optimizer_states` an offloaded Adam keeps its averages in bf16, and a
    `fp32_optimizer_states` of true is overridden with no more than a line in the log.

    Source: `get_optimizer_configuration` in `deepspeed/runtime/engine.py`.
    """
    if subject.offloads_optimizer:
        path = (*OPTIMIZER, "fp32_optimizer_states")
        yield from unused_key(subject, path, "Remove one of the two", removable=False)


@rule(
    "script-optimizer-offload",
    severity="warning",
    bad={**ONE_SAMPLE, ZERO: _CPU},
    good=_offloaded("AdamW", lr=1e-4),
    given={"target": "deepspeed"},
)
def script_optimizer_offload(subject: Subject) -> Iterator[Hit]:
    """Optimizer offload with an optimizer made by the script

    DeepSpeed then takes `DeepSpeedCPUAdam` and `DeepSpeedCPULion` and refuses every other, PyTorch's AdamW
    too, once the model is loaded. `zero_force_ds_cpu_optimizer` false allows others, which run PyTorch's
    slower code on the host. (accelerate, and with it the Trainer, puts DeepSpeed's class in place by itself.)

    Put the optimizer into the file, or make a `deepspeed.ops.adam.DeepSpeedCPUAdam` in the script.

    Source: `_configure_optimizer` in `deepspeed/runtime/engine.py`.
    """
    if (
        subject.run.target != "deepspeed"
        or not subject.is_absent("optimizer")
        or subject.stage not in (1, 2, 3)
    ):
        return
    if subject.offloads_optimizer and subject.value(_FORCE) is True:
        message = "offload without 'optimizer' refuses a script's own, unless it is DeepSpeed's for the CPU"
        place = (ZERO, "offload_optimizer") if subject.is_set(ZERO, "offload_optimizer") else (ZERO,)
        hint = 'Add "optimizer", or use deepspeed.ops.adam.DeepSpeedCPUAdam in the script'
        yield Hit(place, message, hint)
