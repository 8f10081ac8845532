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
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("optimizer")
_CPU: Mapping[str, Any] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
_MASTERS = {"enabled": True, "bf16_master_weights_and_grads": True}
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
