import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given

from tests.config.strategies import configs
from tests.each import each
from tests.examples import examples
from tests.json_data import load_json
from zerokit.config import check_ds_config
from zerokit.config.key_index import all_sections
from zerokit.config.schema import json_schema
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import Document

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FAULTS = load_json("data/config_faults.json")


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [schema, *schema["$defs"].values()]


def places(data: Any) -> set[str]:
    """Where a validator that knows nothing but the schema finds something, as dotted paths."""
    found: set[str] = set()

    def walk(error: jsonschema.ValidationError) -> None:
        if error.context:
            for inner in error.context:
                walk(inner)
        path = [str(key) for key in error.absolute_path]
        if error.validator == "additionalProperties":
            known = set(error.schema["properties"])
            unknown = [key for key in error.instance if key not in known and not key.startswith(("_", "//"))]
            found.update(".".join([*path, str(key)]) for key in unknown)
        else:
            found.add(".".join(path))

    for error in VALIDATOR.iter_errors(data):
        walk(error)
    return found


def test_it_names_its_draft_and_title() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "DeepSpeed configuration"


def test_it_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_key_is_described_and_no_other_is_allowed() -> None:
    for part in objects(SCHEMA):
        assert part["additionalProperties"] is False
        assert r"^(_|//|\$schema$)" in part["patternProperties"]
        assert part["description"]
        for name, key in part["properties"].items():
            assert key["description"], name
            assert "\n" not in key["description"]


def test_every_section_is_there() -> None:
    names = [model.__name__ for model in all_sections()]
    assert len(set(names)) == len(names)
    assert set(names) == {DeepSpeedConfig.__name__, *SCHEMA["$defs"]}


def test_every_reference_leads_somewhere() -> None:
    def walk(part: Any) -> None:
        if isinstance(part, dict):
            assert "$section" not in part
            if "$ref" in part:
                assert part["$ref"].removeprefix("#/$defs/") in SCHEMA["$defs"]
            for value in part.values():
                walk(value)
        elif isinstance(part, list):
            for item in part:
                walk(item)

    walk(SCHEMA)


def test_keys_say_where_and_since_when_they_act() -> None:
    zero = SCHEMA["$defs"]["ZeroOptimization"]["properties"]
    assert zero["stage3_max_live_parameters"]["x-zero-stages"] == [3]
    assert "Acts in stage 3." in zero["stage3_max_live_parameters"]["description"]
    assert "Acts in stages 1, 2 and 3." in zero["reduce_bucket_size"]["description"]
    assert "with `nvme`" in SCHEMA["$defs"]["OffloadParam"]["properties"]["buffer_count"]["description"]
    assert "Since DeepSpeed 0.17.5." in zero["zenflow"]["description"]
    assert zero["reduce_bucket_size"]["default"] == 500_000_000
    assert "x-zero-stages" not in zero["stage"]


def test_second_names_are_completed_as_deprecated() -> None:
    zero = SCHEMA["$defs"]["ZeroOptimization"]["properties"]
    assert zero["prefetch_bucket_size"]["deprecated"] is True
    assert zero["cpu_offload"]["deprecated"] is True


@given(configs())
@examples(60, suppress_health_check=list(HealthCheck))
def test_it_takes_what_the_models_take(data: dict[str, Any]) -> None:
    assert check_ds_config(Document(data, "")) == []
    assert places(json.loads(json.dumps(data))) == set()


@pytest.mark.parametrize(
    "data",
    [
        {"_comment": "fine", "zero_optimization": {"//": 1, "stage": "auto"}},
        {"optimizer": {"type": "ADAMW", "params": {"lr": "auto", "betas": [0.9, 0.95]}}},
        {"optimizer": {"type": "Adam", "params": {"torch_adam": True, "fused": True}}},
        {"optimizer": {"type": "SGD", "params": None}},
        {"scheduler": {"type": "StepLR", "params": {"step_size": 5}}},
        {"checkpoint": {"tag_validation": "Warn"}},
        {"bf16": None, "datastates_ckpt": False},
        {"zero_optimization": {"reduce_bucket_size": 5e8, "prefetch_bucket_size": 1}},
    ],
)
def test_good_configs_pass(data: dict[str, Any]) -> None:
    assert places(data) == set()


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"zero_optimization": {"reduce_bucket_size": "5e8"}}, "zero_optimization.reduce_bucket_size"),
        ({"train_batch_size": "8"}, "train_batch_size"),
        ({"wall_clock_breakdown": "auto"}, "wall_clock_breakdown"),
        ({"zero_optimization": {"sub_group_size": "auto"}}, "zero_optimization.sub_group_size"),
        ({"optimizer": {"type": "AdamWW"}}, "optimizer.type"),
        ({"optimizer": {"type": "sgd"}}, "optimizer.type"),
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type"),
        ({"optimizer": {"type": "adamw", "params": {"rl": 1}}}, "optimizer.params.rl"),
        ({"optimizer": {"type": "AdamW", "params": {"fused": True}}}, "optimizer.params.fused"),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "optimizer.params.betas"),
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler"),
        ({"scheduler": {"type": "WarmupLR", "params": None}}, "scheduler.params"),
        ({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_max_lr": 1}}}, "scheduler.params.warmup_max_lr"),
        (
            {"data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": True}}}},
            "data_efficiency.data_sampling.dynamic_batching",
        ),
        (
            {"tensor_parallel": {"partition_config": {"layer_specs": [{"shap": 1}]}}},
            "tensor_parallel.partition_config.layer_specs.0.shap",
        ),
    ],
)
def test_bad_configs_do_not_pass(data: dict[str, Any], place: str) -> None:
    assert place in places(data)


BY_KEY_ALONE = ("unknown-key", "misplaced-key", "removed-key", "wrong-type", "string-switch", "missing-key")
BY_KEY_ALONE += ("out-of-range", "bad-value", "unfilled-auto")

SAID_BY_NO_SCHEMA = {
    "S07": "10.0 is a whole number to JSON Schema, but not to DeepSpeed, which asks for Python's int",
    "R92": "1e19 is a whole number to JSON Schema, but too large for DeepSpeed",
}


@each(
    [fault for fault in FAULTS if isinstance(fault.get("config"), dict)],
    by=lambda fault: fault["id"][0],
    named=lambda fault: fault["id"],
)
def test_it_finds_the_unknown_keys_wrong_types_and_enums_of_the_faults(fault: dict[str, Any]) -> None:
    """All that the models find in a single key, which is more."""
    if fault["id"] in SAID_BY_NO_SCHEMA:
        assert places(fault["config"]) == set()
        return
    found = places(fault["config"])
    for finding in check_ds_config(Document(fault["config"], "")):
        if finding.rule in BY_KEY_ALONE:
            path = [str(key) for key in finding.path]
            # A validator blames the section where a key is missing, and perhaps only the list for its item.
            above = {".".join(path[:end]) for end in range(len(path) - 1, len(path) + 1)}
            assert above & found, finding
