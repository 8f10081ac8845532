from itertools import product
from typing import Any

import pytest

from zerokit.config import TARGETS, Target, build_ds_config, cross_check, load_ds_config
from zerokit.config.auto import autos
from zerokit.errors import ConfigError


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_whatever_is_built_is_valid_and_without_warnings(target: Target, zero_stage: int) -> None:
    devices: tuple[Any, ...] = (None, "cpu", "nvme")
    precisions: tuple[Any, ...] = (None, "bf16", "fp16", "fp32")
    built = 0
    refused: list[ConfigError] = []
    for optimizer, param, precision in product(devices, devices, precisions):
        nvme_path = "/nvme" if "nvme" in (optimizer, param) else None
        try:
            config = build_ds_config(
                zero_stage=zero_stage,
                offload_optimizer=optimizer,
                offload_param=param,
                nvme_path=nvme_path,
                precision=precision,
                target=target,
            )
        except ConfigError as error:
            refused.append(error)
            continue
        built += 1
        assert cross_check(config, target=target) == []
        assert load_ds_config(config.dump()) == config
    assert all(error.hint for error in refused)
    without_precision = 1 if target == "deepspeed" else 0
    assert built == {0: 1, 1: 2, 2: 2, 3: 9}[zero_stage] * (4 - without_precision)


def test_the_trainers_arguments_apply() -> None:
    assert build_ds_config(zero_stage=2, precision=None).dump() == {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }


def test_stage_3_saves_whole_weights() -> None:
    for target in TARGETS:
        config = build_ds_config(zero_stage=3, target=target)
        assert config.zero_optimization.stage3_gather_16bit_weights_on_model_save is True


def test_deepspeed_alone_gets_numbers_and_an_optimizer() -> None:
    data = build_ds_config(zero_stage=2, micro_batch_size=4, target="deepspeed").dump()
    assert list(autos(data)) == []
    assert data["train_micro_batch_size_per_gpu"] == 4
    assert data["gradient_accumulation_steps"] == 1
    assert data["optimizer"]["type"] == "AdamW"


@pytest.mark.parametrize("target", ["trainer", "accelerate"])
def test_optimizer_and_schedule_are_left_to_the_script(target: Target) -> None:
    assert not {"optimizer", "scheduler"} & set(build_ds_config(zero_stage=2, target=target).dump())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_chosen_precision_stands_alone(precision: Any) -> None:
    data = build_ds_config(zero_stage=2, precision=precision).dump()
    assert data[precision] == {"enabled": True}
    assert not {"bf16", "fp16"} - {precision} & set(data)


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ({"zero_stage": 4}, "one of 0, 1, 2, 3"),
        ({"zero_stage": 2, "offload_param": "cpu"}, "needs ZeRO stage 3"),
        ({"zero_stage": 0, "offload_optimizer": "cpu"}, "the stage is 0"),
        ({"zero_stage": 3, "offload_param": "nvme"}, "needs a folder"),
        ({"zero_stage": 2, "offload_optimizer": "nvme", "nvme_path": "/x"}, "needs ZeRO stage 3"),
        ({"zero_stage": 3, "nvme_path": "/x"}, "nothing is offloaded"),
        ({"zero_stage": 3, "offload_param": "disk"}, "one of"),
        ({"zero_stage": 3, "micro_batch_size": 0}, "at least 1"),
        ({"zero_stage": 3, "precision": "int8"}, "no precision"),
        ({"zero_stage": 3, "target": "lightning"}, "no target"),
        ({"zero_stage": 3, "precision": None, "target": "deepspeed"}, "cannot choose"),
    ],
)
def test_decisions_that_do_not_go_together_are_refused(decisions: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_ds_config(**decisions)
