"""The YAML of ``accelerate launch``: what of it reaches DeepSpeed."""

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.config.key_index import places_of
from zerokit.config.launch_file import (
    FILE_KEY,
    PLACES_IN_DS_CONFIG,
    SECTION,
    is_local,
    named_ds_config,
    runs_deepspeed,
)
from zerokit.documents import KeyPath, dotted, value_at
from zerokit.errors import did_you_mean, nearest
from zerokit.findings import Move, Remove, SetValue
from zerokit.lint.launch import Launch
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
from zerokit.lint.rules.accelerate_parallelism import SECTION as GROUPS

_DEVICES = ("none", "cpu", "nvme")
_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")
"""Words that `str_to_bool` in `accelerate/utils/environment.py` knows."""


def _stage(launch: Launch) -> int | None:
    """The stage that the file leads to, 2 unless given; None if it names a ds_config or is not valid."""
    stage = launch.section.get("zero_stage")
    if launch.names_file:
        return None
    if stage is None:
        return 2
    return int(stage) if str(stage).isdigit() else None


@launch_rule("launch-unknown-key")
def launch_unknown_key(launch: Launch) -> Iterator[Hit]:
    """A key that accelerate does not know"""
    if not is_local(launch.data):
        return
    for key in launch.data:
        if key in TOP_KEYS or key in OLD_TOP_KEYS:
            continue
        if key in DEEPSPEED_KEYS:
            message = f"accelerate refuses '{key}' at the top of the file"
            yield Hit((key,), message, f"Move it into '{SECTION}'", (Move((key,), (SECTION, key)),))
        else:
            hint = _meant(str(key), TOP_KEYS - launch.data.keys())
            if key in OTHER_OPTIONS:
                hint = f"Remove it: it is an option, --{key}, of accelerate launch"
            yield Hit((key,), f"accelerate refuses '{key}', which it does not know", hint)
    section = launch.section
    for key in section:
        if key not in DEEPSPEED_KEYS and key not in OTHER_OPTIONS:
            hint = _meant_in_section(str(key), DEEPSPEED_KEYS - section.keys())
            yield Hit((SECTION, key), f"accelerate ignores '{key}', which it does not know", hint)
    groups = launch.data.get(GROUPS)
    known = {option for option in OTHER_OPTIONS if option.startswith(f"{GROUPS}_")}
    for key in sorted(groups.keys() - known, key=str) if isinstance(groups, Mapping) else ():
        hint = did_you_mean(f"{GROUPS}_{str(key).removeprefix(f'{GROUPS}_')}", sorted(known)) or "Remove it"
        yield Hit((GROUPS, key), f"accelerate ignores '{key}', which it does not know", hint)


def _meant(name: str, known: frozenset[str], otherwise: str = "Remove it") -> str:
    close = nearest(name, sorted(known))
    return f"Did you mean '{close}'?" if close else otherwise


def _meant_in_section(name: str, known: frozenset[str]) -> str:
    """What to do with a key that may be one of a ds_config: of these some are near one of accelerate's."""
    places, into_one = places_of(name), f"Put it into a ds_config, and name that as '{FILE_KEY}'"
    if () in places:
        return into_one
    # Deeper inside, names of one word such as `device` tell nothing.
    return _meant(name, known, into_one if places and "_" in name else "Remove it")


@launch_rule("launch-two-configs")
def launch_two_configs(launch: Launch) -> Iterator[Hit]:
    """A ds_config together with keys that it should set"""
    if not launch.names_file:
        return
    paths: list[KeyPath] = [(SECTION, key) for key in launch.section if key in REFUSED_WITH_FILE]
    if launch.data.get("mixed_precision") is not None:
        paths.append(("mixed_precision",))
    for path in paths:
        message = f"accelerate refuses '{path[-1]}' together with '{FILE_KEY}'"
        hint, agrees = _in_place_of(launch, str(path[-1]))
        yield Hit(path, message, hint, (Remove(path),) if agrees else ())


def _in_place_of(launch: Launch, key: str) -> tuple[str, bool]:
    """What to do about a key that the ds_config should set, and whether removing it is enough."""
    if key == "mixed_precision":
        return _precision_in_place_of(launch)
    path, value = PLACES_IN_DS_CONFIG.get(key, (ZERO,)), launch.section[key]
    found = launch.in_ds_config(path)
    if launch.ds_config is None and value is not None:
        return f"Remove the key, and see that the ds_config has {dotted(path)} {value}", False
    if value is None or str(found).lower() == str(value).lower():
        return "Remove the key; the ds_config says it", True
    if found is None and str(value).lower() in ("none", "false"):
        return "Remove the key; the ds_config says it", True
    has = "does not have it" if found is None else f"has {found!r}"
    return f"Remove the key, and see that {dotted(path)} is right in the ds_config, which {has}", False


def _precision_in_place_of(launch: Launch) -> tuple[str, bool]:
    """As `_in_place_of`, for `mixed_precision`: where the ds_config leaves it open, the script decides."""
    word = str(launch.data["mixed_precision"]).lower()
    section = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16"}.get(word)
    if section is None:
        return "Remove the key; the ds_config says it", True
    if launch.ds_config is None:
        return f"Remove the key, and see that the ds_config has {section} enabled", True
    found = {name: launch.in_ds_config((name, "enabled")) for name in ("bf16", "fp16")}
    if found[section] is True:
        return "Remove the key; the ds_config says it", True
    if True in found.values():
        other = "fp16" if section == "bf16" else "bf16"
        return f"Remove the key: the ds_config has {other}; or write {section} there", False
    has = "has false" if found[section] is False else "leaves it to the script"
    hint = f"Remove the key, and set '{section}.enabled' to true in the ds_config, which {has}"
    return hint, False


@launch_rule("launch-ds-config")
def launch_ds_config(launch: Launch) -> Iterator[Hit]:
    """A ds_config that is not found"""
    named = named_ds_config(launch.section)
    if named is None or launch.finds_file:
        return
    message = f"'{named}' is not here: accelerate looks for it from the folder in which the run starts"
    elsewhere = named.startswith(("/", "~", "$", "{", "<"))
    yield Hit((SECTION, FILE_KEY), message, "Check the path", severity="info" if elsewhere else None)


@launch_rule("launch-type")
def launch_type(launch: Launch) -> Iterator[Hit]:
    """A 'distributed_type' that does not use DeepSpeed"""
    path = ("distributed_type",)
    if not is_local(launch.data):
        return
    kind = launch.data.get("distributed_type")
    kind = "NO" if kind is False else kind  # which is how YAML reads it without quotes
    if kind is None:
        hint = 'Add "distributed_type": DEEPSPEED'
        yield Hit((), "'distributed_type' is absent, and accelerate refuses a file without it", hint)
    elif kind not in DISTRIBUTED_TYPES:
        meant = str(kind).upper()
        fix = (SetValue(path, meant),) if meant in DISTRIBUTED_TYPES else ()
        hint = f"Write {meant}" if fix else "Write DEEPSPEED"
        yield Hit(path, f"accelerate has no 'distributed_type' {kind}", hint, fix)
    elif kind != "DEEPSPEED" and launch.data.get(SECTION):
        message = f"with 'distributed_type' {kind} accelerate does not read '{SECTION}'"
        yield Hit(path, message, f"Write DEEPSPEED, or remove '{SECTION}'", severity="warning")


@launch_rule("launch-precision")
def launch_precision(launch: Launch) -> Iterator[Hit]:
    """A 'mixed_precision' that accelerate does not know"""
    path, value = ("mixed_precision",), launch.data.get("mixed_precision")
    if not runs_deepspeed(launch.data) or value is None:
        return
    if value is False:
        message = "YAML reads this 'mixed_precision' as false, and accelerate wants a word"
        yield Hit(path, message, 'Write "no", in quotes', (SetValue(path, "no"),))
    elif str(value).lower() not in PRECISIONS:
        close = nearest(str(value).lower(), PRECISIONS) or {"bfloat16": "bf16", "float16": "fp16"}.get(str(value))
        hint = f'Write "{close}"' if close else f"Write one of {', '.join(PRECISIONS)}"
        yield Hit(path, f"accelerate has no 'mixed_precision' {value}", hint)


@launch_rule("launch-value")
def launch_value(launch: Launch) -> Iterator[Hit]:
    """A value that accelerate or DeepSpeed refuses"""
    section = launch.section
    for key, value in section.items():
        if key == "deepspeed_multinode_launcher" and launch.data.get("num_machines", 1) == 1:
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
        "gradient_accumulation_steps": (text == "auto" or (text.isdigit() and int(text) > 0), "a whole number"),
        "gradient_clipping": (text == "auto" or _is_number(text), "a number"),
        "zero3_init_flag": (text in _TRUE + _FALSE, "true or false"),
        "zero3_save_16bit_model": (text in ("true", "false"), "true or false"),
        "deepspeed_multinode_launcher": (value in MULTINODE_LAUNCHERS, f"one of {', '.join(MULTINODE_LAUNCHERS)}"),
    }
    suits, wanted = takes.get(key, (True, ""))
    return None if suits else wanted


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


@launch_rule("launch-nvme")
def launch_nvme(launch: Launch) -> Iterator[Hit]:
    """NVMe offload set in the launch file"""
    section = launch.section
    if launch.names_file:
        return
    for key in ("offload_optimizer_device", "offload_param_device"):
        if str(section.get(key)).lower() == "nvme":
            message = f"accelerate does not pass on '{key.replace('device', 'nvme_path')}': NVMe gets no folder"
            yield Hit((SECTION, key), message, f"Write a ds_config, and name it as '{FILE_KEY}'")


@launch_rule("launch-offload-stage")
def launch_offload_stage(launch: Launch) -> Iterator[Hit]:
    """Offload in a stage that does not support it"""
    section = launch.section
    stage = _stage(launch)
    for key, least in (("offload_param_device", 3), ("offload_optimizer_device", 1)):
        if stage is not None and stage < least and str(section.get(key)).lower() in ("cpu", "nvme"):
            default = "" if "zero_stage" in section else ", the default"
            needed = "stage 3" if least == 3 else "a stage"
            message = f"'{key}' needs ZeRO {needed}; the stage is {stage}{default}"
            yield Hit((SECTION, key), message, "Raise 'zero_stage', or write none")


@launch_rule("launch-zero3-keys")
def launch_zero3_keys(launch: Launch) -> Iterator[Hit]:
    """A key for stage 3, in another stage"""
    named = launch.in_ds_config((ZERO, "stage"))
    stage = _stage(launch) if named is None else named
    if not isinstance(stage, int) or stage == 3:
        return
    where = " in the ds_config" * launch.names_file
    for key in ("zero3_init_flag", *(("zero3_save_16bit_model",) * (not launch.names_file))):
        if str(launch.section.get(key)).lower() in _TRUE:
            message = f"'{key}' acts in ZeRO stage 3 only; the stage is {stage}{where}"
            yield Hit((SECTION, key), message, f"Use stage 3{where}, or write false")


@launch_rule("launch-unsaved-weights")
def launch_unsaved_weights(launch: Launch) -> Iterator[Hit]:
    """Stage 3 without gathering the model for saving"""
    section = launch.section
    if _stage(launch) == 3 and str(section.get("zero3_save_16bit_model")).lower() != "true":
        key = "zero3_save_16bit_model"
        path: KeyPath = (SECTION, key) if key in section else (SECTION,)
        message = f"'{key}' is not true, so accelerate cannot save the model's weights in stage 3"
        yield Hit(path, message, f"Set \"{key}\" to true in '{SECTION}'")


@launch_rule("launch-clipping-off")
def launch_clipping_off(launch: Launch) -> Iterator[Hit]:
    """Clipping switched off, which DeepSpeed switches on again"""
    section = launch.section
    value = section.get("gradient_clipping")
    if launch.names_file or value is None or not _is_number(str(value)) or float(str(value)) != 0:
        return
    message = "accelerate drops a 'gradient_clipping' of 0, and DeepSpeed then clips at 1.0"
    yield Hit((SECTION, "gradient_clipping"), message, f"Set it to 0 in a ds_config named by '{FILE_KEY}'")


_PRECISIONS: Mapping[str, str] = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
"""`mixed_precision` -> the Trainer's argument that must be true: beside fp8 accelerate writes bf16."""
_STEPS, _CLIPPING = "gradient_accumulation_steps", "gradient_clipping"


@launch_rule("launch-fixed-value")
def launch_fixed_value(launch: Launch) -> Iterator[Hit]:
    """A value that overrides the script"""
    if launch.names_file or not launch.section:
        return
    yield from _fixed_steps(launch, launch.section.get(_STEPS))
    if launch.target == "accelerate":
        return  # the file's norm and precision are where accelerate looks for them
    value = launch.section.get(_CLIPPING)
    if _is_fixed(value):
        message = f"the Trainer stops unless TrainingArguments have max_grad_norm {value}, as this file has"
        yield Hit((SECTION, _CLIPPING), message, "Make them equal, or remove the key", severity="info")
    argument = _PRECISIONS.get(str(launch.data.get("mixed_precision")).lower())
    if argument is not None:
        message = f"the Trainer stops unless TrainingArguments also have {argument}"
        hint = f"See that the script sets {argument}, or remove the key"
        yield Hit(("mixed_precision",), message, hint, severity="info")


def _fixed_steps(launch: Launch, value: Any) -> Iterator[Hit]:
    path, script = (SECTION, _STEPS), f"the script's Accelerator({_STEPS}=...)"
    removed = "Remove the key; the script then decides"
    if _is_fixed(value):
        message, hint = f"'{_STEPS}' {value} of this file wins over {script}", removed
        if launch.target == "trainer":
            message = f"the Trainer stops unless TrainingArguments have {_STEPS} {value}, as this file has"
            yield Hit(path, message, "Make them equal, or remove the key", severity="info")
            return
        if launch.target is None:
            message += "; the Trainer stops if TrainingArguments differ"
            hint = "Remove the key; the script or TrainingArguments then decide"
        yield Hit(path, message, hint)
    elif str(value).lower() == AUTO and launch.target != "trainer":
        message = f'a script\'s own Accelerator stops at "auto" for {_STEPS}, a whole number'
        if launch.target == "accelerate":
            yield Hit(path, message, removed, severity="error")
        else:
            message = f'"auto" is for the Trainer: {message}'
            yield Hit(path, message, "Remove the key, which suits both", severity="info")


def _is_fixed(value: Any) -> bool:
    """Whether the value is compared: "auto" is filled in, and a 0 is dropped (`launch-clipping-off`)."""
    try:
        return float(str(value)) != 0
    except ValueError:
        return False


@launch_rule("launch-optimizer-swap")
def launch_optimizer_swap(launch: Launch) -> Iterator[Hit]:
    """Offload that turns the script's optimizer into Adam"""
    section = launch.section
    if launch.names_file or str(section.get("zero_stage", 2)) == "0":
        return
    if str(section.get("offload_optimizer_device")).lower() in ("cpu", "nvme"):
        yield Hit((SECTION, "offload_optimizer_device"), SWAP, "Use AdamW, or a ds_config in its place")


@launch_rule("launch-known-defect")
def launch_known_defect(launch: Launch) -> Iterator[Hit]:
    """A known defect of accelerate that this file meets"""
    if not is_local(launch.data) or launch.fsdp_version != 2:
        return
    backend, fsdp = ("dynamo_config", "dynamo_backend"), launch.data["fsdp_config"]
    if str(value_at(launch.data, backend)).lower() not in ("no", "none", "false", ""):
        message = (
            "accelerate before 1.7.0 does not find the weights of a compiled model under FSDP2: "
            "prepare() stops with a KeyError"
        )
        yield Hit(backend, message, "Use accelerate 1.7.0 or later, or remove 'dynamo_config'")
    loading, offload = "fsdp_cpu_ram_efficient_loading", "fsdp_offload_params"
    if all(str(fsdp.get(key)).lower() == "true" for key in (loading, offload)):
        message = f"accelerate before 1.13.0 leaves weights on the GPU that '{offload}' expects on the host"
        hint = f"Use accelerate 1.13.0 or later, or set '{loading}' to false"
        yield Hit(("fsdp_config", loading), f"{message}, so that FSDP2 stops", hint)
