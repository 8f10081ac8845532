"""The optimizer, when its states are offloaded."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.params import offload_only
from zerokit.findings import Edit, Remove
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    optimizer_name,
    optimizer_params,
    optimizer_type,
    spec,
    torch_adam,
)
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject

_CHANGES_RESULTS = frozenset({"lr_decay", "initial_accumulator_value", "maximize"})


@rule("optimizer-argument")
def optimizer_argument_place(subject: Subject) -> Iterator[Hit]:
    """An argument that the optimizer accepts only on the GPU, or only on the CPU"""
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


@rule("slow-host-optimizer")
def slow_host_optimizer(subject: Subject) -> Iterator[Hit]:
    """An offloaded optimizer that runs PyTorch's slow CPU code"""
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


@rule("masters-optimizer")
def masters_optimizer(subject: Subject) -> Iterator[Hit]:
    """16-bit master weights with an optimizer other than Adam"""
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
