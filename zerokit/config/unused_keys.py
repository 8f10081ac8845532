"""Keys of a valid ds_config that change nothing, and why.

The condition of each key is in its row (`Acts`, and `switch` of its section). ``zerokit check``,
``resolve`` and ``diff`` report these keys; the schema and ``zerokit explain`` print the conditions in words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerokit.config.base import Section, in_stages
from zerokit.config.conditions import Acts, ConfigView
from zerokit.documents import KeyPath

_GATHER_ON_SAVE = ("zero_optimization", "stage3_gather_16bit_weights_on_model_save")


@dataclass(frozen=True)
class UnusedKey:
    """A key that is set and changes nothing."""

    path: KeyPath
    reason: str
    """A sentence without its subject: "acts in ZeRO stage 3 only; the stage is 2"."""
    acts: Acts
    """Where the key acts."""
    by_stage: bool
    """Whether the stage is the reason."""
    harmless: bool
    """Whether the key requests no more than what happens without it, such as an option that is off."""


def unused_keys(view: ConfigView) -> Iterator[UnusedKey]:
    """The keys that are set and change nothing; for a section that does nothing, the section alone.

    Only what is certain: where a deciding value is "auto", or the run is not known, a key is taken to act.
    """
    yield from _unused(view.config, (), view)


def _unused(section: Section, path: KeyPath, view: ConfigView) -> Iterator[UnusedKey]:
    for name in (key for key in type(section).model_fields if key in section.model_fields_set):
        here, value = (*path, name), getattr(section, name)
        field = type(section).model_fields[name]
        acts = next((item for item in field.metadata if isinstance(item, Acts)), Acts())
        reason = _reason(section, acts, here, view)
        if reason is not None:
            default = field.get_default(call_default_factory=True)
            off = not value and not default
            silent = acts.when is not None and acts.when.silent_at_default and value == default
            empty = isinstance(value, Section) and not value.model_fields_set
            # "auto" as a device is refused; what it was meant to be is not known.
            harmless = off or silent or empty or getattr(value, "device", None) in ("none", "auto")
            yield UnusedKey(here, reason, acts, view.stage not in (None, *acts.stages), harmless)
        elif isinstance(value, Section):
            yield from _unused(value, here, view)


def _reason(section: Section, acts: Acts, path: KeyPath, view: ConfigView) -> str | None:
    switch = section.switch
    switched = path[-1] not in (switch, *section.acts_without_switch)
    if switch is not None and switched and view.value(*map(str, path[:-1]), switch) is False:
        return f'acts with "{switch}": true only'
    if view.stage is not None and view.stage not in acts.stages and not _gathers(path, view):
        return f"acts in ZeRO {in_stages(acts.stages)} only; the stage is {view.stage}"
    return acts.when.reason_against(view, path) if acts.when is not None else None


def _gathers(path: KeyPath, view: ConfigView) -> bool:
    """Whether accelerate reads the key in every stage, because the model is divided."""
    size: Any = view.value("tensor_parallel", "autotp_size")
    return path == _GATHER_ON_SAVE and isinstance(size, int) and size > 1
