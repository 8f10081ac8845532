import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.config.strategies import configs
from tests.each import each
from tests.examples import examples
from tests.json_data import load_json
from zerokit.choices import OptimizerName
from zerokit.config import DeepSpeedConfig, load_ds_config
from zerokit.config.base import second_names
from zerokit.config.conditions import Acts
from zerokit.config.key_index import all_sections, canonical, section_at, sections, since, stages_of
from zerokit.config.load import load_valid_part
from zerokit.config.optimizer import params_of_optimizer
from zerokit.config.optimizers import OPTIMIZERS
from zerokit.config.params import offload_only, params_of
from zerokit.config.scheduler import DEEPSPEED_SCHEDULERS, TORCH_SCHEDULERS
from zerokit.config.sections import ZeroOptimization
from zerokit.documents import Document, read_document
from zerokit.errors import DocumentError
from zerokit.releases.versions import key_facts

slow_to_draw = examples(60, suppress_health_check=list(HealthCheck))


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
    st.sampled_from(["_", "_comment", "//", "// why"]), st.text(max_size=5) | st.lists(st.integers()), max_size=2
)


@given(COMMENTS, COMMENTS, COMMENTS, COMMENTS)
def test_comments_at_any_depth_survive(
    top: dict[str, Any], zero: dict[str, Any], inner: dict[str, Any], params: dict[str, Any]
) -> None:
    data = {
        **top,
        "zero_optimization": {**zero, "stage": 2, "offload_optimizer": {**inner, "device": "cpu"}},
        "optimizer": {"type": "AdamW", "params": {**params, "lr": 1e-4}},
    }
    config = load_ds_config(data)
    assert config.zero_optimization.stage == 2
    assert config.dump() == data
    assert load_ds_config(config.dump()) == config


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        DeepSpeedConfig().gradient_clipping = 2.0  # type: ignore[misc]


def test_second_names_load_and_dump_under_the_first() -> None:
    config = load_ds_config(
        {
            "bfloat16": {"enabled": True},
            "zero_optimization": {"prefetch_bucket_size": 5e7},
            "tensor_parallel": {"tensor_parallel": {"tp_size": 2}},
        }
    )
    assert config.dump() == {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage3_prefetch_bucket_size": 50_000_000},
        "tensor_parallel": {"tp": {"tp_size": 2}},
    }


def test_words_of_any_case_load_and_dump_as_the_models_spell_them() -> None:
    data = {"checkpoint": {"tag_validation": "Warn", "writer": {"type": "FAST"}}}
    assert load_ds_config(data).dump() == {"checkpoint": {"tag_validation": "warn", "writer": {"type": "fast"}}}


def test_the_oldest_form_of_zero_is_stage_1() -> None:
    assert load_ds_config({"zero_optimization": True}).zero_optimization.stage == 1
    assert load_ds_config({"zero_optimization": False}).zero_optimization.stage == 0


def test_sections_that_are_absent_have_deepspeeds_defaults() -> None:
    config = DeepSpeedConfig()
    assert config.tensor_parallel.autotp_size == 0
    assert config.timers.throughput.enabled is True
    assert config.data_efficiency.data_sampling.curriculum_learning.enabled is False
    assert config.optimizer is None
    assert config.weight_quantization is None  # its presence alone would switch it on


@pytest.mark.parametrize(
    ("type_", "params", "name", "expected"),
    [
        ("adam", {"lr": 1e-4}, "AdamParams", 1e-8),
        ("AdamW", {"torch_adam": True}, "TorchAdamWParams", 1e-8),
        ("Adam", {"torch_adam": True}, "TorchAdamWParams", 1e-8),
        ("Adam", {"torch_adam": True, "adam_w_mode": False}, "TorchAdamParams", 1e-8),
        ("adagrad", {}, "AdagradParams", 1e-10),
        ("RMSprop", {"alpha": 0.9}, "RMSpropParams", 1e-8),
        ("SGD", {"momentum": 0.9, "nesterov": True}, "SGDParams", None),
    ],
)
def test_parameters_are_those_of_the_optimizers_type(
    type_: str, params: dict[str, Any], name: str, expected: float | None
) -> None:
    optimizer = load_ds_config({"optimizer": {"type": type_, "params": params}}).optimizer
    assert optimizer is not None
    assert optimizer.params is not None
    assert type(optimizer.params).__name__ == name
    assert optimizer.params.get("eps") == expected
    assert optimizer.params.dump() == params


def test_parameters_that_only_an_offloaded_optimizer_takes_are_marked() -> None:
    adam = params_of_optimizer("Adam", {})
    assert adam is not None
    assert offload_only(adam, offloaded=True) == {"fp32_optimizer_states"}
    assert offload_only(adam, offloaded=False) == {"set_grad_none"}


def test_defaults_that_an_offloaded_optimizer_would_refuse_are_not_written_out() -> None:
    config = load_ds_config({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})
    everything = config.dump(all=True)["optimizer"]["params"]
    assert everything["betas"] == [0.9, 0.999]
    assert "set_grad_none" not in everything


def test_a_deprecated_key_is_never_written_out_beside_the_new_one() -> None:
    old, new = "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"
    assert old not in DeepSpeedConfig().dump(all=True)["zero_optimization"]
    config = load_ds_config({"zero_optimization": {"stage": 3, old: True}})
    assert config.dump(all=True)["zero_optimization"][old] is True
    assert new not in config.dump(all=True)["zero_optimization"]


def test_every_field_says_what_it_means_and_its_default() -> None:
    for model in all_sections():
        for name in model.model_fields:
            assert model.model_fields[name].description, (model, name)
            if model is ZeroOptimization and name not in ("stage", "leaf_module"):
                assert "efault" in (model.model_fields[name].description or ""), name


def test_stages_and_releases_come_down_from_the_sections_above() -> None:
    assert stages_of(("zero_optimization", "reduce_bucket_size")) == (1, 2, 3)
    assert stages_of(("zero_optimization", "prefetch_bucket_size")) == (3,)
    assert stages_of(("zero_optimization", "offload_param", "device")) == (3,)
    assert stages_of(("aio", "block_size")) == (0, 1, 2, 3)  # `checkpoint.writer` reads it in every stage
    assert stages_of(("prescale_gradients",)) == (0, 1, 2, 3)
    assert stages_of(("optimizer", "params", "lr")) == (0, 1, 2, 3)
    assert stages_of(("tensor_parallel", "partition_config", "layer_specs", 0, "shape")) == (0, 1, 2, 3)
    assert since(("zero_optimization", "zenflow", "overlap_step")) == "0.17.5"
    assert since(("zero_optimization", "zenflow", "pt_reserved_cores_perc")) == "0.17.6"
    assert since(("train_batch_size",)) is None
    with pytest.raises(KeyError):
        stages_of(("zero_optimization", "stages"))
    with pytest.raises(KeyError):
        since(("zero",))


def test_releases_are_those_of_the_table_of_versions() -> None:
    compared = 0
    for path, model in sections().items():
        for name in model.model_fields:
            facts = key_facts((*path, name))
            if facts is not None:
                assert since((*path, name)) == (str(facts.since) if facts.since else None), (path, name)
                compared += 1
    assert compared > 300


def test_sections_are_found_inside_lists_mappings_and_by_type() -> None:
    assert section_at(("tensor_parallel", "partition_config", "layer_specs", 2)).__name__ == "LayerSpec"  # type: ignore[union-attr]
    metrics = ("data_efficiency", "data_sampling", "curriculum_learning", "curriculum_metrics")
    assert section_at((*metrics, "seqlen", "schedule_config")).__name__ == "CurriculumSchedule"  # type: ignore[union-attr]
    data = {"scheduler": {"type": "OneCycle"}}
    assert section_at(("scheduler", "params"), data).__name__ == "OneCycleParams"  # type: ignore[union-attr]
    assert section_at(("train_batch_size",)) is None
    assert section_at(metrics) is None


def test_every_key_has_one_name_that_comes_first() -> None:
    for path, model in sections().items():
        for name, other in second_names(model).items():
            assert canonical((*path, other)) == (*path, name)


def test_stages_are_stages() -> None:
    for model in all_sections():
        for field in model.model_fields.values():
            for item in field.metadata:
                assert not isinstance(item, Acts) or set(item.stages) <= {0, 1, 2, 3}


def test_preset_files_equal_their_loaded_dump() -> None:
    for file in (Path(__file__).parents[2] / "ds_configs").glob("*.json"):
        assert load_ds_config(file).dump() == json.loads(file.read_text())


FAULTS = load_json("data/config_faults.json")


@each(
    [fault for fault in FAULTS if isinstance(fault.get("config"), dict)],
    by=lambda fault: fault["id"][0],
    named=lambda fault: fault["id"],
)
def test_the_valid_part_of_faulty_configs_loads_dumps_and_loads_again(fault: dict[str, Any]) -> None:
    assert_round_trip(Document(fault["config"], "ds.json"))


@pytest.mark.skipif("ZEROKIT_WILD_CONFIGS" not in os.environ, reason="needs a folder of ds_config files")
def test_the_valid_part_of_configs_from_the_wild_loads_dumps_and_loads_again() -> None:
    for file in sorted(Path(os.environ["ZEROKIT_WILD_CONFIGS"]).glob("*.json")):
        try:
            document = read_document(file)
        except DocumentError:
            continue
        assert_round_trip(document)


def assert_round_trip(document: Document) -> None:
    config, _, written, *_ = load_valid_part(document)
    if config is None:
        assert not isinstance(document.data, dict)
        return
    for text in (json.dumps(config.dump()), json.dumps(config.dump(all=True)), json.dumps(written)):
        assert load_ds_config(json.loads(text)) == config


def test_the_table_of_optimizers_is_complete() -> None:
    assert {spec.name for spec in OPTIMIZERS if spec.starting_point} == set(get_args(OptimizerName))
    assert all(params_of(spec.name) is not None for spec in OPTIMIZERS)
    assert all(params_of(name) is not None for name in (*DEEPSPEED_SCHEDULERS, *TORCH_SCHEDULERS))
