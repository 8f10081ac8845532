from dataclasses import replace
from typing import Any

import pytest

from tests.lint.asking import RULES, found, zero
from zerokit.config import load_ds_config
from zerokit.findings import SetValue
from zerokit.hardware.cluster import Cluster
from zerokit.lint import check_config
from zerokit.lint.examples import llama_8b, recipe
from zerokit.lint.refusals import refusals
from zerokit.lint.subject import Subject
from zerokit.models import load_model_shape
from zerokit.resolving.run import Run

NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
SIZE = ("zero_optimization", "offload_param", "buffer_size")


@pytest.mark.parametrize(("num_gpus", "share"), [(1, 525_336_576), (4, 131_334_144), (6, None), (8, None)])
def test_a_buffer_holds_a_ranks_share_of_the_largest_parameter(num_gpus: int, share: int | None) -> None:
    config = zero(3, offload_param=NVME)
    findings = found("nvme-buffer-size", config, model=llama_8b(), num_gpus=num_gpus)
    assert [finding.fix for finding in findings] == ([] if share is None else [(SetValue(SIZE, share),)])
    assert all(finding.path == SIZE[:2] for finding in findings)


def test_the_share_is_rounded_up() -> None:
    exact = 128_256 * 4096 // 8
    for size, count in ((exact, 0), (exact - 1, 1)):
        config = zero(3, offload_param={**NVME, "buffer_size": size})
        findings = found("nvme-buffer-size", config, model=llama_8b(), num_gpus=8)
        assert len(findings) == count
        assert all(finding.path == SIZE for finding in findings)


def test_what_is_not_known_is_reported() -> None:
    report = check_config(zero(3, offload_param=NVME), Run.of(num_gpus=8))
    assert report.not_run["nvme-buffer-size"] == ("model",)
    assert found("nvme-buffer-size", zero(2, offload_param=NVME), model=llama_8b(), num_gpus=1) == []


@pytest.mark.parametrize(
    ("section", "arguments", "severity"),
    [
        ({"max_in_cpu": 0}, {}, "warning"),
        ({"max_in_cpu": 0}, {"gradient_checkpointing": False}, "warning"),
        ({"max_in_cpu": 0}, {"gradient_checkpointing": True}, "error"),
        ({}, {"gradient_checkpointing": True}, "warning"),  # a rank's share stays in memory
    ],
)
def test_recomputing_a_layer_surely_takes_all_of_its_buffers(
    section: dict[str, Any], arguments: dict[str, Any], severity: str
) -> None:
    config = zero(3, offload_param={**NVME, "buffer_size": 1e8, **section})
    run = Run(target="trainer", cluster=Cluster(8), model=llama_8b(), given=arguments)
    found = [one for one in check_config(config, run).findings if one.rule == "nvme-buffer-count"]
    assert [one.severity for one in found] == [severity]
    subject = Subject(config=load_ds_config(config), written=config, run=run)
    messages = [refused.message for refused in refusals(subject, RULES.values())]
    assert any("they run out" in message for message in messages) == (severity == "error")


@pytest.mark.parametrize(("own", "rules"), [({}, []), ({"buffer_count": 5}, ["nvme-buffer-count"])])
def test_a_recipe_is_held_to_the_buffers_that_train_adds(own: dict[str, Any], rules: list[str]) -> None:
    given = recipe(training={"gradient_checkpointing": True})
    config = zero(3, offload_param={**NVME, "max_in_cpu": 0, **own})
    run = Run(cluster=Cluster(1), model=llama_8b(), recipe=given)
    found = [one for one in check_config(config, run).findings if one.rule.startswith("nvme-buffer")]
    assert [one.rule for one in found] == rules
    assert all(one.severity == "error" for one in found)
    alone = check_config(config, replace(run, recipe=None, target="trainer")).findings
    assert {one.rule for one in alone} >= {"nvme-buffer-count", "nvme-buffer-size"}


def test_an_encoder_decoder_takes_the_buffers_of_its_largest_layer() -> None:
    t5 = load_model_shape("google-t5/t5-large", allow_network=False)
    run = Run(target="trainer", cluster=Cluster(1), model=t5, given={"gradient_checkpointing": True})
    for count, rules in ((12, []), (9, ["nvme-buffer-count"])):
        config = zero(3, offload_param={**NVME, "buffer_count": count, "max_in_cpu": 0})
        found = [one for one in check_config(config, run).findings if one.rule == "nvme-buffer-count"]
        assert [one.rule for one in found] == rules
        assert all("10 large parameters" in one.message for one in found)


@pytest.mark.parametrize("path", ["", "  ", "nvme", "~/nvme"])
def test_the_folder_is_named_from_the_root(path: str) -> None:
    config = zero(3, offload_param={**NVME, "nvme_path": path})
    assert len(found("nvme-relative-path", config)) == 1
