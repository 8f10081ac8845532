import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import ConfigError, ZerokitError
from zerokit.generation.ds_config import Device, Engine, plan_engine
from zerokit.generation.model import ModelFiles
from zerokit.resolving.auto_word import autos

CPU = Device(is_gpu=False, supports_bfloat16=True, supports_float16=False)
GPU = Device(is_gpu=True, supports_bfloat16=True, supports_float16=True)
OLD_GPU = Device(is_gpu=True, supports_bfloat16=False, supports_float16=True)


@pytest.fixture
def ds_file(tmp_path: Path) -> Path:
    return tmp_path / "ds.json"


def plan(model: ModelFiles, file: Path, data: dict[str, Any], *, dtype: str = "auto", device: Device = CPU) -> Engine:
    file.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return plan_engine(file, requested_dtype=dtype, model=model, device=device)


@pytest.mark.parametrize(("device", "dtype"), [(CPU, "float32"), (GPU, "bfloat16"), (OLD_GPU, "float16")])
def test_the_default_is_stage_3(model: ModelFiles, device: Device, dtype: str) -> None:
    engine = plan_engine(None, requested_dtype="auto", model=model, device=device)
    assert (engine.zero_stage, engine.dtype) == (3, dtype)
    assert engine.ds_config["bf16"] == {"enabled": dtype == "bfloat16"}
    assert engine.ds_config["zero_optimization"]["stage3_param_persistence_threshold"] == 640


def test_a_training_config_is_stripped_and_filled(model: ModelFiles, ds_file: Path) -> None:
    engine = plan(
        model,
        ds_file,
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
            "zero_optimization": {
                "stage": 3,
                "offload_param": {"device": "cpu"},
                "offload_optimizer": {"device": "cpu"},
                "reduce_bucket_size": "auto",
                "zero_quantized_gradients": True,
                "stage3_prefetch_bucket_size": 1000,
                "stage3_gather_16bit_weights_on_model_save": True,
            },
        },
    )
    assert list(autos(engine.ds_config)) == []
    assert {"optimizer", "gradient_clipping", "train_batch_size"}.isdisjoint(engine.ds_config)
    zero = engine.ds_config["zero_optimization"]
    assert zero["offload_param"] == {"device": "cpu"}
    assert {"offload_optimizer", "zero_quantized_gradients"}.isdisjoint(zero)
    assert zero["stage3_prefetch_bucket_size"] == 1000
    assert zero["reduce_bucket_size"] == 64 * 64


@pytest.mark.parametrize("data", [{}, {"zero_optimization": {"stage": 0}}])
def test_stage_0(model: ModelFiles, ds_file: Path, data: dict[str, Any]) -> None:
    assert plan(model, ds_file, data).zero_stage == 0


@pytest.mark.parametrize(
    ("data", "requested", "dtype"),
    [
        ({"bf16": {"enabled": True}}, "auto", "bfloat16"),
        ({"bf16": {"enabled": False}}, "auto", "float32"),
        ({"bf16": {"enabled": "auto"}}, "float32", "float32"),
        ({}, "float16", "float16"),
    ],
)
def test_number_formats(model: ModelFiles, ds_file: Path, data: dict[str, Any], requested: str, dtype: str) -> None:
    assert plan(model, ds_file, data, dtype=requested, device=GPU).dtype == dtype


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"zero_optimization": {"stage": 2}}, "(zero_optimization.stage): stage 2 divides"),
        ({"zero_optimization": {"stage": "auto"}}, '"auto" is no stage'),
        ({"zero_optimisation": {"stage": 3}}, "Did you mean 'zero_optimization'?"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "auto"}}},
            '(zero_optimization.offload_param.device): "auto" has no value in generation',
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/none"}}},
            "'/none' is no folder",
        ),
        ({"tensor_parallel": {"autotp_size": 2}}, "(tensor_parallel): is not supported"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both enabled"),
    ],
)
def test_what_generation_cannot_use(model: ModelFiles, ds_file: Path, data: dict[str, Any], message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        plan(model, ds_file, data)
    assert message in str(caught.value)


def test_dtype_and_config_agree(model: ModelFiles, ds_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--dtype: float32, but .* says bfloat16"):
        plan(model, ds_file, {"bf16": {"enabled": True}}, dtype="float32")
    with pytest.raises(ConfigError, match="this device has no float16"):
        plan(model, ds_file, {}, dtype="float16")
