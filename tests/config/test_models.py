import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.config.strategies import configs
from zerokit.config import DeepSpeedConfig, load_ds_config
from zerokit.config.places import sections

slow_to_draw = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@given(configs())
@slow_to_draw
def test_a_dump_is_what_was_set_and_loads_to_an_equal_config(data: dict[str, Any]) -> None:
    config = load_ds_config(data)
    assert config.dump() == data
    assert load_ds_config(json.loads(json.dumps(config.dump()))) == config


@given(configs())
@slow_to_draw
def test_a_full_dump_loads_to_the_same_values(data: dict[str, Any]) -> None:
    config = load_ds_config(data)
    everything = config.dump(all=True)
    again = load_ds_config(everything)
    assert again == config
    assert again.dump(all=True) == everything


COMMENTS = st.dictionaries(
    st.sampled_from(["_", "_comment", "//", "// why"]),
    st.text(max_size=5) | st.lists(st.integers()),
    max_size=2,
)


@given(COMMENTS, COMMENTS, COMMENTS)
def test_comments_at_any_depth_survive(
    top: dict[str, Any], zero: dict[str, Any], inner: dict[str, Any]
) -> None:
    data = {**top, "zero_optimization": {**zero, "stage": 2, "offload_optimizer": {**inner, "device": "cpu"}}}
    config = load_ds_config(data)
    assert config.zero_optimization.stage == 2
    assert config.dump() == data
    assert load_ds_config(config.dump()) == config


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        DeepSpeedConfig().gradient_clipping = 2.0  # type: ignore[misc]


def test_second_names_load_and_dump_under_the_first() -> None:
    config = load_ds_config(
        {"bfloat16": {"enabled": True}, "zero_optimization": {"prefetch_bucket_size": 5e7}}
    )
    assert config.dump() == {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage3_prefetch_bucket_size": 50_000_000},
    }


def test_the_oldest_form_of_zero_is_stage_1() -> None:
    assert load_ds_config({"zero_optimization": True}).zero_optimization.stage == 1
    assert load_ds_config({"zero_optimization": False}).zero_optimization.stage == 0


def test_every_field_says_what_it_means_and_its_default() -> None:
    for path, model in sections().items():
        for name, field in model.model_fields.items():
            assert field.description, (path, name)
            if path[:1] == ("zero_optimization",) and name not in ("stage", "leaf_module"):
                assert "efault" in field.description, (path, name)


def test_preset_files_equal_their_loaded_dump() -> None:
    for file in (Path(__file__).parents[2] / "ds_configs").glob("*.json"):
        assert load_ds_config(file).dump() == json.loads(file.read_text())
