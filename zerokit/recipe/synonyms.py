"""Other names of a recipe's keys, and hints for unknown keys."""

from collections.abc import Collection, Iterable, Mapping

from zerokit.errors import did_you_mean, nearest
from zerokit.recipe.model import DataSection, ModelSection, Recipe, Section, TaskSection
from zerokit.recipe.trainer_keys import installed_types, is_free
from zerokit.tables import table_of

_TABLES: Mapping[str, Mapping[str, Collection[str]]] = table_of(__file__)
_SYNONYMS = _TABLES["anywhere"]
"""The key of a recipe -> its other names."""
_WITHIN = {section: names for section, names in _TABLES.items() if section != "anywhere"}
"""Section -> the names that mean something else outside it: a model has dropout, and no LoRA for that."""


def _by_name(names_of: Mapping[str, Collection[str]]) -> dict[str, str]:
    return {name: key for key, names in names_of.items() for name in names}


_KEYS = _by_name(_SYNONYMS)
_KEYS_WITHIN = {section: _by_name(names_of) for section, names_of in _WITHIN.items()}
_SECTIONS: Mapping[str, type[Section]] = {"model": ModelSection, "data": DataSection, "task": TaskSection}


def meant(section: str, name: str, choices: Iterable[str]) -> str:
    """A hint for a key that its section does not have: its name here, or its section.

    Args:
        section: of the recipe; empty for its top.
    """
    choices = list(choices)
    known = _known(section, name, choices)
    if known is None:
        return did_you_mean(name, choices)
    above, _, key = known.rpartition(".")
    if above == section:
        return f"It is called {key}"
    return f"It is {known}" if above else f"It is {key}, of no section"


def key_meant(section: str, name: str, choices: Iterable[str]) -> str | None:
    """The key that the hint of :func:`meant` names, with its section; None where it names none."""
    choices = list(choices)
    known, close = _known(section, name, choices), nearest(name, choices)
    return known or (close and ".".join(filter(None, (section, close))))


def _known(section: str, name: str, choices: Collection[str]) -> str | None:
    """The key under another name, or in another section."""
    whole = _KEYS_WITHIN.get(section, {}).get(name.replace("-", "_")) or full_name(name)
    if whole is None:
        return None
    above, _, key = whole.rpartition(".")
    return whole if (key in choices if above == section else "." not in section) else None


def full_name(name: str) -> str | None:
    """The key that a name means in any section; None if there is none, or several."""
    name = name.replace("-", "_")
    of_the_trainer = set(filter(is_free, installed_types() or {}))
    if name in _KEYS:  # older releases of transformers have some of them themselves
        return f"training.{name}" if name in of_the_trainer else _KEYS[name]
    if name in _SYNONYMS or name in Recipe.model_fields:
        return name
    found = [f"{section}.{name}" for section, model in _SECTIONS.items() if name in model.model_fields]
    found += [key for key in _SYNONYMS if key.rpartition(".")[2] == name and key not in found]
    if not found and name in of_the_trainer:
        return f"training.{name}"
    return found[0] if len(found) == 1 else None
