"""Valid sections drawn from zerokit's own JSON Schema, so that both are tested against the models."""

from typing import Any

from hypothesis import strategies as st

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
        return _values(SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]], auto=auto)
    if "const" in schema:
        return st.just(schema["const"])
    for choices in ("anyOf", "oneOf"):
        if choices in schema:
            options = [option for option in schema[choices] if auto or option.get("const") != "auto"]
            return st.one_of([_values(option, auto=auto) for option in options])
    if "enum" in schema or "examples" in schema:
        return st.sampled_from(schema.get("enum") or schema["examples"])
    match schema["type"]:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema.get("minimum", -5), schema.get("maximum", 2**40)
            whole = st.integers(low, high)
            return whole | whole.map(float)
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            high = schema.get("maximum", schema.get("exclusiveMaximum", 1e6))
            return st.floats(
                low, high, exclude_min="exclusiveMinimum" in schema, exclude_max="exclusiveMaximum" in schema
            )
        case "string":
            return st.text("abc./", max_size=8)
        case "array":
            return st.lists(_values(schema["items"], auto=auto), max_size=3)
        case "object":
            return _objects(schema, auto=auto)
    raise AssertionError(schema)


def _objects(schema: dict[str, Any], *, auto: bool) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        return st.dictionaries(st.text("abcxyz", min_size=1, max_size=5), _PLAIN, max_size=3)
    required = set(schema.get("required", []))
    return st.fixed_dictionaries(
        {name: _values(schema["properties"][name], auto=auto) for name in required},
        optional={
            name: _values(part, auto=auto)
            for name, part in schema["properties"].items()
            if name not in required and not part.get("description", "").startswith("Another name")
        },
    )
