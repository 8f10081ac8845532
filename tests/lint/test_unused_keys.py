"""One judge of what has no effect: check, resolve, diff, schema and explain say the same of a key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given

from tests.config.strategies import configs
from tests.examples import examples
from zerokit.config import load_ds_config
from zerokit.config.base import ALL_STAGES, in_stages
from zerokit.config.conditions import Acts, ConfigView
from zerokit.config.descriptions import description
from zerokit.config.key_index import all_sections, sections
from zerokit.config.schema import json_schema
from zerokit.config.unused_keys import unused_keys
from zerokit.documents import Document, KeyPath, dotted
from zerokit.errors import ConfigError
from zerokit.lint import check_document
from zerokit.lint.explain import explain
from zerokit.lint.refusals import with_refusals
from zerokit.resolving.diff import differences
from zerokit.resolving.run import Run
from zerokit.resolving.trace import resolve

MICRO = {"train_micro_batch_size_per_gpu": 1}


def zero(stage: int, **keys: Any) -> dict[str, Any]:
    return {**MICRO, "zero_optimization": {"stage": stage, **keys}}


NVME = {"device": "nvme", "nvme_path": "/local_nvme"}

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "never read": ({**zero(1), "disable_allgather": True}, "disable_allgather"),
    "of the oldest form": ({**zero(1), "allgather_size": 1e8}, "allgather_size"),
    "pipeline.stages": ({**zero(1), "pipeline": {"stages": 4}}, "pipeline.stages"),
    "pipeline in stage 3": ({**zero(3), "pipeline": {"activation_checkpoint_interval": 1}}, "pipeline"),
    "stage": (zero(2, sub_group_size=5), "zero_optimization.sub_group_size"),
    "NVMe on the CPU": (
        zero(3, offload_param={"device": "cpu", "buffer_count": 9}),
        "zero_optimization.offload_param.buffer_count",
    ),
    "NVMe nowhere": (
        zero(3, offload_param={"device": "none", "buffer_count": 9}),
        "zero_optimization.offload_param.buffer_count",
    ),
    "fast_init": (
        zero(3, offload_optimizer={**NVME, "fast_init": True}),
        "zero_optimization.offload_optimizer.fast_init",
    ),
    "aio": ({**zero(3, offload_param={"device": "cpu"}), "aio": {"queue_depth": 32}}, "aio"),
    "prescaled": ({**zero(1), "prescale_gradients": True}, "prescale_gradients"),
    "predivided": ({**zero(1), "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
    "untested in stage 0": ({**zero(0), "zero_allow_untested_optimizer": True}, "zero_allow_untested_optimizer"),
    "DeepCompile": ({**zero(3), "compile": {"symmetric_memory": True}}, "compile.symmetric_memory"),
    "loss scaling": ({**zero(2), "fp16": {"enabled": True, "loss_scale": 8, "hysteresis": 3}}, "fp16.hysteresis"),
    "AdamW": (
        {**zero(2), "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "adam_w_mode": False}}},
        "optimizer.params.adam_w_mode",
    ),
}

ACTING: dict[str, dict[str, Any]] = {
    "aio with a checkpoint writer": {**zero(1), "aio": {"queue_depth": 32}, "checkpoint": {"writer": {}}},
    "aio with NVMe": {**zero(3, offload_optimizer=NVME), "aio": {"queue_depth": 32}},
    "prescaled without reduce_scatter": {**zero(2, reduce_scatter=False), "prescale_gradients": True},
    "predivided in stage 3": {**zero(3, reduce_scatter=False), "gradient_predivide_factor": 2.0},
    "Muon without NVMe": {
        **zero(3, reduce_scatter=False, save_muon_momentum_buffer_in_memory=True),
        "optimizer": {"type": "Muon", "params": {"muon_lr": 0.02, "adam_lr": 3e-4}},
    },
    "gathered for a divided model": {
        **zero(1, stage3_gather_16bit_weights_on_model_save=True),
        "tensor_parallel": {"autotp_size": 2},
    },
}


def idle(config: dict[str, Any], target: str | None = "deepspeed") -> set[str]:
    known = ConfigView(load_ds_config(config), target=target)
    return {dotted(one.path) for one in unused_keys(known) if not one.harmless}


def lost(config: dict[str, Any], target: Any = "deepspeed") -> dict[str, str]:
    document = Document(config, "ds.json")
    run = Run.of(target=target, num_gpus=1)
    resolution = with_refusals(resolve(document, run), document, run)
    return {one.name: one.message for one in resolution.lost}


def found_at(config: dict[str, Any]) -> set[KeyPath]:
    findings = check_document(Document(config, "ds.json"), Run.of(target="deepspeed", num_gpus=1)).findings
    return {finding.path for finding in findings}


def is_said(path: str, places: set[KeyPath]) -> bool:
    """Whether a finding is at the key, or speaks of it at its section."""
    keys = tuple(path.split("."))
    if keys[0] == "compile" and any(place[:1] == ("compile",) for place in places):
        return True  # compile-off names the first and counts the others
    return any(keys[: len(place)] == place for place in places if place)


@pytest.mark.parametrize(("config", "path"), CASES.values(), ids=CASES)
def test_all_say_that_it_does_nothing(config: dict[str, Any], path: str) -> None:
    assert path in idle(config)
    assert lost(config)[path].startswith("it ")
    messages = {
        dotted(finding.path): finding.message
        for finding in check_document(Document(config, "ds.json"), Run.of(target="deepspeed")).findings
    }
    assert lost(config)[path].removeprefix("it ") in messages[path]
    keys = path.split(".")
    without: Any = load_ds_config(config).dump()
    section = without
    for key in keys[:-1]:
        section = section[key]
    del section[keys[-1]]
    difference = differences(load_ds_config(config), load_ds_config(without))
    assert all(one.without_effect for one in difference if dotted(one.path).startswith(path))


@pytest.mark.parametrize("config", ACTING.values(), ids=ACTING)
def test_none_says_so_of_what_acts(config: dict[str, Any]) -> None:
    assert idle(config) == set()
    assert lost(config) == {}
    rules = {
        finding.rule for finding in check_document(Document(config, "ds.json"), Run.of(target="deepspeed")).findings
    }
    assert not rules & {"aio-unused", "prescaled-gradients", "muon-buffer-unused", "stage3-key", "idle-key"}


@given(configs())
@examples(120, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
def test_they_agree_on_any_config(config: dict[str, Any]) -> None:
    config = {**MICRO, **config}
    try:
        says, places = idle(config), found_at(config)
        lost_keys = lost(config)
    except ConfigError:
        return
    judged = {name for name in lost_keys if lost_keys[name].startswith("it ")}
    resolved_auto = '"auto"' in str(config) or "'auto'" in str(config)
    if not resolved_auto:
        assert judged <= says
        assert {path for path in says - judged if not is_said(path, places)} == set()
    assert [path for path in says if not is_said(path, places)] == []


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


@pytest.mark.parametrize("model", list(all_sections()), ids=lambda model: model.__name__)
def test_schema_and_explain_say_what_is_judged(model: Any, schema: dict[str, Any]) -> None:
    properties = schema["$defs"].get(model.__name__, schema)["properties"]
    paths = {path for path, at in sections().items() if at is model}
    for name, field in model.model_fields.items():
        acts = next((item for item in field.metadata if isinstance(item, Acts)), Acts())
        said = description(model, name)
        assert properties[name]["description"] == said
        if acts.stages != ALL_STAGES:
            assert f"in {in_stages(acts.stages)}" in said
            assert properties[name]["x-zero-stages"] == list(acts.stages)
        if acts.when is not None:
            assert (acts.when.words or "") in said
            assert (acts.when.words is None) == ("DeepSpeed does not use it" in said)
        for path in list(paths)[:1]:
            if acts.when is not None:
                assert said in explain(dotted((*path, name)))
