"""JSON Schema of a ds_config, for editors."""

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.base import SECTION_NAME, Section, any_case, second_names
from zerokit.config.conditions import Acts
from zerokit.config.descriptions import description, section_description
from zerokit.config.key_index import all_sections
from zerokit.config.optimizer import params_of_optimizer
from zerokit.config.optimizers import DEEPSPEED_OPTIMIZERS, TORCH_OPTIMIZERS
from zerokit.config.params import params_class
from zerokit.config.scheduler import DEEPSPEED_SCHEDULERS, TORCH_SCHEDULERS, params_of_scheduler
from zerokit.config.sections import Switched

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_COMMENTS = {r"^(_|//|\$schema$)": {"description": "A comment."}}


def json_schema() -> dict[str, Any]:
    """The schema of :class:`DeepSpeedConfig` in draft 2020-12, with a description of every key.

    ``x-zero-stages`` of a key lists the ZeRO stages in which it acts, where that is not all of them.
    """
    root, *others = all_sections()
    definitions = {model.__name__: _section(model) for model in others}
    for name, by_type in (("Optimizer", _optimizer()), ("Scheduler", _scheduler())):
        definitions[name]["properties"]["type"] |= by_type["type"]
        definitions[name]["allOf"] = by_type["conditions"]
    return {"$schema": _DRAFT, **_section(root), "$defs": dict(sorted(definitions.items()))}


def _section(model: type[Section]) -> dict[str, Any]:
    schema: dict[str, Any] = _tidied(model.model_json_schema())
    properties: dict[str, Any] = schema.get("properties", {})
    for name, part in properties.items():
        part.pop("description", None)  # which pydantic puts first
        part["description"] = description(model, name)
        if part.get("default", ...) is None:
            del part["default"]  # "absent", which editors would offer to write as null
        for item in model.model_fields[name].metadata:
            if isinstance(item, Acts) and len(item.stages) < 4:
                part["x-zero-stages"] = list(item.stages)
    schema["properties"] = properties | dict(_other_names(model, properties))
    schema["patternProperties"] = _COMMENTS
    if issubclass(model, Switched):
        enabled = {"properties": {"enabled": {"const": True}}, "required": ["enabled"]}
        schema |= {"if": enabled, "then": {"required": list(model.needed_when_enabled)}}
    schema["description"] = section_description(model)
    if "title" in model.model_config:
        schema["title"] = model.model_config["title"]
    return schema


def _other_names(model: type[Section], properties: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, other in second_names(model).items():
        text = f"Another name of `{name}`."
        yield other, {**properties[name], "description": text, "deprecated": True}


def _tidied(part: Any, key: str = "") -> Any:
    """pydantic's schema with references in place of sections, and without redundant parts."""
    if isinstance(part, list):
        return [_tidied(item) for item in part]
    if not isinstance(part, dict):
        return part
    if SECTION_NAME in part:
        reference = {"$ref": f"#/$defs/{part[SECTION_NAME]}"}
        return reference | {name: part[name] for name in ("default", "deprecated") if name in part}
    left_out = {"discriminator"} if key == "properties" else {"discriminator", "title"}
    tidy = {name: _tidied(value, name) for name, value in part.items() if name not in left_out}
    if "oneOf" in tidy and key != "properties":
        tidy["anyOf"] = tidy.pop("oneOf")
    if key != "properties" and len(tidy.get("anyOf", ())) == 1:
        tidy |= tidy.pop("anyOf")[0]
    return tidy


def _optimizer() -> dict[str, Any]:
    """The schema of `type`, and what `params` may hold by it."""
    is_true = {"type": "object", "properties": {"torch_adam": {"const": True}}, "required": ["torch_adam"]}
    coupled = {"properties": {"adam_w_mode": {"const": False}}, "required": ["adam_w_mode"]}
    adam, either = {"pattern": any_case("Adam")}, {"pattern": any_case("Adam", "AdamW")}
    torch_adam, torch_adamw = params_class("TorchAdamParams"), params_class("TorchAdamWParams")
    conditions = [
        _when(adam, torch_adam, params={"allOf": [is_true, coupled]}),
        _when({"pattern": any_case("AdamW")}, torch_adamw, params=is_true),
        _when(adam, torch_adamw, params={"allOf": [is_true, {"not": coupled}]}),
        _when(either, params_of_optimizer("Adam", {}), unless=is_true),
    ]
    for name in DEEPSPEED_OPTIMIZERS:
        if name not in ("Adam", "AdamW"):
            conditions.append(_when({"pattern": any_case(name)}, params_of_optimizer(name, {})))
    conditions += [_when({"const": name}, params_of_optimizer(name, {})) for name in TORCH_OPTIMIZERS]
    names = {"enum": [*DEEPSPEED_OPTIMIZERS, *TORCH_OPTIMIZERS]}
    return {"type": {"anyOf": [names, {"pattern": any_case(*DEEPSPEED_OPTIMIZERS)}]}, "conditions": conditions}


def _scheduler() -> dict[str, Any]:
    """The schema of `type`, and what `params` must hold by it."""
    names = [*DEEPSPEED_SCHEDULERS, *TORCH_SCHEDULERS]
    models = {name: params_of_scheduler(name) for name in names}
    conditions = [_when({"const": name}, model, null=False) for name, model in models.items()]
    return {"type": {"enum": names}, "conditions": conditions}


def _when(
    type_: Mapping[str, Any],
    model: type[Section] | None,
    *,
    params: Mapping[str, Any] | None = None,
    unless: Mapping[str, Any] | None = None,
    null: bool = True,
) -> dict[str, Any]:
    """If `type` is so, and `params` are or are not so, then `params` are a section of that model."""
    assert model is not None  # each name that is listed has one
    condition: dict[str, Any] = {"properties": {"type": type_}, "required": ["type"]}
    if params is not None:
        condition["properties"] |= {"params": params}
        condition["required"].append("params")
    if unless is not None:
        condition["not"] = {"properties": {"params": unless}, "required": ["params"]}
    reference = {"$ref": f"#/$defs/{model.__name__}"}
    section = {"anyOf": [reference, {"type": "null"}]} if null else reference
    return {"if": condition, "then": {"properties": {"params": section}}}
