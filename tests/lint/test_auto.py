"""The word "auto": who fills it in, and what becomes of it otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.choices import Target
from zerokit.config.key_index import sections
from zerokit.documents import KeyPath, dotted
from zerokit.findings import Move, Remove
from zerokit.lint import check_config
from zerokit.resolving.auto_word import autos
from zerokit.resolving.filled_keys import FILLED_BY
from zerokit.resolving.run import Run


def optimizer(kind: str = "AdamW", **params: Any) -> dict[str, Any]:
    return {**MICRO, "optimizer": {"type": kind, "params": params}}


@pytest.mark.parametrize(
    ("config", "severities"),
    [
        (zero(3, stage3_max_live_parameters="auto"), ["warning", "error", "error", "warning"]),
        (zero(3, offload_param={"device": "cpu", "buffer_size": "auto"}), ["warning", "error", "error", "warning"]),
        ({**zero(3, sub_group_size="auto"), "train_micro_batch_size_per_gpu": "auto"}, ["error"] * 4),
        ({"zero_optimization": {"stage": 3, "sub_group_size": "auto"}}, ["error"] * 4),
        ({**MICRO, "wall_clock_breakdown": "auto"}, ["error"] * 4),
    ],
)
def test_the_word_is_no_error_where_deepspeed_starts_with_its_default(
    config: dict[str, Any], severities: list[str]
) -> None:
    targets: tuple[Target | None, ...] = (None, "trainer", "accelerate", "deepspeed")
    found_for = [found("unfilled-auto", config, target=target) for target in targets]
    assert [[f.severity for f in findings if f.path[-1] != next(iter(MICRO))] for findings in found_for] == [
        [severity] for severity in severities
    ]


SECTIONS: list[KeyPath] = [
    ("zero_optimization",),
    ("zero_optimization", "offload_optimizer"),
    ("zero_optimization", "offload_param"),
]
KEYS = [(*path, name) for path in SECTIONS for name in sections()[path].model_fields]


@pytest.mark.torch
@pytest.mark.parametrize("path", KEYS, ids=dotted)
def test_deepspeed_starts_with_its_default_where_the_word_is_no_error(path: KeyPath) -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    asked, silent = zero(3), zero(3)
    _set(asked, path, "auto")
    if len(path) == 3:
        _set(silent, path[:-1], {})
    findings = found("unfilled-auto", asked)
    assert {finding.path for finding in findings} <= {path}
    if any(finding.severity == "warning" for finding in findings):
        theirs, default = (ds_config.DeepSpeedConfig(config).zero_config for config in (asked, silent))
        assert theirs.model_dump() == default.model_dump()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (zero("auto"), "drops: the stage is 0, and nothing is divided"),
        (zero(2, offload_optimizer={"device": "auto"}), "drops: the device is none, and nothing is offloaded"),
        ({**MICRO, "bf16": {"enabled": "auto"}}, "drops: bf16 is off, and training runs in fp32"),
        ({**MICRO, "bf16": {"enabled": "auto"}, "fp16": {"enabled": True}}, "drops: bf16 is off"),
        (zero(2, reduce_bucket_size="auto"), "drops: its default applies, 500,000,000"),
        ({**zero(2), "train_batch_size": "auto"}, "compares with a number and fails when it starts"),
        ({**zero(2), "gradient_clipping": "auto"}, "takes for a value and fails at the first step"),
        ({**zero(2), **optimizer(lr="auto")}, "takes for a value"),
    ],
)
def test_what_deepspeed_makes_of_the_word(config: dict[str, Any], words: str) -> None:
    (finding,) = found("unfilled-auto", config, target="deepspeed")
    assert finding.message.endswith(words)


def test_unfilled_autos_are_one_finding_of_each_section() -> None:
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    config = {
        **dict.fromkeys(("train_batch_size", "gradient_clipping"), "auto"),
        **optimizer(**dict.fromkeys(("lr", "betas", "eps"), "auto")),
        "zero_optimization": {**dict.fromkeys(sizes, "auto"), "stage": 3},
    }
    top, params, zero_ = found("unfilled-auto", config, target="deepspeed")
    assert top.message.endswith("; so is 'gradient_clipping'")
    assert params.also == (("optimizer", "params", "betas"), ("optimizer", "params", "eps"))
    assert [edit.path[-1] for edit in zero_.fix if isinstance(edit, Remove)] == list(sizes)
    # What --fix cannot fix comes first, and nothing of the line is fixed by half.
    config["zero_optimization"]["stage"] = "auto"
    *_, zero_ = found("unfilled-auto", config, target="deepspeed")
    assert (zero_.path[-1], len(zero_.also), zero_.fix) == ("stage", 3, ())
    disabled = {"disable": [{"rule": "unfilled-auto", "path": "zero_optimization.stage"}]}
    *_, zero_ = found("unfilled-auto", {**config, "_zerokit": disabled}, target="deepspeed")
    assert (zero_.path[-1], len(zero_.also)) == (sizes[0], 2)


def _set(config: Any, path: KeyPath, value: Any) -> None:
    *parents, key = path
    for parent in parents:
        config = config.setdefault(parent, {})
    config[key] = value


PARSED = sorted(name for name in FILLED_BY["trainer"] if name.split(".")[0] in ("zero_optimization", "bf16", "fp16"))


@pytest.mark.torch
@pytest.mark.parametrize("name", PARSED)
def test_deepspeed_drops_the_word_in_the_sections_that_it_parses(name: str) -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    plain: dict[str, Any] = {**MICRO}
    path = tuple(name.split("."))
    _set(plain, path, "auto")
    asked, silent = ds_config.DeepSpeedConfig(plain), ds_config.DeepSpeedConfig({**MICRO})
    section = {"zero_optimization": "zero_config", "bf16": "bfloat16_config", "fp16": "float16_config"}[path[0]]
    theirs = getattr(asked, section).model_dump()
    default = getattr(silent, section).model_dump()
    for offload in ("offload_optimizer", "offload_param"):
        device = (theirs.pop(offload, None) or {}).get("device", "none")
        default.pop(offload, None)
        assert str(getattr(device, "value", device)) == "none"
    assert theirs == default
    assert said("unfilled-auto", plain, target="deepspeed") == [(name, "error")]


@pytest.mark.torch
def test_accelerate_refuses_what_is_left() -> None:
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    config = {**zero(2, allgather_bucket_size="auto"), "gradient_accumulation_steps": 1}
    plugin = dataclasses.DeepSpeedPlugin(hf_ds_config=config)
    with pytest.raises(ValueError, match=r"`zero_optimization\.allgather_bucket_size` not found in kwargs"):
        plugin.deepspeed_config_process(must_match=False)


@pytest.mark.torch
def test_what_accelerate_fills_without_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    gather = "stage3_gather_16bit_weights_on_model_save"
    offload = {"device": "auto", "nvme_path": "auto"}
    config = zero("auto", offload_optimizer=offload, **{gather: "auto"})
    section = dataclasses.DeepSpeedPlugin(hf_ds_config=config).deepspeed_config["zero_optimization"]
    assert section == {"stage": 2, "offload_optimizer": {"device": "none", "nvme_path": "none"}, gather: False}
    assert said("auto-without-argument", config, target="trainer") == [
        ("zero_optimization.stage", "warning"),
        ("zero_optimization.offload_optimizer.device", "warning"),
    ]
    assert said("auto-without-argument", config, target="accelerate") == []
    nvme = zero(3, offload_param={"device": "nvme", "nvme_path": "auto"}, **{gather: "auto"})
    assert said("auto-without-argument", nvme, target="accelerate") == [
        ("zero_optimization.offload_param.nvme_path", "warning")
    ]
    assert len(said("auto-without-argument", nvme, target="trainer")) == 2


def test_an_old_name_is_fixed_by_the_one_that_is_filled() -> None:
    (finding,) = found("unfilled-auto", zero(3, prefetch_bucket_size="auto"), target="trainer")
    section = "zero_optimization"
    new = (section, "stage3_prefetch_bucket_size")
    assert finding.fix == (Move((section, "prefetch_bucket_size"), new),)
    (finding,) = found("unfilled-auto", {**zero(2), "bfloat16": {"enabled": "auto"}}, target="trainer")
    assert finding.fix == (Move(("bfloat16",), ("bf16",)),)
    (finding,) = found("unfilled-auto", zero(3, prefetch_bucket_size="auto"), target="deepspeed")
    assert finding.fix == (Remove((section, "prefetch_bucket_size")),)
    (finding,) = found("unfilled-auto", zero("auto"), target="deepspeed")
    assert finding.fix == ()  # only a person knows the stage


def test_autos_are_found_at_any_depth_and_not_in_comments() -> None:
    data = {"a": "auto", "_b": "auto", "c": [{"d": "auto"}, "auto", "Auto"], "//": {"e": "auto"}}
    assert [dotted(path) for path in autos(data)] == ["a", "c[0].d", "c[1]"]


def test_an_auto_beside_numbers_is_named_unless_somebody_fills_it() -> None:
    data = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": "auto"}}
    (finding,) = [one for one in check_config(data).findings if one.rule == "auto-beside-numbers"]
    assert finding.path == ("bf16", "enabled")
    assert "bf16 is off, and training runs in fp32" in finding.message
    for quiet in (
        check_config(data, Run.of(target="trainer")),
        check_config(data, Run.of(target="accelerate")),
        check_config({**data, "train_micro_batch_size_per_gpu": "auto"}),
        check_config({**data, "gradient_accumulation_steps": "auto"}),
    ):
        assert not [one for one in quiet.findings if one.rule == "auto-beside-numbers"]
