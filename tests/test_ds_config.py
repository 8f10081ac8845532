"""DSConfig: the Python API for ds_configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit import DSConfig, check
from zerokit.errors import ConfigError, DocumentError, ZerokitError

PRESETS = sorted((Path(__file__).parents[1] / "ds_configs").rglob("*.json"))


def test_keywords_are_the_keys_of_the_json() -> None:
    config = DSConfig(
        train_micro_batch_size_per_gpu=1, zero_optimization={"stage": 3, "offload_param": {"device": "cpu"}}
    )
    assert config.zero_optimization.stage == 3
    assert config.zero_optimization.offload_param is not None
    assert config.zero_optimization.offload_param.device == "cpu"
    assert config.zero_optimization.reduce_bucket_size == 500_000_000
    assert config.to_dict() == {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    }


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_comes_back_as_it_was(file: Path, tmp_path: Path) -> None:
    config = DSConfig.load(file)
    assert config.to_json() == file.read_text()
    (tmp_path / "again.json").write_text(config.to_json())
    assert DSConfig.load(tmp_path / "again.json") == config == DSConfig(**config.to_dict())


def test_what_to_dict_gives_may_be_changed() -> None:
    config = DSConfig(zero_optimization={"stage": 3})
    config.to_dict()["zero_optimization"]["stage"] = 1
    assert config.to_dict() == {"zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"zero_optimisation": {}}, "unknown key 'zero_optimisation'"),
        ({"gradient_clipping": "1.0"}, "must be a number"),
        ({"zero_optimization": {"stage": 5}}, "'stage' must be one of"),
        ({"a": 1, "b": 2}, "and 1 more"),
    ],
)
def test_what_is_not_valid_is_one_error_in_plain_words(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DSConfig(**keys)


def test_a_config_is_checked_for_whole_nodes() -> None:
    with pytest.raises(ZerokitError, match="16 GPUs do not fill nodes of 5"):
        check({"train_micro_batch_size_per_gpu": 1}, num_gpus=16, gpus_per_node=5)


def test_a_file_that_is_not_valid_says_where(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    with pytest.raises(DocumentError, match="no such file"):
        DSConfig.load(file)
    file.write_text('{\n  "gradient_cliping": 1.0\n}')
    with pytest.raises(ConfigError) as caught:
        DSConfig.load(file)
    assert caught.value.where is not None
    assert f"{file}:2" in caught.value.where
    file.write_text("[]")
    with pytest.raises(ConfigError):
        DSConfig.load(file)


def test_check_is_lint_with_the_lines_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(
        '{\n  "train_batch_size": 10,\n  "zero_optimization": {"stage": 2,\n    "offload_param": {"device": "cpu"}}\n}'
    )
    report = DSConfig.load(file).check(target="deepspeed", num_gpus=4)
    assert not report.ok
    assert {finding.line for finding in report.findings if finding.severity == "error"} >= {2, 4}
    data = json.loads(file.read_text())
    assert {finding.rule for finding in DSConfig(**data).check(target="deepspeed", num_gpus=4).findings} == {
        finding.rule for finding in report.findings
    }
    assert DSConfig(train_micro_batch_size_per_gpu=1, zero_optimization={"stage": 2}).check().ok


def test_check_reads_a_launch_file(tmp_path: Path) -> None:
    file = tmp_path / "launch.yaml"
    file.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {gradient_accumulation_steps: 1}\n")
    assert [one.rule for one in check(file, target="accelerate").findings] == ["launch-fixed-value"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arguments": {"max_grad_nrom": 3}}, "max_grad_nrom: .* Did you mean 'max_grad_norm'"),
        ({"arguments": {"max_grad_norm": "3"}}, "max_grad_norm: '3' is not a number"),
        ({"arguments": {"bf16": 1}}, "bf16: 1 is not true or false"),
        ({"arguments": {"warmup_steps": True}}, "warmup_steps: True is not a number"),
        ({"target": "deepspeed", "arguments": {"bf16": True}}, "under the target deepspeed. Leave it out"),
        ({"target": "hf"}, "target: there is no target 'hf'. .* trainer, accelerate, deepspeed"),
    ],
)
def test_resolve_takes_no_target_and_no_argument_that_there_is_not(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DSConfig(train_micro_batch_size_per_gpu=1).resolve(num_gpus=4, **given)


def test_check_takes_no_target_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'trainer'"):
        DSConfig(train_micro_batch_size_per_gpu=1).check(target="trainr")  # type: ignore[arg-type]


def test_an_argument_may_be_given_as_it_is_by_default() -> None:
    config = DSConfig(train_micro_batch_size_per_gpu=1, zero_optimization={"stage": 2})
    found = config.resolve(num_gpus=1, target="accelerate", arguments={"total_num_steps": None})
    assert not found.refused


def test_resolve_fills_auto_by_arguments_and_model() -> None:
    config = DSConfig(
        train_micro_batch_size_per_gpu="auto", zero_optimization={"stage": 2, "reduce_bucket_size": "auto"}
    )
    model = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128},
        **{"intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100},
    }
    resolution = config.resolve(num_gpus=4, model=model, arguments={"per_device_train_batch_size": 3})
    assert resolution["zero_optimization.reduce_bucket_size"] == 128**2
    assert resolution["train_batch_size"] == 12
    assert resolution.refused == ()


def test_there_is_nothing_else_in_the_package() -> None:
    import zerokit

    with pytest.raises(AttributeError, match="no attribute 'Config'"):
        zerokit.Config  # noqa: B018


@pytest.mark.torch
def test_training_arguments_take_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    config = DSConfig.load(PRESETS[0].parents[0] / "zero2.json")
    try:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, deepspeed=config.to_dict(), per_device_train_batch_size=3
        )
        assert arguments.hf_deepspeed_config.config["train_micro_batch_size_per_gpu"] == 3
        assert arguments.deepspeed_plugin.zero_stage == 2
    finally:
        unset_hf_deepspeed_config()


@pytest.mark.torch
def test_deepspeed_initialize_takes_it(tmp_path: Path) -> None:
    """In a process of its own: DeepSpeed opens a process group and keeps it."""
    pytest.importorskip("deepspeed")
    script = tmp_path / "initialize.py"
    script.write_text(
        "import torch, deepspeed\n"
        "from zerokit import DSConfig\n"
        "from zerokit.distributed.extensions import choose_extensions_folder\n"
        "choose_extensions_folder()\n"
        "config = DSConfig(\n"
        "    train_micro_batch_size_per_gpu=2, gradient_clipping=0.5, zero_optimization={'stage': 2},\n"
        "    optimizer={'type': 'AdamW', 'params': {'lr': 0.1, 'torch_adam': True}},\n"
        ")\n"
        "assert config.check(target='deepspeed', num_gpus=1).ok\n"
        "model = torch.nn.Linear(4, 1)\n"
        "engine = deepspeed.initialize(model=model, model_parameters=model.parameters(),\n"
        "                              config=config.to_dict())[0]\n"
        "before = model.weight.detach().clone()\n"
        "engine.backward(engine(torch.ones(2, 4)).sum())\n"
        "engine.step()\n"
        "assert engine.gradient_clipping() == 0.5 and engine.zero_optimization_stage() == 2\n"
        "assert not torch.equal(before, model.weight)\n"
        "torch.distributed.destroy_process_group()\n"
    )
    from tests.tiny import launch

    done = launch([script], ranks=1, launcher="none", env={"PYTHONPATH": str(Path(__file__).parents[1])})
    assert done.returncode == 0, done.stderr[-3000:]
