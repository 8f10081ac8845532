"""zerokit's models against the DeepSpeed that is installed: keys, second names, defaults, verdicts."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel

from tests.config.strategies import sections
from zerokit.config import (
    BF16,
    FP16,
    ActivationCheckpointing,
    Aio,
    DeepSpeedConfig,
    LeafModule,
    OffloadOptimizer,
    OffloadParam,
    Section,
    ZenFlow,
    ZeroOptimization,
    cross_check,
    load_ds_config,
)
from zerokit.config.base import second_names
from zerokit.config.optimizer import (
    DEEPSPEED_OPTIMIZERS,
    DEEPSPEED_SCHEDULERS,
    TORCH_OPTIMIZERS,
    TORCH_SCHEDULERS,
)
from zerokit.config.removed import REMOVED_KEYS

torch = pytest.importorskip("torch")
ds_config = pytest.importorskip("deepspeed.runtime.config")

from deepspeed.runtime import constants, lr_schedules, precision_config  # noqa: E402
from deepspeed.runtime.activation_checkpointing import config as activation_config  # noqa: E402
from deepspeed.runtime.swap_tensor import aio_config  # noqa: E402
from deepspeed.runtime.zenflow import zenflow_config  # noqa: E402
from deepspeed.runtime.zero import config as zero_config  # noqa: E402
from deepspeed.runtime.zero import leaf_module_config, offload_config  # noqa: E402

PAIRS = [
    (ZeroOptimization, zero_config.DeepSpeedZeroConfig),
    (OffloadParam, offload_config.DeepSpeedZeroOffloadParamConfig),
    (OffloadOptimizer, offload_config.DeepSpeedZeroOffloadOptimizerConfig),
    (LeafModule, leaf_module_config.DeepSpeedZeroLeafModuleConfig),
    (ZenFlow, zenflow_config.ZenFlowConfig),
    (FP16, precision_config.DeepSpeedFP16Config),
    (BF16, precision_config.DeepSpeedBF16Config),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda model: model.__name__)
def test_keys_second_names_and_defaults_are_deepspeeds(ours: type[Section], theirs: type[BaseModel]) -> None:
    expected = {field.alias or name: (name, field) for name, field in theirs.model_fields.items()}
    assert set(ours.model_fields) == set(expected)
    assert second_names(ours) == {key: name for key, (name, _) in expected.items() if key != name}
    for key, (_, field) in expected.items():
        default = ours.model_fields[key].get_default(call_default_factory=True)
        their_default = field.get_default(call_default_factory=True)
        if isinstance(default, Section):
            assert default.dump(all=True) == their_default.model_dump()
        else:
            assert default == their_default, key


def test_sections_without_a_deepspeed_model_have_its_keys_and_defaults() -> None:
    assert Aio().dump(all=True) == aio_config.AIO_DEFAULT_DICT
    checkpointing = {name: field.default for name, field in ActivationCheckpointing.model_fields.items()}
    assert checkpointing == activation_config.ACT_CHKPT_DEFAULT


@pytest.mark.parametrize(
    ("key", "constant"),
    [
        (key, f"{key.upper()}_DEFAULT")
        for key in DeepSpeedConfig.model_fields
        if hasattr(constants, f"{key.upper()}_DEFAULT")
    ],
)
def test_top_level_defaults_are_deepspeeds(key: str, constant: str) -> None:
    assert getattr(DeepSpeedConfig(), key) == getattr(constants, constant)


def test_every_top_level_key_constant_is_known() -> None:
    keys = {
        value
        for name, value in vars(constants).items()
        if f"{name}_DEFAULT" in vars(constants) and isinstance(value, str) and name.lower() == value
    }
    inside_sections = {"legacy_fusion", "check_overflow", *BF16.model_fields, *FP16.model_fields}
    inside_sections |= {"grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"}
    assert keys - inside_sections <= set(DeepSpeedConfig.model_fields)


def test_removed_keys_are_those_that_deepspeed_refuses() -> None:
    expected = {(key,) for key in ds_config._REMOVED_TOP_LEVEL_CONFIG_KEYS}
    expected |= {("zero_optimization", key) for key in ds_config._REMOVED_ZERO_CONFIG_KEYS}
    assert set(REMOVED_KEYS) == expected


def test_optimizers_and_schedulers_are_those_of_deepspeed_and_torch() -> None:
    assert {name.lower() for name in DEEPSPEED_OPTIMIZERS} == set(ds_config.DEEPSPEED_OPTIMIZERS)
    assert set(DEEPSPEED_SCHEDULERS) == set(lr_schedules.VALID_LR_SCHEDULES)
    assert all(isinstance(getattr(torch.optim, name), type) for name in TORCH_OPTIMIZERS)
    assert all(isinstance(getattr(torch.optim.lr_scheduler, name), type) for name in TORCH_SCHEDULERS)


@given(sections("ZeroOptimization", auto=False))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_deepspeed_takes_every_zero_section_without_errors_of_ours(data: dict[str, Any]) -> None:
    config = load_ds_config({"zero_optimization": data})
    if any(problem.severity == "error" for problem in cross_check(config)):
        return
    parsed = zero_config.DeepSpeedZeroConfig(**config.zero_optimization.dump())
    assert parsed.stage == config.zero_optimization.stage


@given(sections("FP16", auto=False))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_deepspeed_takes_every_fp16_section_without_errors_of_ours(data: dict[str, Any]) -> None:
    config = load_ds_config({"fp16": data})
    if not any(
        problem.severity == "error" for problem in cross_check(config) if problem.path[:1] == ("fp16",)
    ):
        precision_config.DeepSpeedFP16Config(**config.fp16.dump())


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
    assert parsed.zero_config.stage == data["zero_optimization"]["stage"]
    assert parsed.bfloat16_config.enabled
    assert parsed.train_batch_size == 8
