"""The YAML of ``accelerate launch``: what it decides over the head of the script that it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.lint.rule import Hit, launch_rule
from zerokit.lint.rules.accelerate import SWAP
from zerokit.lint.rules.accelerate_launch import SECTION, deepspeed_section, launch_file, names_file

_COMPARED = ("gradient_accumulation_steps", "gradient_clipping")
"""Keys of `deepspeed_config` that the Trainer compares with gradient_accumulation_steps and max_grad_norm."""
_PRECISIONS: Mapping[str, str] = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
"""`mixed_precision` -> the Trainer's argument that must be true: beside fp8 accelerate writes bf16."""


@launch_rule(
    "launch-fixed-value",
    severity="info",
    bad=launch_file(section={"zero_stage": 2, "gradient_accumulation_steps": 4}),
    good=launch_file(section={"zero_stage": 2, "gradient_accumulation_steps": "auto"}),
)
def launch_fixed_value(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A value that overrides the script

    The Trainer compares `gradient_accumulation_steps` and `gradient_clipping` with its own arguments, and
    stops where they differ: "Please correct the following DeepSpeed config values that mismatch
    TrainingArguments values". It does so with a `mixed_precision` of fp16 or bf16, too, unless its own
    argument asks for either. A script with an `Accelerator` of its own trains with the file's steps and norm,
    whatever its arguments are.

    "auto" for the two leaves them to the Trainer, and the steps to the `Accelerator`.

    Source: `DeepSpeedPlugin.__post_init__` in `accelerate/utils/dataclasses.py`, `_prepare_deepspeed` in
    `accelerate/accelerator.py` (1.15); `propagate_args_to_deepspeed` in transformers
    `integrations/deepspeed.py`.
    """
    section = deepspeed_section(data)
    if names_file(section) or not section:
        return
    fixed = [key for key in _COMPARED if _is_fixed(section.get(key))]
    if fixed:
        names, equal = " and ".join(f"'{key}'" for key in fixed), "equals" if len(fixed) == 1 else "equal"
        message = f"the Trainer insists that {names} {equal} its arguments"
        hint = "Write auto" if len(fixed) == 1 else "Write auto for each"
        yield Hit((SECTION, fixed[0]), message, hint)
    argument = _PRECISIONS.get(str(data.get("mixed_precision")).lower())
    if argument is not None:
        message = f"the Trainer insists that its arguments request {argument}, too"
        hint = f"See that the script sets {argument}, or remove the key"
        yield Hit(("mixed_precision",), message, hint)


def _is_fixed(value: Any) -> bool:
    """Whether the value is compared: "auto" is filled in, and a 0 is dropped (`launch-clipping-off`)."""
    try:
        return float(str(value)) != 0
    except ValueError:
        return False


@launch_rule(
    "launch-optimizer-swap",
    severity="info",
    bad=launch_file(section={"zero_stage": 2, "offload_optimizer_device": "cpu"}),
    good=launch_file(section={"zero_stage": 2, "offload_optimizer_device": "none"}),
)
def launch_optimizer_swap(data: Mapping[str, Any]) -> Iterator[Hit]:
    """Offload that turns the script's optimizer into Adam

    With an `offload_optimizer_device` accelerate puts a DeepSpeedCPUAdam in place of whatever the script or
    the Trainer's `optim` made; `accelerate-optimizer-swap` says at which it stops. The launch file has no
    key against it.

    To keep another optimizer, write a ds_config with `"zero_force_ds_cpu_optimizer": false` and name it as
    `deepspeed_config_file`.

    Source: `map_pytorch_optim_to_deepspeed` in accelerate `utils/deepspeed.py`, `_prepare_deepspeed` in
    `accelerator.py` (1.15).
    """
    section = deepspeed_section(data)
    if names_file(section) or str(section.get("zero_stage", 2)) == "0":
        return
    if str(section.get("offload_optimizer_device")).lower() in ("cpu", "nvme"):
        yield Hit((SECTION, "offload_optimizer_device"), SWAP, "Use AdamW, or a ds_config in its place")
