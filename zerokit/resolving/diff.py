"""What two ds_configs do differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zerokit.config.base import ZERO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN, computed_batch_sizes
from zerokit.config.conditions import ConfigView
from zerokit.config.dtypes import DTYPES
from zerokit.config.normal_form import RENAMED, normal_form, without_comments
from zerokit.config.optimizers import DEEPSPEED_OPTIMIZERS
from zerokit.config.sections import DeepSpeedConfig
from zerokit.config.unused_keys import unused_keys
from zerokit.documents import KeyPath, leaves

Facts = Literal["set", "default", "absent"]
"""Where a value comes from: the config sets it, DeepSpeed's default applies, or there is none."""

_DTYPE_PATHS = (
    ("torch_autocast", "dtype"),
    ("data_types", "grad_accum_dtype"),
    ("data_types", "param_dtype"),
    ("data_types", "buffer_dtype"),
)


@dataclass(frozen=True)
class Side:
    """One config's value at a path."""

    value: Any
    """None where it is absent."""
    given: Facts


@dataclass(frozen=True)
class Difference:
    """A key whose values differ."""

    path: KeyPath
    """As DeepSpeed's models spell it, deprecated keys by their new names."""
    left: Side
    right: Side
    without_effect: str | None = None
    """Why the difference changes nothing, or None if it does."""


def differences(
    left: DeepSpeedConfig, right: DeepSpeedConfig, *, num_gpus: int | None = None
) -> tuple[Difference, ...]:
    """Every key whose values differ, defaults filled in, in the order of DeepSpeed's sections.

    Of differences without effect, those in keys that one of the two says. Of a section that only one of the
    two has, the keys that it sets: the defaults of the others come with it.

    Args:
        num_gpus: with it, batch sizes that DeepSpeed computes are compared too.
    """
    both = [_Compared(config, num_gpus) for config in (left, right)]
    paths = list(dict.fromkeys(path for one in both for path in one.values))
    found = [
        Difference(path, both[0].side(path), both[1].side(path), _reason(path, both))
        for path in _in_order(paths)
        if not _same(both[0].values.get(path), both[1].values.get(path))
    ]
    told = {_absent_section(one.path, both) for one in found if _is_set(one)} - {None}
    return tuple(
        one
        for one in found
        if _is_set(one) or (one.without_effect is None and _absent_section(one.path, both) not in told)
    )


def _is_set(difference: Difference) -> bool:
    return "set" in (difference.left.given, difference.right.given)


def _absent_section(path: KeyPath, both: list[_Compared]) -> KeyPath | None:
    """The outermost section around a key that one of the two configs does not have; None if both have it."""
    ends = range(1, len(path) + 1)
    return next((path[:end] for end in ends if not all(path[:end] in one.sections for one in both)), None)


def _in_order(paths: list[KeyPath]) -> list[KeyPath]:
    order = list(DeepSpeedConfig.model_fields)
    return sorted(paths, key=lambda path: order.index(str(path[0])) if path[0] in order else len(order))


class _Compared:
    """A config in the form in which it is compared."""

    def __init__(self, config: DeepSpeedConfig, num_gpus: int | None) -> None:
        self.values = dict(leaves(_comparable(normal_form(config), num_gpus)))
        self.sections = {path[:end] for path in self.values for end in range(1, len(path) + 1)}
        self.set = {_new_name(path) for path, value in leaves(without_comments(config.dump())) if value != {}}
        self.idle = {_new_name(one.path): f"it {one.reason}" for one in unused_keys(ConfigView(config))}

    def side(self, path: KeyPath) -> Side:
        if path not in self.values:
            return Side(None, "absent")
        return Side(self.values[path], "set" if self.is_set(path) else "default")

    def is_set(self, path: KeyPath) -> bool:
        return any(path[:end] in self.set for end in range(1, len(path) + 1))

    def idle_reason(self, path: KeyPath) -> str | None:
        return next((self.idle[path[:end]] for end in range(1, len(path) + 1) if path[:end] in self.idle), None)


def _reason(path: KeyPath, both: list[_Compared]) -> str | None:
    """Why a difference changes nothing: wherever the key is set, it is without effect."""
    reasons = {one: one.idle_reason(path) for one in both}
    if any(reason is None and one.is_set(path) for one, reason in reasons.items()):
        return None
    return next((reason for reason in reasons.values() if reason is not None), None)


def _new_name(path: KeyPath) -> KeyPath:
    if path[:1] == (ZERO,) and len(path) == 2:
        return (ZERO, RENAMED.get(str(path[1]), path[1]))
    return path


def _comparable(data: dict[str, Any], num_gpus: int | None) -> dict[str, Any]:
    zero = data[ZERO]
    for key in ("offload_optimizer", "offload_param"):
        if zero.get(key, {}).get("device") == "none":
            del zero[key]
    for section, key in _DTYPE_PATHS:
        spelled = data.get(section, {}).get(key)
        if spelled in DTYPES:
            data[section][key] = DTYPES[spelled]
    if "optimizer" in data:
        data["optimizer"] = _optimizer(data["optimizer"])
    given = {key: data[key] for key in (TRAIN, MICRO, STEPS) if isinstance(data.get(key), int)}
    if len(given) == len({TRAIN, MICRO, STEPS} & set(data)):  # no "auto" among them
        if num_gpus is not None:
            data |= computed_batch_sizes(given, num_gpus)[0]
        elif set(given) in ({TRAIN}, {MICRO}):
            data[STEPS] = 1  # whatever the number of GPUs
    return data


def _optimizer(section: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's names in one case, and Adam as AdamW unless `adam_w_mode` is false."""
    name = {known.lower(): known for known in DEEPSPEED_OPTIMIZERS}.get(str(section["type"]).lower(), section["type"])
    params = dict(section.get("params") or {})
    if name == "AdamW" or (name == "Adam" and params.get("adam_w_mode", True) is True):
        name = "AdamW"
        params.pop("adam_w_mode", None)
    return {**section, "type": name, "params": params}


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
