"""Where keys belong: the sections of a ds_config by their paths, and the two spellings of some keys."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from zerokit.config.base import Section, second_names
from zerokit.config.conditions import Acts
from zerokit.config.optimizer import Optimizer, params_of_optimizer
from zerokit.config.optimizers import DEEPSPEED_OPTIMIZERS, TORCH_OPTIMIZERS
from zerokit.config.params import params_class, params_of
from zerokit.config.scheduler import DEEPSPEED_SCHEDULERS, TORCH_SCHEDULERS, Scheduler, params_of_scheduler
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import KeyPath

TYPES: Mapping[KeyPath, tuple[str, ...]] = {
    ("optimizer", "params"): DEEPSPEED_OPTIMIZERS,
    ("scheduler", "params"): DEEPSPEED_SCHEDULERS,
}
"""The types whose keys are known wherever they stand."""


class Inner(NamedTuple):
    """The section that a field holds."""

    model: type[Section]
    container: type | None
    """``list`` or ``dict`` if it holds several of them."""


@cache
def inner_sections(model: type[Section]) -> Mapping[str, Inner]:
    """The fields of a model that hold sections."""
    found = {name: _inner(field.annotation, None) for name, field in model.model_fields.items()}
    return {name: inner for name, inner in found.items() if inner is not None}


def _inner(annotation: Any, container: type | None) -> Inner | None:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return Inner(annotation, container) if issubclass(annotation, Section) else None
    if get_origin(annotation) in (list, dict):
        container = get_origin(annotation)
    found = (_inner(part, container) for part in get_args(annotation))
    return next((inner for inner in found if inner is not None), None)


@cache
def sections() -> dict[KeyPath, type[Section]]:
    """Every section that has one place, by its path; ``()`` is the whole config."""
    found: dict[KeyPath, type[Section]] = {}

    def walk(path: KeyPath, model: type[Section]) -> None:
        found[path] = model
        for name, inner in inner_sections(model).items():
            if inner.container is None:
                walk((*path, name), inner.model)

    walk((), DeepSpeedConfig)
    return found


def section_at(path: KeyPath, data: Any = None) -> type[Section] | None:
    """The model of the section at `path`, inside lists and mappings too, or None if there is none.

    Args:
        path: keys under any of their names.
        data: the whole config, which says of what `type` an optimizer or a scheduler is. Without it their
            `params` are those that all types have.
    """
    model: type[Section] | None = DeepSpeedConfig
    rest = list(canonical(path))
    while rest and model is not None:
        key = rest.pop(0)
        if key == "params" and model in (Optimizer, Scheduler):
            model = _params_model(model, data)
            continue
        inner = inner_sections(model).get(str(key))
        if inner is None or (inner.container is not None and not rest):
            return None
        if inner.container is not None:
            rest.pop(0)
        model = inner.model
    return model


def field_at(path: KeyPath, data: Any = None) -> FieldInfo | None:
    """The field of the key at `path`, or None if there is no such key; arguments as for `section_at`."""
    *above, key = canonical(path)
    model = section_at(tuple(above), data)
    return model.model_fields.get(str(key)) if model is not None else None


def _params_model(model: type[Section], data: Any) -> type[Section] | None:
    key = "optimizer" if model is Optimizer else "scheduler"
    section = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(section, Mapping):
        return sections()[(key, "params")]
    if model is Optimizer:
        return params_of_optimizer(section.get("type"), section.get("params"))
    return params_of_scheduler(section.get("type"))


def all_sections() -> Iterator[type[Section]]:
    """The model of every section, each once; those inside lists and mappings, and of all types, too."""
    seen: dict[type[Section], None] = {}

    def walk(model: type[Section]) -> None:
        if model not in seen:
            seen[model] = None
            for inner in inner_sections(model).values():
                walk(inner.model)

    walk(DeepSpeedConfig)
    for type_ in (*DEEPSPEED_OPTIMIZERS, *TORCH_OPTIMIZERS, *DEEPSPEED_SCHEDULERS, *TORCH_SCHEDULERS):
        walk(params_of(type_))
    walk(params_class("TorchAdamWParams"))
    walk(params_class("TorchAdamParams"))
    yield from seen


def canonical(path: KeyPath) -> KeyPath:
    """The path with keys' second names (`bfloat16`, `prefetch_bucket_size`) replaced by the first ones."""
    result: KeyPath = ()
    for key in path:
        model = sections().get(result)
        result = (*result, _first_names(model).get(key, key) if model and isinstance(key, str) else key)
    return result


@cache
def _first_names(model: type[Section]) -> dict[str, str]:
    return {other: name for name, other in second_names(model).items()}


def as_written(path: KeyPath, data: Any) -> KeyPath:
    """The path in `data`, which may use a key's second name where `path` has the first."""
    result: KeyPath = ()
    for key in path:
        if isinstance(data, Mapping) and key not in data:
            model = sections().get(canonical(result))
            other = second_names(model).get(str(key), key) if model else key
            key = other if other in data else key
        data = data.get(key) if isinstance(data, Mapping) else None
        result = (*result, key)
    return result


def keys_of(model: type[Section]) -> tuple[str, ...]:
    """The keys that a section may have, under all their names."""
    return (*model.model_fields, *second_names(model).values())


def places_of(name: str) -> list[KeyPath]:
    """The sections in which a key of that name is read."""
    return _index().get(name, [])


def all_keys() -> tuple[str, ...]:
    """The name of every key that has a place of its own."""
    return tuple(_index())


@cache
def _index() -> dict[str, list[KeyPath]]:
    index: dict[str, list[KeyPath]] = defaultdict(list)
    for path, model in sections().items():
        for name in keys_of(model):
            index[name].append(path)
    for path, types in TYPES.items():
        names = {name for type_ in types for name in params_of(type_).model_fields}
        for name in sorted(names):
            if path not in index[name]:
                index[name].append(path)
    return dict(index)


def stages_of(path: KeyPath) -> tuple[int, ...]:
    """The ZeRO stages in which DeepSpeed reads the key at `path`, those of the sections above included.

    Raises:
        KeyError: there is no such key.
    """
    stages = {0, 1, 2, 3}
    for item in _acts_along(path):
        stages &= set(item.stages)
    return tuple(sorted(stages))


def since(path: KeyPath) -> str | None:
    """The first release of DeepSpeed that knows the key at `path`, or None if that is 0.14.0 or older.

    Raises:
        KeyError: there is no such key.
    """
    releases = [item.since for item in _acts_along(path) if item.since is not None]
    return max(releases, key=lambda text: tuple(map(int, text.split("."))), default=None)


def model_of(path: KeyPath) -> type[Section] | None:
    """The model that has the key at `path` as a field, or None if there is no such key.

    Of the parameters of an optimizer or a schedule, the first class that has them.
    """
    *above, key = canonical(path)
    model = _any_params(str(key), tuple(above)) or section_at(tuple(above))
    return model if model is not None and key in model.model_fields else None


def _acts_along(path: KeyPath) -> Iterator[Acts]:
    path = canonical(path)
    for end in range(1, len(path) + 1):
        *above, key = path[:end]
        model = _any_params(str(key), tuple(above)) or section_at(tuple(above))
        if model is None and end > 1 and section_at((*above[:-1], above[-1], key)) is not None:
            continue  # the index of a list, or a name that users choose
        if model is None or key not in model.model_fields:
            raise KeyError(path)
        metadata = model.model_fields[str(key)].metadata
        yield from (item for item in metadata if isinstance(item, Acts))


def _any_params(name: str, section: KeyPath) -> type[Section] | None:
    """The first class of optimizer or scheduler whose `params` have the key."""
    models = map(params_of, TYPES.get(section, ()))
    return next((model for model in models if name in model.model_fields), None)
