from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.estimation.requests import answer, question, shape
from tests.tiny import REPOSITORY
from zerokit.choices import Target
from zerokit.config.batch_sizes import MICRO, STEPS
from zerokit.errors import ConfigError, ZerokitError
from zerokit.estimation import Runs
from zerokit.estimation.api import as_model
from zerokit.estimation.api import estimate as ask
from zerokit.estimation.as_json import as_data
from zerokit.estimation.table import heading
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.hardware.gpus import find_gpu
from zerokit.memory import estimate
from zerokit.writing.build import build_ds_config

HIDDEN = 896
BOTH = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}


def run(**options: Any) -> Any:
    return Runs().training_run(question(**options))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_flags_are_the_config_that_zerokit_config_writes(stage: int) -> None:
    written = build_ds_config(zero_stage=stage, precision="bf16").dump()
    assert run(zero_stage=stage).ds_config == run(ds_config=written).ds_config


def test_auto_is_resolved_as_the_trainer_would() -> None:
    zero = run(zero_stage=3).ds_config.zero_optimization
    assert zero.reduce_bucket_size == HIDDEN**2
    assert zero.stage3_prefetch_bucket_size == int(0.9 * HIDDEN**2)
    assert zero.stage3_param_persistence_threshold == 10 * HIDDEN


def test_a_bare_number_has_deepspeeds_buckets() -> None:
    assert run(model=7 * 10**9).ds_config.zero_optimization.reduce_bucket_size == 5 * 10**8


@pytest.mark.parametrize("target", ["trainer", "accelerate"])
def test_precision_left_to_the_target_is_bf16_by_default(target: str) -> None:
    open_config = {**BOTH, "zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}
    assert run(ds_config=open_config, target=target).ds_config.bf16.enabled is True
    fp32 = run(ds_config=open_config, target=target, precision="fp32")
    assert fp32.ds_config.bf16.enabled is False


@pytest.mark.parametrize(
    ("model", "requested", "used", "words"),
    [
        ("llama-3.2-1b", None, "sdpa", ", sdpa attention"),
        ("gpt-j", None, "eager", ", eager attention (transformers has no sdpa for gptj)"),
        ("gemma-2-2b", None, "eager", ", eager attention (transformers has no sdpa for gemma2)"),
        ("gemma-2-2b", "flash_attention_2", "flash_attention_2", ", flash_attention_2 attention"),
    ],
)
def test_attention_is_what_transformers_chooses(model: str, requested: Any, used: str, words: str) -> None:
    found, same = (ask(model, num_gpus=8, zero_stage=2, seq_len=1024, attention=one) for one in (requested, used))
    assert as_data(found)["run"]["attention"] == used
    assert found.device.peak_bytes == same.device.peak_bytes
    assert heading(found).endswith(words)


def test_sdpa_that_transformers_refuses_is_named() -> None:
    found = ask("gpt-j", num_gpus=8, zero_stage=2, seq_len=1024, attention="sdpa")
    assert any("transformers refuses sdpa for gptj" in warning for warning in found.warnings)


def test_requested_sizes_replace_those_of_the_file() -> None:
    config = {"train_batch_size": 64, **BOTH, "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 2}}
    config["bf16"] = {"enabled": True}
    assert run(ds_config=config, micro_batch_size=None).micro_batch_size == 1
    training = run(ds_config=config, micro_batch_size=4)
    assert (training.micro_batch_size, training.gradient_accumulation_steps) == (4, 8)


def test_accumulation_follows_from_the_total_batch() -> None:
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
    assert run(ds_config=config, target="deepspeed", micro_batch_size=None).gradient_accumulation_steps == 4
    with pytest.raises(ConfigError, match="accelerate writes"):
        run(ds_config=config, target="trainer", micro_batch_size=None)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "adamw_fused"),
        ({"target": "accelerate"}, "adamw"),
        ({"target": "deepspeed"}, None),
        ({"offload_optimizer": "cpu"}, "cpu_adam"),
        ({"offload_optimizer": "cpu", "target": "accelerate"}, "cpu_adam"),
        ({"offload_optimizer": "cpu", "optimizer": "lion"}, "lion"),
    ],
)
def test_the_optimizer_is_what_the_target_makes(options: dict[str, Any], kind: str | None) -> None:
    assert run(**options).optimizer == kind


@pytest.mark.parametrize("target", ["trainer", "deepspeed"])
def test_the_deprecated_keys_of_offload_cost_what_the_new_ones_cost(target: Target) -> None:
    def peaks(**zero: Any) -> tuple[int, int]:
        optimizer = {"type": "AdamW", "params": {"lr": 1e-5}}
        of_zero = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, **zero}}
        found = answer(ds_config={**BOTH, "optimizer": optimizer, **of_zero}, target=target)
        assert found.host is not None
        return found.device.peak_bytes, found.host.peak_bytes

    cpu = {"device": "cpu"}
    assert peaks(cpu_offload=True) == peaks(offload_optimizer=cpu) != peaks()
    both = peaks(cpu_offload=True, cpu_offload_param=True)
    assert both == peaks(offload_optimizer=cpu, offload_param=cpu) != peaks(cpu_offload=True)


@pytest.mark.parametrize("preset", sorted((REPOSITORY / "ds_configs").glob("zero*.json")), ids=lambda p: p.stem)
def test_every_preset_can_be_estimated(preset: Path) -> None:
    answer = estimate(run(ds_config=preset))
    assert answer.device.peak_bytes >= answer.device.steady_bytes > 0


def test_the_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({**BOTH, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    runs = Runs()
    first = runs.training_run(question(ds_config=file))
    file.unlink()
    assert runs.training_run(question(ds_config=file)).ds_config == first.ds_config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_gpus": 0}, "--num-gpus: 0 is no number of GPUs"),
        ({"num_gpus": 12}, "12 GPUs do not fill nodes of 8"),
        ({"zero_stage": 4}, "there is no ZeRO stage 4"),
        ({"zero_stage": None}, "nothing says how ZeRO works"),
        ({"offload_param": "cpu"}, "offload of parameters needs ZeRO stage 3"),
        ({"micro_batch_size": -1}, "micro_batch_size"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"ds_config": {}, "zero_stage": 2}, "says how ZeRO works already"),
        ({"ds_config": {**BOTH, "zero_optimization": {"stage": 7}}}, "stage"),
        ({"ds_config": {**BOTH, "zero_optimisation": {"stage": 2}}}, "zero_optimi"),
        (
            {"ds_config": {"train_batch_size": 30, **BOTH, "zero_optimization": {}}, "micro_batch_size": None},
            "train_batch_size",
        ),
        ({"ds_config": "absent.json"}, "absent.json: no such file"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ZerokitError, match=message) as caught:
        estimate(run(**options))
    assert "\n" not in str(caught.value)


def test_a_sharding_that_does_not_divide_the_gpus_is_refused() -> None:
    config = {**BOTH, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}, "bf16": {"enabled": True}}
    with pytest.raises(ZerokitError, match="zero_hpz_partition_size"):
        run(ds_config=config)


@pytest.mark.parametrize(("text", "count"), [("7.5B", 7_500_000_000), ("125M", 125_000_000), ("1e9", 10**9)])
def test_bare_numbers(text: str, count: int) -> None:
    assert as_model(text) == count


def test_a_folder_named_like_a_number_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7B").mkdir()
    with pytest.raises(ZerokitError, match=r"has no config\.json"):
        as_model("7B")


def test_the_python_api_gives_what_the_question_gives() -> None:
    import zerokit

    there = zerokit.estimate(shape(), num_gpus=8, zero_stage=2, micro_batch_size=1, seq_len=512)
    assert there.to_dict() == as_data(answer())
    assert zerokit.estimate is ask
    with pytest.raises(TypeError, match="zero_stag"):
        zerokit.estimate("7B", num_gpus=1, zero_stag=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamx"}, "there is no optimizer 'adamx'. Did you mean 'adamw'?"),
        ({"optimizer": "foo"}, "there is no optimizer 'foo'. Choose one of: adamw, "),
        ({"attention": "spda"}, "there is no attention 'spda'. Did you mean 'sdpa'?"),
        ({"micro_batch_size": 0}, "micro_batch_size must be at least 1, not 0."),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be at least 1, not 0."),
    ],
)
def test_the_python_api_refuses_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        ask(shape(), num_gpus=8, **{"zero_stage": 2, **options})
    assert str(caught.value).startswith(message)


def test_how_a_model_is_saved_is_no_reason_to_refuse() -> None:
    config = {**BOTH, "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}}
    assert estimate(run(ds_config=config)) == estimate(run(ds_config={**BOTH, "zero_optimization": {"stage": 3}}))


@pytest.mark.parametrize(
    ("stated", "steps"),
    [
        ({"tensor_parallel": {"autotp_size": 2}}, 1),
        ({"tensor_parallel": {"autotp_size": 2}, "gradient_accumulation_steps": 4}, 4),
        ({"pipeline": {"stages": 2}}, 1),
        ({"data_parallel_size": 4, "sequence_parallel_size": 2, "zero_optimization": {"stage": 3}}, 1),
    ],
)
def test_model_parallel_sizes_leave_no_gap(stated: dict[str, Any], steps: int) -> None:
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}, **stated}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-5}}
    found = run(ds_config={**config, "optimizer": optimizer}, target="deepspeed", micro_batch_size=None)
    assert (found.micro_batch_size, found.gradient_accumulation_steps) == (2, steps)


@pytest.mark.parametrize("target", ["trainer", "deepspeed"])
@pytest.mark.parametrize("settings", [{}, {"ds_config": {"train_batch_size": 64, "zero_optimization": {"stage": 3}}}])
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((3, 1), "--sequence-parallel: 8 GPUs do not divide into groups of 3"),
        ((8, 8), "--tensor-parallel: tensor parallelism does not go with sequence parallelism"),
    ],
)
def test_a_group_that_does_not_divide_the_gpus_is_the_options(
    target: str, settings: dict[str, Any], sizes: tuple[int, int], words: str
) -> None:
    with pytest.raises(ZerokitError, match=f"^{words}"):
        run(**(settings or {"zero_stage": 3}), parallelism=Parallelism(*sizes), target=target)


def test_accumulation_that_deepspeed_divides_among_unknown_ranks_is_requested() -> None:
    config = {"train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 1}}
    with pytest.raises(ConfigError, match="--gradient-accumulation-steps"):
        run(ds_config=config, target="deepspeed")


OPENRLHF: dict[str, Any] = {
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-6}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
}
"""OpenRLHF/OpenRLHF#632, without its "auto"."""


@pytest.mark.parametrize(
    ("section", "autos", "stated"),
    [
        ("zero_optimization", ["sub_group_size", "reduce_bucket_size"], "reduce_bucket_size 500_000_000"),
        ("zero_optimization", ["stage3_max_live_parameters"], "stage3_max_live_parameters 1_000_000_000"),
        ("fp16", ["enabled"], "fp16.enabled false"),
    ],
)
def test_auto_that_deepspeed_drops_is_its_default(section: str, autos: list[str], stated: str) -> None:
    with_auto = {**OPENRLHF.get(section, {}), **dict.fromkeys(autos, "auto")}
    found = answer(ds_config={**OPENRLHF, section: with_auto}, target="deepspeed")
    plain = answer(ds_config=OPENRLHF, target="deepspeed")
    assert (found.device, found.host) == (plain.device, plain.host)
    assert 'DeepSpeed drops "auto" and uses its defaults: ' in found.warnings[0]
    assert stated in found.warnings[0]
    assert not any("auto" in warning for warning in plain.warnings)


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({"gradient_clipping": "auto"}, "deepspeed"),
        ({"train_micro_batch_size_per_gpu": "auto"}, "deepspeed"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, "deepspeed"),
        ({"zero_optimization": {"stage": 3, "sub_group_size": "auto"}}, "trainer"),
    ],
)
def test_auto_that_stops_the_run_is_refused(changes: dict[str, Any], target: Target) -> None:
    with pytest.raises(ConfigError, match="auto"):
        run(ds_config={**OPENRLHF, **changes}, target=target, micro_batch_size=None)


@pytest.mark.parametrize(
    ("options", "letters", "ddp"),
    [
        ({}, ("2Φ", "2Φ", "4Φ"), 2),
        ({"precision": "fp32"}, ("4Φ", "4Φ", "8Φ"), 4),
        ({"autocast": True}, ("4Φ", "4Φ", "8Φ"), 4),
        ({"optimizer": "sgd"}, ("2Φ", "2Φ", "0Φ"), 2),
        ({"target": "deepspeed"}, ("2Φ", "2Φ", "4Φ"), 2),
    ],
)
def test_without_deepspeed_states_have_the_type_of_the_weights(
    options: dict[str, Any], letters: tuple[str, ...], ddp: int
) -> None:
    found = answer(zero_stage="none", **options)
    assert tuple(one.symbols for one in found.model_states.each) == letters
    names = {term.name: term.bytes for term in found.terms_of("gpu", "always")}
    assert "master weights" not in names
    assert names["buckets of DistributedDataParallel"] == ddp * found.num_parameters
    alone = answer(zero_stage="none", num_gpus=1, **options)
    assert found.device.steady_bytes - alone.device.steady_bytes == ddp * found.num_parameters
    assert "without DeepSpeed" in heading(found)
    assert as_data(found)["zero_stage"] == "none"


def test_without_deepspeed_weights_in_fp16_are_refused() -> None:
    with pytest.raises(ConfigError, match="GradScaler"):
        run(zero_stage="none", precision="fp16")
    assert run(zero_stage="none", precision="fp16", autocast=True).without_deepspeed
    with pytest.raises(ZerokitError, match="autocast"):
        run(zero_stage=2, autocast=True)


WITH_T4 = Cluster(8, gpu=find_gpu("T4"))
LLAMAFACTORY = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
AUTO = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        ({"micro_batch_size": None}, ["bf16 is assumed", "micro batch 8 is the default of the Trainer's"]),
        ({"precision": "bf16"}, []),
        ({"micro_batch_size": None, "precision": "fp32"}, ["micro batch 8 is the default"]),
        ({"ds_config": LLAMAFACTORY}, []),
        ({"ds_config": None, "zero_stage": 2}, []),
        ({"ds_config": None, "zero_stage": 2, "cluster": WITH_T4}, ["T4 has no bf16: torch emulates it there"]),
        ({"ds_config": LLAMAFACTORY, "cluster": WITH_T4}, ["T4 has no bf16"]),
        ({"ds_config": None, "zero_stage": 2, "cluster": WITH_T4, "precision": "fp16"}, []),
        (
            {"ds_config": LLAMAFACTORY | {MICRO: 4, STEPS: 2}, "gradient_accumulation_steps": 1},
            [f"the batch sizes given replace {MICRO} 4 and {STEPS} 2 of the ds_config"],
        ),
        ({"ds_config": LLAMAFACTORY | {MICRO: 4, STEPS: 2}, "micro_batch_size": 4}, []),
    ],
)
def test_what_is_assumed_is_noted(options: dict[str, Any], notes: list[str]) -> None:
    config = {**AUTO, "zero_optimization": {"stage": 2}}
    found = run(**{"ds_config": config, **options}).notes
    assert [note[: len(start)] for note, start in zip(found, notes, strict=True)] == notes
