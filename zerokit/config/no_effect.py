"""The judge of what has no effect: keys of a valid ds_config that change nothing, and why.

It knows of each key what stands beneath its field (`Acts`, and `switch` of its section). ``zerokit check``,
``resolve`` and ``diff`` ask it; the schema and ``zerokit explain`` print the same in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerokit.config.base import Acts, Section, in_stages
from zerokit.config.conditions import Known
from zerokit.documents import KeyPath

_SAVED_BY = ("zero_optimization", "stage3_gather_16bit_weights_on_model_save")


@dataclass(frozen=True)
class Idle:
    """A key that is set and changes nothing."""

    path: KeyPath
    reason: str
    """What is to be said of the key, without a subject: "acts in ZeRO stage 3 only; the stage is 2"."""
    acts: Acts
    """Where the key acts."""
    by_stage: bool
    """Whether the stage is the reason."""
    harmless: bool
    """Whether the key asks for no more than what happens without it, such as an option that is off."""


def without_effect(known: Known) -> Iterator[Idle]:
    """The keys that are set and change nothing; of a section that does nothing, the section alone.

    Only what is sure: where a value that decides is "auto", or the run is not known, a key is taken to act.
    """
    yield from _of(known.config, (), known)


def _of(section: Section, path: KeyPath, known: Known) -> Iterator[Idle]:
    for name in (key for key in type(section).model_fields if key in section.model_fields_set):
        here, value = (*path, name), getattr(section, name)
        field = type(section).model_fields[name]
        acts = next((item for item in field.metadata if isinstance(item, Acts)), Acts())
        reason = _reason(section, acts, here, known)
        if reason is not None:
            default = field.get_default(call_default_factory=True)
            off = not value and not default
            silent = acts.when is not None and acts.when.silent_at_default and value == default
            empty = isinstance(value, Section) and not value.model_fields_set
            # "auto" as a device is refused; nobody knows what it was to be.
            harmless = off or silent or empty or getattr(value, "device", None) in ("none", "auto")
            yield Idle(here, reason, acts, known.stage not in (None, *acts.stages), harmless)
        elif isinstance(value, Section):
            yield from _of(value, here, known)


def _reason(section: Section, acts: Acts, path: KeyPath, known: Known) -> str | None:
    switch = section.switch
    switched = path[-1] not in (switch, *section.acts_without_switch)
    if switch is not None and switched and known.value(*map(str, path[:-1]), switch) is False:
        return f'acts with "{switch}": true only'
    if known.stage is not None and known.stage not in acts.stages and not _gathers(path, known):
        return f"acts in ZeRO {in_stages(acts.stages)} only; the stage is {known.stage}"
    return acts.when.idle(known, path) if acts.when is not None else None


def _gathers(path: KeyPath, known: Known) -> bool:
    """accelerate asks for the key in every stage when the model is divided."""
    size: Any = known.value("tensor_parallel", "autotp_size")
    return path == _SAVED_BY and isinstance(size, int) and size > 1
