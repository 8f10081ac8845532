from typing import Any

import pytest

from zerokit.config import check_ds_config, load_ds_config, load_valid_part
from zerokit.documents import Document, dotted, parse_json, parse_yaml
from zerokit.findings import Finding, SetValue


def only(data: Any) -> Finding:
    (finding,) = check_ds_config(Document(data, "ds.json"))
    return finding


@pytest.mark.parametrize(
    ("data", "rule", "message", "hint"),
    [
        ({"train_batch_size": "8"}, "wrong-type", "whole number, not the string", "Write 8"),
        ({"train_batch_size": 2.5}, "wrong-type", "whole number, not 2.5", "Write a whole number"),
        ({"train_batch_size": True}, "wrong-type", "whole number, not true", "Write a whole number"),
        ({"train_batch_size": 0}, "out-of-range", "at least 1, not 0", "at least 1"),
        ({"train_batch_size": "Auto"}, "wrong-type", "not the string", 'Write "auto"'),
        ({"gradient_clipping": -1}, "out-of-range", "at least 0, not -1", "at least 0"),
        ({"gradient_clipping": None}, "wrong-type", "a number, not null", "Write 0 for no clipping"),
        ({"steps_per_print": None, "wall_clock_breakdown": None}, "wrong-type", "null", "default, false"),
        ({"gradient_clipping": float("nan")}, "wrong-type", "finite number, not nan", "finite"),
        ({"zero_optimization": {"stage": 4}}, "bad-value", "one of 0, 1, 2, 3", "Write one of them"),
        ({"zero_optimization": {"stage": True}}, "bad-value", "one of 0, 1, 2, 3", "Write one of them"),
        ({"zero_optimization": 2}, "wrong-type", "a section {...}, not 2", 'Write {"stage": 2}'),
        (
            {"zero_optimization": {"offload_param": {"device": "CPU"}}},
            "bad-value",
            'one of "none"',
            'Write "cpu"',
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "gpu"}}},
            "bad-value",
            'one of "none"',
            "mean 'cpu'",
        ),
        ({"zero_optimization": {"sub_group_size": 1e19}}, "wrong-type", "whole number, not 1e+19", "smaller"),
        ({"bf16": True}, "wrong-type", "a section {...}, not true", 'Write {"enabled": true}'),
        ({"zero_optimization": {"offload_optimizer": False}}, "wrong-type", "not false", "Remove the key"),
        ({"zero_optimization": {"offload_optimizer": True}}, "wrong-type", "not true", "Write a section"),
        ({"fp16": None}, "wrong-type", "a section {...}, not null", "Remove the key"),
        ({"optimizer": None}, "wrong-type", "a section {...}, not null", "Remove the key"),
        ({"wandb": None}, "wrong-type", "a section {...}, not null", "Remove the key"),
        ({"optimizer": "AdamW"}, "wrong-type", "a section {...}, not the string", "Write a section"),
        (
            {"activation_checkpointing": {"cpu_checkpointing": "auto"}},
            "unfilled-auto",
            "is not filled in",
            "default, false",
        ),
        (
            {"optimizer": {"params": {}}},
            "missing-key",
            "'type' is missing from 'optimizer'",
            "ignores the whole section",
        ),
        ({"scheduler": {"type": "WarmupLR"}}, "missing-key", "'params' is missing from 'scheduler'", "fails"),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {}}},
            "missing-key",
            "'total_num_steps' is missing",
            "fails",
        ),
        ({"optimizer": {"type": "OneBitAdam"}}, "bad-value", "'OneBitAdam' was removed", "Use Adam"),
        ({"optimizer": {"type": "sgd"}}, "bad-value", "has an optimizer 'sgd'", 'Write "SGD"'),
        ({"optimizer": {"type": "Adamm"}}, "bad-value", "has an optimizer 'Adamm'", "Did you mean 'Adam'?"),
        (
            {"scheduler": {"type": "warmuplr", "params": {}}},
            "bad-value",
            "has a scheduler",
            'Write "WarmupLR"',
        ),
        (
            {"scheduler": {"type": "LambdaLR", "params": {}}},
            "bad-value",
            "takes Python functions",
            "in the script",
        ),
        ({"communication_data_type": "bfp16"}, "bad-value", 'one of "fp16", "bf16"', 'Write "bf16"'),
        (
            {"compile": {"passes": ["z1", "z2"]}},
            "bad-value",
            "'passes[1]' must be one of",
            "Write one of them",
        ),
        ({"tensor_parallel": {"dtype": "bf16"}}, "bad-value", "object of Python", "in the script"),
        ({"expert_parallel": {"load_balance_coeff": 0.1}}, "wrong-type", "must be null", "null"),
        ({3: 1}, "bad-key", "is not a string", "double quotes"),
        ([], "wrong-type", "must be a section {...}", "section"),
    ],
)
def test_values_are_named_in_plain_words(data: Any, rule: str, message: str, hint: str) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == (rule, "error")
    assert message in finding.message
    assert finding.hint is not None
    assert hint in finding.hint
    assert "\n" not in finding.message + finding.hint
    assert not finding.message.endswith(".")
    assert not finding.hint.endswith(".")


@pytest.mark.parametrize(
    ("section", "type_", "params", "key", "message"),
    [
        ("optimizer", "AdamW", {"lr": "1e-3"}, "lr", "must be a number"),
        ("optimizer", "AdamW", {"lr": -1e-3}, "lr", "at least 0"),
        ("optimizer", "AdamW", {"betas": [0.9]}, "betas", "at least 2 values, not 1"),
        ("optimizer", "AdamW", {"betas": [0.9, 0.99, 0.999]}, "betas", "at most 2 values, not 3"),
        ("optimizer", "AdamW", {"betas": [0.9, 1.5]}, "betas", "less than 1, not 1.5"),
        ("optimizer", "AdamW", {"betas": 0.9}, "betas", "a list [...], not 0.9"),
        ("optimizer", "AdamW", {"amsgrad": True}, "amsgrad", "must be false, not true"),
        ("optimizer", "AdamW", {"weigth_decay": 0.1}, "weigth_decay", "has no parameter 'weigth_decay'"),
        ("optimizer", "AdamW", {"fused": True}, "fused", "AdamW has no parameter 'fused'"),
        ("optimizer", "Adam", {"max_grad_norm": 1.0}, "max_grad_norm", "Adam has no parameter"),
        ("optimizer", "Lion", {"eps": 1e-8}, "eps", "Lion has no parameter 'eps'"),
        ("optimizer", "SGD", {"betas": [0.9, 0.9]}, "betas", "SGD has no parameter"),
        ("optimizer", "SGD", {"nesterov": True}, "params", "needs a 'momentum'"),
        ("optimizer", "Adafactor", {"d": 0.5}, "d", "at least 1"),
        ("optimizer", "MuAdam", {}, "lr", "is missing"),
        ("scheduler", "WarmupLR", {"warmup_num_steps": 10.0}, "warmup_num_steps", "whole number, not 10.0"),
        ("scheduler", "WarmupLR", {"warmup_num_steps": 0}, "warmup_num_steps", "at least 1"),
        ("scheduler", "WarmupLR", {"warmup_type": "cosine"}, "warmup_type", 'one of "log", "linear"'),
        (
            "scheduler",
            "WarmupCosineLR",
            {"total_num_steps": 9, "warmup_max_lr": 1},
            "warmup_max_lr",
            "no parameter",
        ),
        ("scheduler", "WarmupDecayLR", {"total_num_steps": -5}, "total_num_steps", "at least 1"),
        ("scheduler", "OneCycle", {"cycle_min_lr": 0.0}, "cycle_max_lr", "is missing"),
        ("scheduler", "StepLR", {"gamma": 0.1}, "step_size", "is missing"),
        ("scheduler", "OneCycleLR", {"max_lr": 0.1}, "params", "needs 'total_steps'"),
    ],
)
def test_parameters_are_checked_by_the_type(
    section: str, type_: str, params: dict[str, Any], key: str, message: str
) -> None:
    finding = only({section: {"type": type_, "params": params}})
    assert key in dotted(finding.path)
    assert message in finding.message
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("data", "severity"),
    [
        ({"prescale_gradients": "false"}, "error"),
        ({"prescale_gradients": "No"}, "error"),
        ({"prescale_gradients": "maybe"}, "error"),
        ({"prescale_gradients": "true"}, "warning"),
        ({"checkpoint": {"load_universal": "false"}}, "error"),
        ({"activation_checkpointing": {"cpu_checkpointing": "0"}}, "error"),
        ({"optimizer": {"type": "Adam", "params": {"bias_correction": "false"}}}, "error"),
    ],
)
def test_strings_that_deepspeed_takes_for_true_are_named(data: dict[str, Any], severity: str) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("string-switch", severity)


@pytest.mark.parametrize(
    ("data", "severity"),
    [
        ({"wall_clock_breakdown": "true"}, "error"),  # DeepSpeed adds it to another with |
        ({"wall_clock_breakdown": 1}, "warning"),
        ({"checkpoint": {"parallel_write": {"pipeline_stage": "true"}}}, "error"),
        ({"pipeline": {"pipe_partitioned": 1}}, "error"),  # it asks for the type
    ],
)
def test_switches_that_deepspeed_tests_are_checked_more_closely(data: dict[str, Any], severity: str) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("wrong-type", severity)


@pytest.mark.parametrize(
    ("data", "path", "value"),
    [
        ({"zero_optimization": {"overlap_comm": "false"}}, "zero_optimization.overlap_comm", False),
        ({"zero_optimization": {"overlap_comm": 1}}, "zero_optimization.overlap_comm", True),
        ({"zero_optimization": {"stage": "3"}}, "zero_optimization.stage", 3),
        (
            {"zero_optimization": {"reduce_bucket_size": "500000"}},
            "zero_optimization.reduce_bucket_size",
            500000,
        ),
        ({"csv_monitor": {"enabled": 1}}, "csv_monitor.enabled", True),
        ({"prescale_gradients": 1}, "prescale_gradients", True),
    ],
)
def test_what_deepspeed_reads_for_what_it_plainly_means_is_a_warning(
    data: dict[str, Any], path: str, value: Any
) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("wrong-type", "warning")
    assert finding.fix == (SetValue(tuple(path.split(".")), value),)
    node: Any = load_ds_config(data).dump()
    for key in path.split("."):
        node = node[key]
    assert node is value or node == value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("reduce_bucket_size", "5e8", 500_000_000),
        ("reduce_bucket_size", "1k", 1000),
        ("reduce_bucket_size", "1_000", 1000),
        ("reduce_bucket_size", "2.5M", 2_500_000),
        ("reduce_bucket_size", " 8 ", 8),
    ],
)
def test_numbers_as_people_write_them_are_fixed_in_json_and_understood_in_yaml(
    key: str, text: str, value: int
) -> None:
    path = ("zero_optimization", key)
    in_json = load_valid_part(parse_json(f'{{"zero_optimization": {{"{key}": "{text}"}}}}'))
    assert in_json.findings[0].fix == (SetValue(path, value),)
    in_yaml = load_valid_part(parse_yaml(f'zero_optimization:\n  {key}: "{text}"\n'))
    assert in_yaml.findings == []
    for part in (in_json, in_yaml):
        assert part.config is not None
        assert part.config.zero_optimization.reduce_bucket_size == value


def test_suffixes_of_bytes_are_not_guessed() -> None:
    assert only({"aio": {"block_size": "1M"}}).fix == ()
    assert only({"aio": {"block_size": "1MiB"}}).fix == (SetValue(("aio", "block_size"), 2**20),)


def test_other_mistakes_are_named_in_yaml_too() -> None:
    document = parse_yaml('train_batch_size: "x"\nprescale_gradients: "false"\n')
    assert [finding.rule for finding in check_ds_config(document)] == ["wrong-type", "string-switch"]


@pytest.mark.parametrize(
    "data",
    [
        {
            "train_batch_size": None,
            "steps_per_print": None,
            "bf16": None,
            "aio": None,
            "expert_parallel": None,
        },
        {"zero_optimization": {"offload_param": None, "leaf_module": None, "reduce_bucket_size": 5e8}},
        {"optimizer": {"type": "adamw"}},
        {"optimizer": {"type": "AdamW", "params": None}},
        {"optimizer": {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9, "nesterov": True}}},
        {
            "optimizer": {
                "type": "Adam",
                "params": {"lr": 1, "eps": 0, "betas": [0, 0.5], "torch_adam": False},
            }
        },
        {"optimizer": {"type": "AdamW", "params": {"torch_adam": True, "fused": True, "maximize": False}}},
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": None, "warmup_min_lr": [0, 1e-5]}}},
        {"communication_data_type": "FP32"},
        {"datastates_ckpt": False},
        {"datastates_ckpt": {"host_cache_size": 16}},
        {"zero_optimization": {"leaf_module": {"classes": "A"}}},
        {"checkpoint": {"tag_validation": "Warn", "writer": {"type": "FAST", "data_parallel": None}}},
        {
            "tensor_parallel": {
                "partition_config": {"layer_specs": [{"patterns": ["a"], "shape": [[4, 2], -1]}]}
            }
        },
        {
            "autotuning": {"enabled": True},
            "zero_optimization": {"stage": [0, 1], "overlap_comm": [True, False]},
        },
    ],
)
def test_what_deepspeed_takes_in_earnest_is_taken(data: dict[str, Any]) -> None:
    assert check_ds_config(Document(data, "ds.json")) == []
