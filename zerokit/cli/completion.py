"""Values that shells complete. Typer itself completes options and closed lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pkgutil import resolve_name


def _beginning(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(begun: str) -> list[str]:
        # Names are accepted in any case, but a shell completes the typed text.
        typed = (name.lower() if begun.islower() else name for name in names())
        return [name for name in typed if name.startswith(begun)]

    return complete


def _gpus() -> Iterator[str]:
    from zerokit.hardware.gpus import gpus

    for gpu in gpus():
        name = gpu.name.replace(" ", "-")  # a space would make two words
        yield from dict.fromkeys((name, name.removeprefix("RTX-")))


def _models() -> Iterable[str]:
    from zerokit.models.catalogue import entries

    return (name for entry in entries() for name in (entry.short_names[0], entry.id))


def _upgrades() -> Iterator[str]:
    from zerokit.releases.versions import NEWEST, SUPPORTED

    yield from (f"{release}..{NEWEST}" for release in reversed(SUPPORTED) if release != str(NEWEST))


def _explained() -> Iterable[str]:
    from zerokit.config.key_index import all_keys
    from zerokit.lint.defects import KNOWN_DEFECTS
    from zerokit.lint.run import all_rules

    return (*all_rules(), *KNOWN_DEFECTS, *all_keys())


def _dotted_keys() -> Iterator[str]:
    from zerokit.config.key_index import all_keys, places_of
    from zerokit.documents import dotted

    for name in all_keys():
        yield from (dotted((*place, name)) for place in places_of(name))


def explained(begun: str) -> list[str]:
    """Rules, defects and keys; with a dot in the text, keys with their sections."""
    return _beginning(_dotted_keys if "." in begun else _explained)(begun)


def _overrides() -> Iterator[str]:
    from zerokit.recipe.model import DataSection, ModelSection, Recipe, Section, TaskSection
    from zerokit.recipe.training_keys import free_keys

    sections: dict[str, type[Section]] = {"model": ModelSection, "data": DataSection, "task": TaskSection}
    yield from (f"--{name}" for name in Recipe.model_fields)
    yield from (f"--{name}.{key}" for name, model in sections.items() for key in model.model_fields)
    yield from (f"--training.{key}" for key in free_keys())


def _ds_overrides() -> Iterator[str]:
    return (f"--deepspeed.{key}" for key in _dotted_keys())


def overrides(begun: str) -> list[str]:
    """The options of ``zerokit train`` that override a value of the recipe."""
    return _beginning(_ds_overrides if begun.startswith("--deepspeed.") else _overrides)(begun)


gpu = _beginning(_gpus)
model = _beginning(_models)
preset = _beginning(lambda: resolve_name("zerokit.writing.presets:PRESETS"))
rule = _beginning(lambda: resolve_name("zerokit.lint.run:all_rules")())
release = _beginning(lambda: reversed(resolve_name("zerokit.releases.versions:SUPPORTED")))
upgrade = _beginning(_upgrades)
