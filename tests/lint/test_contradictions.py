"""What keys contradict each other, and which of them is not filled in: the oldest rules."""

from typing import Any

import pytest

from zerokit.choices import Target
from zerokit.documents import parse_json
from zerokit.lint import check_config, check_document
from zerokit.resolving.run import Run


def findings(
    data: dict[str, Any], target: Target | None = None, num_gpus: int | None = None
) -> dict[str, str]:
    """Rule -> severity, for a config whose batch size is not the matter; without what is only information."""
    data = {"train_micro_batch_size_per_gpu": 1, **data}
    report = check_config(data, Run.of(target=target, num_gpus=num_gpus))
    return {finding.rule: finding.severity for finding in report.findings if finding.severity != "info"}


NVME = {"device": "nvme", "nvme_path": "/nvme"}


def zero(stage: Any, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, {"bf16-and-fp16": "error"}),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, {}),
        (zero(2, offload_param={"device": "cpu"}), {"offload-param-stage": "error"}),
        (zero(0, offload_param={"device": "cpu"}), {"offload-without-zero": "error"}),
        (zero(0, offload_optimizer={"device": "cpu"}), {"offload-without-zero": "error"}),
        (
            {"zero_optimization": {"stage": 0, "cpu_offload": True}},
            {"offload-without-zero": "error", "deprecated-key": "warning"},
        ),
        (zero(0, offload_optimizer={"device": "none"}), {}),
        (zero(2, offload_optimizer={"device": "cpu"}), {}),
        (zero(2, offload_optimizer=NVME), {"nvme-stage": "error"}),
        (zero(3, offload_optimizer={"device": "nvme"}), {"nvme-path": "error"}),
        (zero(3, offload_param={"device": "nvme"}), {"nvme-path": "error"}),
        (zero(3, offload_param=NVME, offload_optimizer=NVME), {}),
        (zero("auto", offload_param={"device": "cpu"}), {}),
        (zero(2, stage3_max_live_parameters=1e9), {"stage3-key": "warning"}),
        (zero(2, sub_group_size=1e9), {"stage3-key": "warning"}),
        (zero(3, stage3_max_live_parameters=1e9), {}),
        (zero(3, compute_grad_norm=False), {"zero-option": "error"}),
        (zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5}), {"zero-option": "error"}),
        ({**zero(3), "gradient_allreduce_op": "sum"}, {"zero-option": "error"}),
        (
            {"bf16": {"enabled": True, "bf16_optimizer_states": True}, **zero(1)},
            {"precision-option": "error"},
        ),
        ({**zero(1), "fp16": {"enabled": True, "min_loss_scale": 0}}, {"loss-scale-range": "error"}),
        ({"fp16": {"enabled": "auto", "min_loss_scale": 0}}, {"loss-scale-range": "warning"}),
        ({"fp16": {"min_loss_scale": 0}}, {}),
        (zero(2, cpu_offload=True, offload_optimizer={"device": "cpu"}), {"old-and-new-key": "error"}),
        (zero(3, stage3_gather_fp16_weights_on_model_save=True), {"deprecated-key": "warning"}),
        ({"bfloat16": {"enabled": True}}, {"deprecated-key": "warning"}),
        ({"zero_optimization": True}, {"deprecated-key": "warning"}),
        ({"_comment": "fine"}, {}),
        (zero(2, _comment="DeepSpeed refuses it"), {"refused-comment": "error"}),
        (
            {**zero(2), "scheduler": {"type": "StepLR", "params": {"step_size": 10}}},
            {"torch-scheduler": "error"},
        ),
    ],
)
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


def test_a_trainer_argument_that_would_be_lost_is_named() -> None:
    assert findings(zero(2), "trainer")["lost-argument"] == "warning"
    filled = {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", **zero(2)}
    assert "lost-argument" not in findings(filled, "trainer")
    assert "lost-argument" not in findings(zero(2), "accelerate")


def test_sequence_parallel_ranks_share_a_sample() -> None:
    data = {"train_batch_size": 8, "gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": 2}
    assert "error" not in findings({**data, "sequence_parallel_size": 2}, num_gpus=8).values()
    assert "error" in findings({**data, "sequence_parallel_size": 3}, num_gpus=8).values()
    assert "batch-size" not in findings({**data, "tensor_parallel": {"autotp_size": 2}}, num_gpus=16)


@pytest.mark.parametrize(
    ("target", "severity"),
    [(None, "warning"), ("trainer", "error"), ("accelerate", "error"), ("deepspeed", "error")],
)
def test_some_batch_size_is_needed(target: Target | None, severity: str) -> None:
    data = {"gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
    found = {problem.rule: problem.severity for problem in check_config(data, Run.of(target=target)).findings}
    assert found["no-batch-size"] == severity


def test_a_second_name_is_found_as_it_is_written() -> None:
    text = '{"train_batch_size": 1, "zero_optimization": {"stage": 2, "max_live_parameters": 5}}'
    (finding,) = (found for found in check_document(parse_json(text)).findings if found.rule == "stage3-key")
    assert finding.path == ("zero_optimization", "max_live_parameters")
