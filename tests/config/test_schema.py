from typing import Any

import jsonschema

from zerokit.config.places import sections
from zerokit.config.schema import json_schema


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema, *schema["$defs"].values()]


def test_it_names_its_draft_and_title() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "DeepSpeed configuration"


def test_every_key_is_described_and_no_other_is_allowed() -> None:
    for part in objects(json_schema()):
        assert part["additionalProperties"] is False
        assert "^(_|//)" in part["patternProperties"]
        for name, key in part["properties"].items():
            assert key["description"], name
            assert "\n" not in key["description"]


def test_every_section_is_there() -> None:
    assert {model.__name__ for path, model in sections().items() if path} == set(json_schema()["$defs"])


def test_second_names_are_completed_as_deprecated() -> None:
    zero = json_schema()["$defs"]["ZeroOptimization"]["properties"]
    assert zero["prefetch_bucket_size"]["deprecated"] is True


def test_it_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
