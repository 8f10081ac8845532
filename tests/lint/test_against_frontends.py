"""What the rules say of stops before DeepSpeed's own, against what transformers and accelerate do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lint.asking import found, said
from zerokit.config.repairs import edited
from zerokit.resolving.arguments import Arguments

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch

from tests.resolving.handing_over import by_accelerate, by_the_trainer, parsed, without_an_engine

pytestmark = pytest.mark.torch

AUTO: dict[str, Any] = {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}


@pytest.fixture(autouse=True)
def handed_over() -> Iterator[None]:
    with without_an_engine():
        yield


def trainer(config: dict[str, Any], **given: Any) -> dict[str, Any]:
    return by_the_trainer(config, Arguments("trainer", {"max_steps": 10, **given}), 2)


def test_steps_that_are_absent_beside_the_whole_batch_stop_every_run_that_accumulates() -> None:
    config = {**AUTO, "train_batch_size": "auto", "zero_optimization": {"stage": 2}}
    (finding,) = found("lost-argument", config, target="trainer")
    assert finding.severity == "warning"
    parsed(trainer(config)["config_params"], 2)
    with pytest.raises(AssertionError, match="Check batch related parameters"):
        parsed(trainer(config, gradient_accumulation_steps=4)["config_params"], 2)
    fixed = edited(config, finding.fix)
    parsed(trainer(fixed, gradient_accumulation_steps=4)["config_params"], 2)
    # Without the whole batch only DeepSpeed's own counts are wrong.
    alone = {key: value for key, value in config.items() if key != "train_batch_size"}
    assert said("lost-argument", alone, target="trainer") == [("", "info")]
    parsed(trainer(alone, gradient_accumulation_steps=4)["config_params"], 2)


@pytest.mark.parametrize(("target", "hand_over"), [("trainer", by_the_trainer), ("accelerate", by_accelerate)])
def test_an_offload_under_its_old_name_is_not_seen(
    target: Any, hand_over: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.accelerator.map_pytorch_optim_to_deepspeed", lambda optimizer: "mapped")
    given = {"max_steps": 10} if target == "trainer" else {"batch_size": 1}
    arguments = Arguments(target, given)
    config = {**AUTO, "zero_optimization": {"stage": 2, "cpu_offload": True}}
    # tests/lint/test_optimizer_steps.py has DeepSpeed refuse such an optimizer.
    assert isinstance(hand_over(config, arguments, 1)["optimizer"], torch.optim.SGD)
    (finding,) = found("deprecated-key", config, target=target)
    assert finding.severity == "error"
    assert hand_over(edited(config, finding.fix), arguments, 1)["optimizer"] == "mapped"
    place = "zero_optimization.cpu_offload"
    for harmless in (
        {**config, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}},
        {**config, "zero_force_ds_cpu_optimizer": False},
    ):
        assert said("deprecated-key", harmless, target=target) == [(place, "warning")]


@pytest.mark.parametrize("section", ["fp16", "bf16"])
def test_a_switch_in_quotes_stops_the_trainer(section: str) -> None:
    config = {**AUTO, section: {"enabled": "true"}, "zero_optimization": {"stage": 2}}
    with pytest.raises(ValueError, match=f"ds {section}.enabled=true vs hf"):
        trainer(config, **{section: True})
    assert said("wrong-type", config, target="trainer") == [(f"{section}.enabled", "error")]
    for target in ("accelerate", "deepspeed", None):
        assert said("wrong-type", config, target=target) == [(f"{section}.enabled", "warning")]
    (finding,) = found("wrong-type", config, target="trainer")
    parsed(trainer(edited(config, finding.fix), **{section: True})["config_params"], 2)
