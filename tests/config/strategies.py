"""Valid sections drawn from zerokit's own JSON Schema, so that both are tested against the models."""

import re
from typing import Any

from hypothesis import strategies as st

from zerokit.config.optimizer import params_of_optimizer
from zerokit.config.optimizers import DEEPSPEED_OPTIMIZERS, TORCH_OPTIMIZERS
from zerokit.config.params import params_class
from zerokit.config.scheduler import DEEPSPEED_SCHEDULERS, TORCH_SCHEDULERS, params_of_scheduler
from zerokit.config.schema import json_schema

SCHEMA = json_schema()
_PLAIN = st.booleans() | st.integers(-100, 100) | st.floats(-10, 10, allow_nan=False)


def configs() -> st.SearchStrategy[dict[str, Any]]:
    """Whole ds_configs that are valid section by section."""
    return _values(SCHEMA, auto=True)


def sections(name: str, *, auto: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Valid sections of the model `name`."""
    return _values(SCHEMA["$defs"][name], auto=auto)


def _values(schema: dict[str, Any], *, auto: bool) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        by_type = {"Optimizer": _optimizers, "Scheduler": _schedulers}.get(name)
        return by_type(auto=auto) if by_type else st.deferred(lambda: sections(name, auto=auto))
    if "const" in schema:
        return st.just(schema["const"])
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if auto or option.get("const") != "auto"]
        if any("enum" in option for option in options):  # the pattern beside it is for other cases of letters
            options = [option for option in options if "pattern" not in option]
        return st.one_of([_values(option, auto=auto) for option in options])
    if "enum" in schema or "examples" in schema:
        return st.sampled_from(schema.get("enum") or schema["examples"])
    match schema.get("type"):
        case None:
            return _PLAIN
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema.get("minimum", -5), schema.get("maximum", 2**40)
            return st.integers(low, high)
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", min(0, schema.get("maximum", 0) - 5)))
            high = schema.get("maximum", schema.get("exclusiveMaximum", max(low, 0) + 1e6))
            return st.floats(
                low, high, exclude_min="exclusiveMinimum" in schema, exclude_max="exclusiveMaximum" in schema
            )
        case "string":
            return _strings(schema)
        case "array":
            shortest, longest = schema.get("minItems", 0), schema.get("maxItems", 3)
            items = _values(schema["items"], auto=auto) if schema.get("items") else _PLAIN
            return st.lists(items, min_size=shortest, max_size=longest)
        case "object":
            return _objects(schema, auto=auto)
    raise AssertionError(schema)


def _strings(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "pattern" in schema:
        ascii = st.characters(codec="ascii")
        return st.from_regex(re.compile(schema["pattern"]), alphabet=ascii, fullmatch=True)
    return st.text("abc./", min_size=schema.get("minLength", 0), max_size=8)


def _objects(schema: dict[str, Any], *, auto: bool) -> st.SearchStrategy[dict[str, Any]]:
    if not schema.get("properties"):
        inner = schema.get("additionalProperties")
        values = _values(inner, auto=auto) if isinstance(inner, dict) else _PLAIN
        return st.dictionaries(st.text("abcxyz", min_size=1, max_size=5), values, max_size=3)
    required = set(schema.get("required", []))
    needed = set(schema.get("then", {}).get("required", []))

    def consistent(section: dict[str, Any]) -> dict[str, Any]:
        if section.get("schedule_type") in ("fixed_linear", "fixed_root", "fixed_discrete"):
            return section | {"schedule_type": "custom"} if "clustering_type" in section else section
        return section if needed <= section.keys() else section | {"enabled": False}

    return st.fixed_dictionaries(
        {name: _values(schema["properties"][name], auto=auto) for name in required},
        optional={
            name: _values(part, auto=auto)
            for name, part in schema["properties"].items()
            if name not in required and not part.get("description", "").startswith("Another name")
        },
    ).map(consistent)


def _optimizers(*, auto: bool) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from((*DEEPSPEED_OPTIMIZERS, *TORCH_OPTIMIZERS))

    def of_type(name: str) -> st.SearchStrategy[dict[str, Any]]:
        model = params_of_optimizer(name, {})
        assert model is not None
        params = sections(model.__name__, auto=auto).map(_consistent)
        return st.fixed_dictionaries({"type": st.just(name)}, optional={"params": params | st.none()})

    return names.flatmap(of_type)


def _consistent(params: dict[str, Any]) -> dict[str, Any]:
    """Without what only the models, not the schema, can tell: that two keys do not go together."""
    return {name: value for name, value in params.items() if name not in ("torch_adam", "nesterov")}


def _schedulers(*, auto: bool) -> st.SearchStrategy[dict[str, Any]]:
    models = {name: params_of_scheduler(name) for name in (*DEEPSPEED_SCHEDULERS, *TORCH_SCHEDULERS)}
    refused = (params_class("FunctionParams"), params_of_scheduler("OneCycleLR"))
    names = [name for name, model in models.items() if model not in refused]

    def of_type(name: str) -> st.SearchStrategy[dict[str, Any]]:
        model = models[name]
        assert model is not None
        params = sections(model.__name__, auto=auto)
        return st.fixed_dictionaries({"type": st.just(name), "params": params})

    return st.sampled_from(names).flatmap(of_type)
