"""The YAML of ``accelerate launch``: what of it reaches DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.key_index import places_of
from zerokit.documents import KeyPath
from zerokit.errors import nearest
from zerokit.findings import Move, Remove, SetValue
from zerokit.lint.launch_options import (
    DEEPSPEED_KEYS,
    DISTRIBUTED_TYPES,
    MULTINODE_LAUNCHERS,
    OLD_TOP_KEYS,
    OTHER_OPTIONS,
    PRECISIONS,
    REFUSED_WITH_FILE,
    TOP_KEYS,
)
from zerokit.lint.rule import Hit, launch_rule
from zerokit.lint.rules.accelerate import SWAP

SECTION = "deepspeed_config"
_FILE = "deepspeed_config_file"
_DEVICES = ("none", "cpu", "nvme")
_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")
"""Words that `str_to_bool` in `accelerate/utils/environment.py` knows."""


def is_local(data: Mapping[str, Any]) -> bool:
    """Whether accelerate starts the processes itself, rather than on SageMaker."""
    return bool(data.get("compute_environment", "LOCAL_MACHINE") == "LOCAL_MACHINE")


def runs_deepspeed(data: Mapping[str, Any]) -> bool:
    """Whether ``accelerate launch`` starts DeepSpeed with this file."""
    return is_local(data) and data.get("distributed_type") == "DEEPSPEED"


def deepspeed_section(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What stands in `deepspeed_config`, if DeepSpeed is started."""
    section = data.get(SECTION)
    return section if runs_deepspeed(data) and isinstance(section, Mapping) else {}


def names_file(section: Mapping[str, Any]) -> bool:
    name = section.get(_FILE)
    return isinstance(name, str) and name != "none"


def _stage(section: Mapping[str, Any]) -> int | None:
    """The stage that the file leads to, 2 unless given; None if it names a ds_config or is not valid."""
    stage = section.get("zero_stage")
    if names_file(section):
        return None
    if stage is None:
        return 2
    return int(stage) if str(stage).isdigit() else None


def _is_true(value: Any) -> bool:
    return str(value).lower() in _TRUE


@launch_rule("launch-unknown-key")
def launch_unknown_key(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A key that accelerate does not know"""
    if not is_local(data):
        return
    for key in data:
        if key in TOP_KEYS or key in OLD_TOP_KEYS:
            continue
        if key in DEEPSPEED_KEYS:
            message = f"accelerate refuses '{key}' at the top of the file"
            yield Hit((key,), message, f"Move it into '{SECTION}'", (Move((key,), (SECTION, key)),))
        else:
            hint = _meant(str(key), TOP_KEYS - data.keys())
            if key in OTHER_OPTIONS:
                hint = f"Remove it: it is an option, --{key}, of accelerate launch"
            yield Hit((key,), f"accelerate refuses '{key}', which it does not know", hint)
    section = deepspeed_section(data)
    for key in section:
        if key not in DEEPSPEED_KEYS and key not in OTHER_OPTIONS:
            hint = _meant_in_section(str(key), DEEPSPEED_KEYS - section.keys())
            yield Hit((SECTION, key), f"accelerate ignores '{key}', which it does not know", hint)


def _meant(name: str, known: frozenset[str], otherwise: str = "Remove it") -> str:
    close = nearest(name, sorted(known))
    return f"Did you mean '{close}'?" if close else otherwise


def _meant_in_section(name: str, known: frozenset[str]) -> str:
    """What to do with a key that may be one of a ds_config: of these some are near one of accelerate's."""
    places, into_one = places_of(name), f"Put it into a ds_config, and name that as '{_FILE}'"
    if () in places:
        return into_one
    # Deeper inside, names of one word such as `device` tell nothing.
    return _meant(name, known, into_one if places and "_" in name else "Remove it")


@launch_rule("launch-two-configs")
def launch_two_configs(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A ds_config together with keys that it should set"""
    section = deepspeed_section(data)
    if not names_file(section):
        return
    paths: list[KeyPath] = [(SECTION, key) for key in section if key in REFUSED_WITH_FILE]
    if data.get("mixed_precision") is not None:
        paths.append(("mixed_precision",))
    for path in paths:
        message = f"accelerate refuses '{path[-1]}' together with '{_FILE}'"
        yield Hit(path, message, "Remove the key; the ds_config says it", (Remove(path),))


@launch_rule("launch-type")
def launch_type(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A 'distributed_type' that does not use DeepSpeed"""
    path = ("distributed_type",)
    if not is_local(data):
        return
    kind = data.get("distributed_type")
    kind = "NO" if kind is False else kind  # which is how YAML reads it without quotes
    if kind is None:
        hint = 'Add "distributed_type": DEEPSPEED'
        yield Hit((), "'distributed_type' is absent, and accelerate refuses a file without it", hint)
    elif kind not in DISTRIBUTED_TYPES:
        meant = str(kind).upper()
        fix = (SetValue(path, meant),) if meant in DISTRIBUTED_TYPES else ()
        hint = f"Write {meant}" if fix else "Write DEEPSPEED"
        yield Hit(path, f"accelerate has no 'distributed_type' {kind}", hint, fix)
    elif kind != "DEEPSPEED" and data.get(SECTION):
        message = f"with 'distributed_type' {kind} accelerate does not read '{SECTION}'"
        yield Hit(path, message, f"Write DEEPSPEED, or remove '{SECTION}'", severity="warning")


@launch_rule("launch-precision")
def launch_precision(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A 'mixed_precision' that accelerate does not know"""
    path, value = ("mixed_precision",), data.get("mixed_precision")
    if not runs_deepspeed(data) or value is None:
        return
    if value is False:
        message = "YAML reads this 'mixed_precision' as false, and accelerate wants a word"
        yield Hit(path, message, 'Write "no", in quotes', (SetValue(path, "no"),))
    elif str(value).lower() not in PRECISIONS:
        close = nearest(str(value).lower(), PRECISIONS) or {"bfloat16": "bf16", "float16": "fp16"}.get(
            str(value)
        )
        hint = f'Write "{close}"' if close else f"Write one of {', '.join(PRECISIONS)}"
        yield Hit(path, f"accelerate has no 'mixed_precision' {value}", hint)


@launch_rule("launch-value")
def launch_value(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A value that accelerate or DeepSpeed refuses"""
    section = deepspeed_section(data)
    for key, value in section.items():
        if key == "deepspeed_multinode_launcher" and data.get("num_machines", 1) == 1:
            continue
        wanted = None if value is None else _wanted(str(key), value)
        if wanted is not None:
            yield Hit((SECTION, key), f"'{key}' cannot be {value!r}", f"Write {wanted}")


def _wanted(key: str, value: Any) -> str | None:
    """What the key takes, if not this value."""
    text = str(value).lower()
    takes = {
        "zero_stage": (text in ("0", "1", "2", "3"), "0, 1, 2 or 3"),
        "offload_optimizer_device": (text in _DEVICES, "none, cpu or nvme"),
        "offload_param_device": (text in _DEVICES, "none, cpu or nvme"),
        "gradient_accumulation_steps": (
            text == "auto" or (text.isdigit() and int(text) > 0),
            "a whole number",
        ),
        "gradient_clipping": (text == "auto" or _is_number(text), "a number, or auto"),
        "zero3_init_flag": (text in _TRUE + _FALSE, "true or false"),
        "zero3_save_16bit_model": (text in ("true", "false"), "true or false"),
        "deepspeed_multinode_launcher": (
            value in MULTINODE_LAUNCHERS,
            f"one of {', '.join(MULTINODE_LAUNCHERS)}",
        ),
    }
    suits, wanted = takes.get(key, (True, ""))
    return None if suits else wanted


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


@launch_rule("launch-nvme")
def launch_nvme(data: Mapping[str, Any]) -> Iterator[Hit]:
    """NVMe offload set in the launch file"""
    section = deepspeed_section(data)
    if names_file(section):
        return
    for key in ("offload_optimizer_device", "offload_param_device"):
        if str(section.get(key)).lower() == "nvme":
            message = (
                f"accelerate does not pass on '{key.replace('device', 'nvme_path')}': NVMe gets no folder"
            )
            yield Hit((SECTION, key), message, f"Write a ds_config, and name it as '{_FILE}'")


@launch_rule("launch-offload-stage")
def launch_offload_stage(data: Mapping[str, Any]) -> Iterator[Hit]:
    """Offload in a stage that does not support it"""
    section = deepspeed_section(data)
    stage = _stage(section)
    for key, least in (("offload_param_device", 3), ("offload_optimizer_device", 1)):
        if stage is not None and stage < least and str(section.get(key)).lower() in ("cpu", "nvme"):
            default = "" if "zero_stage" in section else ", the default"
            needed = "stage 3" if least == 3 else "a stage"
            message = f"'{key}' needs ZeRO {needed}; the stage is {stage}{default}"
            yield Hit((SECTION, key), message, "Raise 'zero_stage', or write none")


@launch_rule("launch-zero3-keys")
def launch_zero3_keys(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A key for stage 3, in another stage"""
    section = deepspeed_section(data)
    stage = _stage(section)
    if stage is None or stage == 3:
        return
    for key in ("zero3_init_flag", "zero3_save_16bit_model"):
        if _is_true(section.get(key)):
            message = f"'{key}' acts in ZeRO stage 3 only; the stage is {stage}"
            yield Hit((SECTION, key), message, "Use stage 3, or write false")


@launch_rule("launch-unsaved-weights")
def launch_unsaved_weights(data: Mapping[str, Any]) -> Iterator[Hit]:
    """Stage 3 without gathering the model for saving"""
    section = deepspeed_section(data)
    if _stage(section) == 3 and str(section.get("zero3_save_16bit_model")).lower() != "true":
        key = "zero3_save_16bit_model"
        path: KeyPath = (SECTION, key) if key in section else (SECTION,)
        message = f"'{key}' is not true, so accelerate cannot save the model's weights in stage 3"
        yield Hit(path, message, f"Set \"{key}\" to true in '{SECTION}'")


@launch_rule("launch-clipping-off")
def launch_clipping_off(data: Mapping[str, Any]) -> Iterator[Hit]:
    """Clipping switched off, which DeepSpeed switches on again"""
    section = deepspeed_section(data)
    value = section.get("gradient_clipping")
    if names_file(section) or value is None or not _is_number(str(value)) or float(str(value)) != 0:
        return
    message = "accelerate drops a 'gradient_clipping' of 0, and DeepSpeed then clips at 1.0"
    yield Hit((SECTION, "gradient_clipping"), message, f"Set it to 0 in a ds_config named by '{_FILE}'")


_COMPARED = ("gradient_accumulation_steps", "gradient_clipping")
"""Keys of `deepspeed_config` that the Trainer compares with gradient_accumulation_steps and max_grad_norm."""
_PRECISIONS: Mapping[str, str] = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
"""`mixed_precision` -> the Trainer's argument that must be true: beside fp8 accelerate writes bf16."""


@launch_rule("launch-fixed-value")
def launch_fixed_value(data: Mapping[str, Any]) -> Iterator[Hit]:
    """A value that overrides the script"""
    section = deepspeed_section(data)
    if names_file(section) or not section:
        return
    fixed = [key for key in _COMPARED if _is_fixed(section.get(key))]
    if fixed:
        values = " and ".join(f"{key} {section[key]}" for key in fixed)
        message = f"this file has {values}, and the Trainer stops if TrainingArguments differ"
        hint = f"Make them equal, or write auto{' for each' * (len(fixed) > 1)}"
        yield Hit((SECTION, fixed[0]), message, hint)
    argument = _PRECISIONS.get(str(data.get("mixed_precision")).lower())
    if argument is not None:
        message = f"the Trainer stops unless TrainingArguments also have {argument}"
        hint = f"See that the script sets {argument}, or remove the key"
        yield Hit(("mixed_precision",), message, hint)


def _is_fixed(value: Any) -> bool:
    """Whether the value is compared: "auto" is filled in, and a 0 is dropped (`launch-clipping-off`)."""
    try:
        return float(str(value)) != 0
    except ValueError:
        return False


@launch_rule("launch-optimizer-swap")
def launch_optimizer_swap(data: Mapping[str, Any]) -> Iterator[Hit]:
    """Offload that turns the script's optimizer into Adam"""
    section = deepspeed_section(data)
    if names_file(section) or str(section.get("zero_stage", 2)) == "0":
        return
    if str(section.get("offload_optimizer_device")).lower() in ("cpu", "nvme"):
        yield Hit((SECTION, "offload_optimizer_device"), SWAP, "Use AdamW, or a ds_config in its place")
