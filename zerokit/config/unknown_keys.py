"""What a key that DeepSpeed does not read was meant to be."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Literal

from zerokit.config.key_index import TYPES, all_keys, as_written, canonical, keys_of, places_of, section_at
from zerokit.config.params import params_of
from zerokit.documents import ABSENT, KeyPath, dotted, has_value, split_dotted, value_at
from zerokit.spelling import NEAR, VERY_NEAR, is_typo, similar_names
from zerokit.tables import table_of

_TABLES: Mapping[str, Any] = table_of(__file__)
_MEANT: Mapping[str, str] = _TABLES["meant"]
"""Other words for a key that takes the same value: other tools', and DeepSpeed's old or misprinted ones."""
_LIKE: Mapping[str, str] = _TABLES["like"]
"""Words for something near: what to write instead takes another value."""
_NOT_DEEPSPEEDS: Mapping[str, str] = _TABLES["not_deepspeeds"]
"""Keys of other programs, and what to do with each."""
INFERENCE_KEYS = frozenset[str](_TABLES["inference"])
"""Arguments of `deepspeed.init_inference` that training has not at the top of its file:
`DeepSpeedInferenceConfig` in `deepspeed/inference/config.py`."""

_FP16_SCALING = ("loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale")

_TRIED = 20
"""The first keys of a section; one of them must be known."""

_COMMON = ("enabled", "type", "params")
"""Names that many sections have, so that they do not identify one."""

_WELL_KNOWN: tuple[KeyPath, ...] = ((), *map(split_dotted, _TABLES["well_known_sections"]))
"""Sections with well-known keys; in other sections only a name with an underscore identifies a key."""

Kind = Literal["misplaced", "misspelled", "other-word", "unknown"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an unknown key was meant to be."""

    kind: Kind
    hint: str
    to: KeyPath | None = None
    """The key that was meant, in its own section; None if that is not known."""
    sure: bool = False
    """Whether the value can be moved there as it is, judging by the names."""
    plain: bool = True
    """Whether the file plainly says something that DeepSpeed does not do; otherwise the key may as well be
    a note, or another program's."""
    foreign: bool = False
    """Whether it is known to be another program's, and so no key of DeepSpeed's misspelled."""


def meaning_of(path: KeyPath, data: Any = None) -> Meaning:
    """What the unknown key at `path` was meant to be."""
    *parents, last = path
    section, name = canonical(tuple(parents)), str(last)
    if section == ("bf16",) and name in _FP16_SCALING:
        return Meaning("misplaced", "Remove it: bf16 needs no loss scale. Under fp16 it belongs in 'fp16'")
    if name in _NOT_DEEPSPEEDS:
        return Meaning("unknown", _NOT_DEEPSPEEDS[name], plain=False, foreign=True)
    if not section and name in INFERENCE_KEYS and not any(has_value(data, at) for at in places_of(name)):
        hint = "Remove it: it is an argument of deepspeed.init_inference, not of training"
        return Meaning("unknown", hint, plain=False, foreign=True)
    return (
        _misplaced(section, name, data)
        or _other_word(section, name)
        or _of_another_type(section, name)
        or _misspelled(section, name, path, data)
        or _misspelled_and_misplaced(section, name, path, data)
        or Meaning("unknown", _as_comment(section, name, data), plain=False)
    )


def _as_comment(section: KeyPath, name: str, data: Any) -> str:
    model = section_at(section, data)
    if model is not None and model.read_by != "lookup":
        return "Remove it; comments are allowed at the top of the file"
    return f"Remove it, or call it '_{name}' to keep it as a comment"


def _misplaced(section: KeyPath, name: str, data: Any) -> Meaning | None:
    places = [
        place
        for place in places_of(name)
        if place != section and (place in _WELL_KNOWN or "_" in name) and _is_read(place, name, data)
    ]
    if not places or name in _COMMON or len({place[:-1] for place in places}) > 1:
        return None
    if section and not any(place in _WELL_KNOWN or has_value(data, place) for place in places):
        return None  # it is of its own section, and only happens to bear a name of another
    hint = f"It belongs {' or '.join(_in_words(place) for place in places)}"
    if len(places) > 1:
        return Meaning("misplaced", hint)
    (place,) = places
    # Elsewhere the key would be the only one of a new section.
    sure = place in ((), ("zero_optimization",)) or place[:-1] == section or has_value(data, place)
    return Meaning("misplaced", hint, canonical((*place, name)), sure)


def _other_word(section: KeyPath, name: str) -> Meaning | None:
    meant = _MEANT.get(name) or _LIKE.get(name)
    if meant is None:
        return None
    to: KeyPath = split_dotted(meant)
    shown = to[-1] if to[:-1] == section else dotted(to)
    where = " at the top of the file" if section and len(to) == 1 else ""
    return Meaning("other-word", f"Did you mean '{shown}'{where}?", to, sure=name in _MEANT)


def _of_another_type(section: KeyPath, name: str) -> Meaning | None:
    """A parameter that other optimizers or schedules have."""
    if section not in TYPES or section not in places_of(name):
        return None
    types = [kind for kind in TYPES[section] if name in keys_of(params_of(kind))]
    listed = ", ".join(types[:3]) + (" and others" if len(types) > 3 else "")
    return Meaning("unknown", f"Remove it: it is one of {listed}")


def _misspelled(section: KeyPath, name: str, path: KeyPath, data: Any) -> Meaning | None:
    model = section_at(section, data)
    if model is None:
        return None
    keys = keys_of(model)
    found = similar_names(name, keys, VERY_NEAR if model.read_by == "lookup" else NEAR)
    close = next((key for key in found if _may_be(path, (*section, key), data)), None)
    if close is None:
        return None
    to = canonical((*section, close))
    slip = is_typo(name, close, keys)
    if has_value(data, as_written(to, data)):  # What the file says well it need not mean a second time.
        return Meaning("misspelled", there_as_well(close), to) if slip else None
    return Meaning("misspelled", f"Did you mean '{close}'?", to, sure=slip)


def there_as_well(key: int | str) -> str:
    """What to do with a name of a key that the file has under its own."""
    return f"Remove it: '{key}' is there as well"


def _misspelled_and_misplaced(section: KeyPath, name: str, path: KeyPath, data: Any) -> Meaning | None:
    places = _well_known_places()
    found = similar_names(name, places, VERY_NEAR) if len(name) >= 5 else []
    to = next((places[key] for key in found if places[key][:-1] != section), None)
    if to is None or not _may_be(path, to, data):
        return None
    to = canonical(to)
    return Meaning("misplaced", f"Did you mean '{dotted(to)}'?", to)


@cache
def _well_known_places() -> Mapping[str, KeyPath]:
    """Names of keys with one place, in a well-known section: they identify that place."""
    places = {key: places_of(key) for key in all_keys() if len(key) > 4}
    return {key: (*found[0], key) for key, found in places.items() if len(found) == 1 and found[0] in _WELL_KNOWN}


def _may_be(path: KeyPath, other: KeyPath, data: Any) -> bool:
    """Whether the value at `path` is a section if one belongs at `other`, and a plain value if not.

    A section must have a key, perhaps misspelled, of those that belong there.
    """
    value, model = value_at(data, path, ABSENT), section_at(other)
    if value is ABSENT:
        return True
    if model is None:
        return not isinstance(value, Mapping)
    if not isinstance(value, Mapping):
        return isinstance(value, bool | None)
    inside = section_at(other, data)
    keys = keys_of(inside) if inside else ()
    if not value or not keys:
        return True
    return any(key in keys or similar_names(str(key), keys, NEAR) for key in islice(value, _TRIED))


def _is_read(place: KeyPath, name: str, data: Any) -> bool:
    """Whether the key is read there, given the type of the optimizer or the scheduler."""
    if place not in (("optimizer", "params"), ("scheduler", "params")):
        return True
    if not has_value(data, place[:1]):
        return True
    model = section_at(place, data)
    return model is None or name in keys_of(model)


def _in_words(place: KeyPath) -> str:
    return f"in '{dotted(place)}'" if place else "at the top of the file"
