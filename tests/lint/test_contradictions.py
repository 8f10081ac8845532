"""What keys contradict each other, and which of them is not filled in: the oldest rules."""

from typing import Any

import pytest

from tests.json_data import load_json
from zerokit.choices import Target
from zerokit.documents import parse_json
from zerokit.lint import check_config, check_document
from zerokit.resolving.run import Run


def findings(data: dict[str, Any], target: Target | None = None, num_gpus: int | None = None) -> dict[str, str]:
    """Rule -> severity, for a config whose batch size is not the matter; without what is only information."""
    data = {"train_micro_batch_size_per_gpu": 1, **data}
    report = check_config(data, Run.of(target=target, num_gpus=num_gpus))
    return {finding.rule: finding.severity for finding in report.findings if finding.severity != "info"}


def zero(stage: Any, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


CONTRADICTIONS = load_json("lint/contradictions.json")
"""Configs, and the severity of the rules that find something in them."""


@pytest.mark.parametrize(("data", "expected"), CONTRADICTIONS)
def test_what_sections_contradict(data: dict[str, Any], expected: dict[str, str]) -> None:
    found = findings(data)
    assert expected.items() <= found.items()
    errors = {rule for rule, severity in found.items() if severity == "error"}
    assert errors <= expected.keys()


EVERYWHERE = {
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto", "offload_param": {"device": "auto"}},
}


@pytest.mark.parametrize(
    ("data", "good_for"),
    [
        (EVERYWHERE, {"trainer", "accelerate", None}),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, {"trainer", "accelerate", None}),
        ({"optimizer": {"type": "AdamW", "params": {"betas": "auto"}}}, {"trainer", None}),
        ({"optimizer": {"type": "AdamW", "params": {"betas": ["auto", 0.9]}}}, set()),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "auto"}}}, set()),
        ({"tensor_parallel": {"autotp_size": "auto"}}, set()),
        ({"bfloat16": {"enabled": "auto"}}, set()),
        ({"zero_optimization": {"prefetch_bucket_size": "auto"}}, set()),
        ({"data_types": {"keep_in_fp32_modules": "auto"}}, {"deepspeed", None}),
        ({"zero_optimization": {"stage": 1, "zenflow": {"select_interval": "auto"}}}, {"deepspeed", None}),
    ],
)
def test_auto_is_good_where_the_target_fills_it(data: dict[str, Any], good_for: set[Target | None]) -> None:
    targets: tuple[Target | None, ...] = ("trainer", "accelerate", "deepspeed", None)
    assert {target for target in targets if "unfilled-auto" not in findings(data, target)} == good_for


def test_sequence_parallel_ranks_share_a_sample() -> None:
    data = {"train_batch_size": 8, "gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": 2}
    assert "error" not in findings({**data, "sequence_parallel_size": 2}, num_gpus=8).values()
    assert "error" in findings({**data, "sequence_parallel_size": 3}, num_gpus=8).values()
    assert "batch-size" not in findings({**data, "tensor_parallel": {"autotp_size": 2}}, num_gpus=16)


def test_a_second_name_is_found_as_it_is_written() -> None:
    text = '{"train_batch_size": 1, "zero_optimization": {"stage": 2, "max_live_parameters": 5}}'
    (finding,) = (found for found in check_document(parse_json(text)).findings if found.rule == "stage3-key")
    assert finding.path == ("zero_optimization", "max_live_parameters")
