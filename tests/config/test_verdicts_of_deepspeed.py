"""What zerokit says of a config against what the installed DeepSpeed does with it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.config.strategies import configs, sections
from tests.examples import examples
from zerokit.config import DeepSpeedConfig, check_ds_config, load_ds_config
from zerokit.config.key_index import sections as all_places
from zerokit.config.repairs import deepspeed_reads_as
from zerokit.documents import Document

pytest.importorskip("deepspeed")

from deepspeed.runtime import config as ds_config
from deepspeed.runtime.zero import config as zero_config

from tests.config.deepspeed_models import MODELS

pytestmark = pytest.mark.torch

BETWEEN_KEYS = ("compute_grad_norm", "ratio", "cpu_offload", "cpu_offload_param", "loss_scale_window")
BETWEEN_KEYS += ("fp16_master_weights_and_grads", "bf16_master_weights_and_grads", "bf16_optimizer_states")
"""Keys that DeepSpeed's models compare with others; `zerokit.lint` has the rules."""


OTHER_REASONS = (*BETWEEN_KEYS, "use_gds", "train_micro_batch_size_per_gpu")
"""And those that it refuses for want of a GPU, or of any batch size."""


OUR_KEYS = sorted((*map(str, path), name) for path, model in all_places().items() for name in model.model_fields)


def _without_combinations(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    left_out = (*BETWEEN_KEYS, "min_loss_scale", "stage3_gather_fp16_weights_on_model_save", "partition_config")
    return {key: _without_combinations(value) for key, value in data.items() if key not in left_out}


@pytest.mark.parametrize("path", [path for path in MODELS if len(path) == 1], ids=".".join)
@given(data=st.data())
@examples(25, suppress_health_check=list(HealthCheck))
def test_deepspeed_takes_every_section_that_the_models_take(path: tuple[str, ...], data: st.DataObject) -> None:
    ours = all_places()[path]
    section = _without_combinations(data.draw(sections(ours.__name__, auto=False)))
    config = load_ds_config({path[0]: section})
    written = config.dump()[path[0]]
    parsed = MODELS[path](**written).model_dump(by_alias=True, exclude={"dtype"})
    for key, value in written.items():
        if not isinstance(value, dict | list | None):  # DeepSpeed decides what is left open
            assert parsed[key] == value or str(parsed[key]) == value, key


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1e20, -1.0, "8", "true", "cpu", "x", "", "1e3", [], {}, [1], {"x": 1}]),
)


@pytest.mark.parametrize("path", [path for path in MODELS if len(path) == 1], ids=".".join)
@given(data=st.data())
@examples(60, suppress_health_check=list(HealthCheck))
def test_what_deepspeeds_models_refuse_is_an_error(path: tuple[str, ...], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(MODELS[path].model_fields)))
    section = {key: data.draw(WRONG)}
    try:
        MODELS[path](**section)
    except (ValidationError, AssertionError, ValueError, TypeError):
        findings = check_ds_config(Document({path[0]: section}, ""))
        # A fraction between two keys is a rule of `zerokit.lint`.
        assert any(finding.severity == "error" for finding in findings) or key in BETWEEN_KEYS, section


@given(data=st.data())
@examples(2000, suppress_health_check=list(HealthCheck))
def test_what_deepspeed_refuses_anywhere_is_an_error(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(OUR_KEYS))
    wrong: Any = data.draw(WRONG)
    for name in reversed(path):
        wrong = {name: wrong}
    try:
        ds_config.DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **copy.deepcopy(wrong)})
    except Exception:
        findings = check_ds_config(Document(wrong, ""))
        assert any(finding.severity == "error" for finding in findings) or path[-1] in OTHER_REASONS, wrong


@given(configs())
@examples(40, suppress_health_check=list(HealthCheck))
def test_writing_the_defaults_out_changes_nothing_for_deepspeed(data: dict[str, Any]) -> None:
    data = _without_combinations({key: value for key, value in data.items() if "batch" not in key})
    for switched_on_together in ("fp16", "autotuning", "data_efficiency", "gradient_accumulation_steps"):
        data.pop(switched_on_together, None)
    config = load_ds_config({**data, "train_micro_batch_size_per_gpu": 1})
    try:
        expected = _parsed(config.dump())
    except (ValueError, AssertionError, TypeError, AttributeError, ds_config.DeepSpeedConfigError):
        return
    assert _parsed(config.dump(all=True)) == expected


@given(sections("PartitionConfig"))
@examples(30, suppress_health_check=list(HealthCheck))
def test_writing_out_how_layers_are_divided_changes_nothing(data: dict[str, Any]) -> None:
    from deepspeed.module_inject.autotp_config import AutoTPConfig

    config = load_ds_config({"tensor_parallel": {"partition_config": data}})
    everything = config.dump(all=True)["tensor_parallel"]["partition_config"]
    try:
        expected = AutoTPConfig.from_dict(data)
    except ValueError:
        return  # `shape` and `partition_dim` have to suit each other
    assert AutoTPConfig.from_dict(everything) == expected


def _parsed(data: dict[str, Any]) -> dict[str, Any]:
    """What DeepSpeed makes of a config, as far as it can be compared."""
    values = vars(ds_config.DeepSpeedConfig(data))
    texts = {name: json.dumps(value, sort_keys=True, default=repr) for name, value in values.items()}
    raw = ("_param_dict", "optimizer_params", "scheduler_params")  # handed on as they are
    return {name: text for name, text in texts.items() if name not in raw and "object at" not in text}


def test_the_lax_reading_of_values_is_pydantics() -> None:
    assert deepspeed_reads_as("8", int) == 8
    assert deepspeed_reads_as("no", bool) is False
    assert deepspeed_reads_as("5e8", int) is None
    for text, stage in (("2", 2), ("3", 3)):
        assert zero_config.DeepSpeedZeroConfig(stage=text).stage == stage


PRESETS = sorted((Path(__file__).parents[2] / "ds_configs").glob("*.json"))

TYPICAL: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "reduce_bucket_size": 4096 * 4096,
    "stage3_prefetch_bucket_size": int(0.9 * 4096 * 4096),
    "stage3_param_persistence_threshold": 40960,
}


def _filled(data: Any, section: str = "") -> Any:
    return {
        key: _filled(value, key)
        if isinstance(value, dict)
        else value
        if value != "auto"
        else TYPICAL.get(key, section == "bf16")
        for key, value in data.items()
    }


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_deepspeed_parses_every_preset(file: Path) -> None:
    data = load_ds_config(file).dump()
    parsed = ds_config.DeepSpeedConfig(_filled(data))
    assert parsed.zero_config.stage == data.get("zero_optimization", {}).get("stage", 0)


def test_a_config_without_anything_has_deepspeeds_defaults() -> None:
    parsed = ds_config.DeepSpeedConfig({"train_batch_size": 1})
    ours = DeepSpeedConfig()
    assert parsed.gradient_clipping == ours.gradient_clipping
    assert parsed.aio_config == ours.aio.dump(all=True)  # type: ignore[union-attr]
    assert parsed.zero_config.model_dump(exclude={"offload_param", "offload_optimizer"})["stage"] == 0
