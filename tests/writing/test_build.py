from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.combinations import sample
from tests.json_data import load_json
from tests.writing.deciding import decide, written
from zerokit.choices import Target
from zerokit.config import load_ds_config
from zerokit.documents import Document
from zerokit.errors import ConfigError, ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.lint import check_config
from zerokit.lint.examples import llama_8b
from zerokit.models import ModelShape, load_model_shape
from zerokit.resolving.auto_word import TARGETS, autos
from zerokit.resolving.run import Run
from zerokit.resolving.trace import resolve
from zerokit.units import GIB, format_bytes
from zerokit.writing.accelerate_launch import accelerate_yaml
from zerokit.writing.build import build
from zerokit.writing.hyperparameters import LEFT_OUT
from zerokit.writing.request import OPTIMIZERS, SCHEDULERS, Decisions
from zerokit.writing.sizing import BANDWIDTH_FLOOR, LARGEST_BUCKET

ROWS = load_json("writing/test_build.json")

DEVICES = (None, "cpu", "nvme")
PRECISIONS = (None, "bf16", "fp16", "fp32")


@cache
def llama(hidden: int = 4096, layers: int = 32, vocabulary: int = 128256) -> ModelShape:
    return load_model_shape(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 64,
            "num_key_value_heads": hidden // 64,
            "vocab_size": vocabulary,
        }
    )


def combinations(target: Target) -> Iterator[Decisions]:
    """Every stage, offload, precision, optimizer and scheduler; some of it is contradictory."""
    for stage, optimizer_device, param_device, precision, optimizer, scheduler in itertools.product(
        range(4), DEVICES, DEVICES, PRECISIONS, (None, *OPTIMIZERS), (None, *SCHEDULERS)
    ):
        options: Any = {
            "offload_optimizer": optimizer_device,
            "offload_param": param_device,
            "precision": precision,
            "optimizer": optimizer,
            "scheduler": scheduler,
        }
        if "nvme" in (optimizer_device, param_device):
            options["nvme_path"] = "/nvme"
        if target == "deepspeed" and scheduler:
            options["total_steps"] = 1000
        yield decide(zero_stage=stage, target=target, **options)


def run_features() -> Iterator[Decisions]:
    """ZeRO++, inference, models and sizes of the run, in stage 3 and below."""
    for target, stage, num_gpus, memory, model, plus, inference in itertools.product(
        TARGETS,
        (1, 2, 3),
        (None, 2, 16),
        (None, 24 * GIB),
        (None, llama(), llama(256, 4, 512)),
        (False, True),
        (False, True),
    ):
        options: Any = {"zero_plus_plus": plus, "inference": inference}
        for offload in ({}, {"offload_param": "nvme", "nvme_path": "/nvme"}):
            yield decide(
                **{"zero_stage": stage, "target": target, "num_gpus": num_gpus, "model": model},
                **{"gpu_memory_bytes": memory, **options, **offload},
            )


def check(decisions: Decisions) -> bool:
    """Build, and hold the result to lint and to DeepSpeed. False if the decisions were refused."""
    from tests.resolving.test_trace import parsed

    try:
        built = build(decisions)
    except ConfigError:
        return False
    config = built.config
    assert load_ds_config(config.dump()) == config
    num_gpus = decisions.run.cluster.num_gpus or 16
    report = check_config(
        config,
        Run.of(
            target=decisions.target,
            num_gpus=num_gpus,
            model=decisions.run.model,
            gpu_memory_bytes=decisions.run.cluster.gpu_memory_bytes,
        ),
    )
    assert [finding for finding in report.findings if finding.severity == "error"] == [], decisions
    arguments = {"trainer": {"max_steps": 1000}, "accelerate": {"batch_size": 2, "total_num_steps": 1000}}
    if decisions.target == "trainer":
        # What the decisions say must be said to the Trainer, too.
        arguments["trainer"] |= {"bf16": decisions.precision == "bf16", "fp16": decisions.precision == "fp16"}
    given = arguments.get(decisions.target, {})
    run = Run(target=decisions.target, cluster=Cluster(num_gpus), model=llama(64, 1, 64), given=given)
    resolution = resolve(Document(config.dump(), "ds.json"), run)
    assert resolution.refused == (), decisions
    assert parsed(resolution.config, num_gpus).zero_config.stage == decisions.zero_stage
    return True


@pytest.mark.torch
@pytest.mark.parametrize("target", sample(TARGETS, 1))
def test_lint_finds_no_error_in_what_is_built_and_deepspeed_accepts_it(target: Target) -> None:
    assert sum(map(check, combinations(target))) > 1000


@pytest.mark.torch
def test_the_same_for_zero_plus_plus_inference_and_models() -> None:
    some = list(run_features())
    assert sum(map(check, some)) > len(some) // 4


def test_the_trainers_arguments_apply() -> None:
    assert written(zero_stage=2, precision=None).dump() == {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }


def test_stage_3_saves_whole_weights() -> None:
    for target in TARGETS:
        config = written(zero_stage=3, target=target)
        assert config.zero_optimization.stage3_gather_16bit_weights_on_model_save is True


def test_deepspeed_alone_gets_numbers_and_an_optimizer() -> None:
    data = written(zero_stage=2, micro_batch_size=4, target="deepspeed").dump()
    assert list(autos(data)) == []
    assert data["train_micro_batch_size_per_gpu"] == 4
    assert data["gradient_accumulation_steps"] == 1
    assert data["optimizer"]["type"] == "AdamW"


@pytest.mark.parametrize("target", ["trainer", "accelerate"])
def test_optimizer_and_schedule_are_left_to_the_script(target: Target) -> None:
    assert not {"optimizer", "scheduler"} & set(written(zero_stage=2, target=target).dump())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_chosen_precision_stands_alone(precision: Any) -> None:
    data = written(zero_stage=2, precision=precision).dump()
    assert data[precision] == {"enabled": True}
    assert not {"bf16", "fp16"} - {precision} & set(data)


def test_each_key_of_the_config_has_its_reason() -> None:
    for decisions in itertools.islice(run_features(), 0, None, 11):
        try:
            built = build(decisions)
        except ConfigError:
            continue
        written = {choice.path: choice.value for choice in built.choices if choice.value is not LEFT_OUT}
        data = built.config.dump()
        for path, value in written.items():
            node: Any = data
            for key in path:
                node = node.pop(key) if key == path[-1] else node[key]
            assert node == value
        assert list(_values(data)) == []
        assert all(choice.why and choice.source for choice in built.choices)


def _values(data: dict[str, Any]) -> Iterator[Any]:
    for value in data.values():
        if isinstance(value, dict):
            yield from _values(value)
        else:
            yield value


@pytest.mark.parametrize(
    ("optimizer", "filled"),
    [
        ("AdamW", {"lr", "betas", "eps", "weight_decay"}),
        ("Lion", {"lr", "betas", "weight_decay"}),
        ("SGD", {"lr", "weight_decay"}),
        ("Adagrad", {"lr", "weight_decay"}),
        ("Muon", {"lr", "weight_decay"}),
    ],
)
def test_what_the_trainer_compares_is_left_to_it(optimizer: Any, filled: set[str]) -> None:
    params = written(zero_stage=2, optimizer=optimizer).dump()["optimizer"]["params"]
    assert {name for name, value in params.items() if value == "auto"} == filled


def test_adam_is_adam_and_not_adamw() -> None:
    for name, mode in (("Adam", False), ("AdamW", None)):
        params = written(zero_stage=2, optimizer=name).dump()["optimizer"]["params"]
        assert params.get("adam_w_mode") is mode


def test_a_schedule_that_sets_rates_does_not_undo_muons_own() -> None:
    for scheduler, own in ((None, True), ("WarmupCosineLR", True), ("WarmupLR", False), ("OneCycle", False)):
        data = written(
            zero_stage=2, target="deepspeed", optimizer="Muon", scheduler=scheduler, **_total(scheduler)
        ).dump()
        assert ("muon_lr" in data["optimizer"]["params"]) is own


def _total(scheduler: str | None) -> dict[str, Any]:
    return {"total_steps": 1000} if scheduler else {}


def test_the_learning_rate_is_the_schedules_too() -> None:
    data = written(
        zero_stage=1, target="deepspeed", scheduler="WarmupDecayLR", learning_rate=3e-4, total_steps=500
    ).dump()
    assert data["optimizer"]["params"]["lr"] == 3e-4
    assert data["scheduler"]["params"] == {
        "total_num_steps": 500,
        "warmup_max_lr": 3e-4,
        "warmup_num_steps": 15,
        "warmup_type": "linear",
    }


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_large_model_has_the_trainers_sizes(stage: int) -> None:
    zero = written(zero_stage=stage, model=llama(8192, 80)).dump()["zero_optimization"]
    assert zero["reduce_bucket_size"] == 8192**2
    if stage == 3:
        assert zero["stage3_prefetch_bucket_size"] == int(0.9 * 8192**2)
        assert zero["stage3_param_persistence_threshold"] == 81920


def test_buckets_keep_within_their_bounds() -> None:
    def bucket(model: ModelShape, **options: Any) -> int:
        zero = written(zero_stage=2, model=model, **options).dump()["zero_optimization"]
        assert isinstance(zero["reduce_bucket_size"], int)
        return zero["reduce_bucket_size"]

    assert bucket(llama(1024, 24)) == BANDWIDTH_FLOOR
    tiny = llama(256, 4, 512)
    assert bucket(tiny) == tiny.num_parameters < BANDWIDTH_FLOOR
    assert bucket(llama(32768, 2, 512)) == LARGEST_BUCKET
    assert bucket(llama(8192, 80), gpu_memory_bytes=2 * GIB) == int(0.02 * 2 * GIB / 2)


def test_buffers_for_nvme_hold_a_share_of_the_largest_parameter() -> None:
    model = llama()
    largest = 128256 * 4096
    options: Any = {"zero_stage": 3, "offload_param": "nvme", "nvme_path": "/nvme", "model": model}
    for num_gpus, size in ((None, largest), (8, largest // 8), (7, -(-largest // 7))):
        param = written(**options, num_gpus=num_gpus).dump()["zero_optimization"]["offload_param"]
        assert param["buffer_size"] == size
        assert param["buffer_count"] == 12
    # In fp32 more parts are large enough to leave the memory, and a buffer takes twice the bytes.
    options["model"] = llama_8b()
    for precision, large, element in (("bf16", 5, 2), ("fp32", 7, 4)):
        built = build(decide(**options, num_gpus=16, precision=precision))
        pinned = format_bytes(12 * element * largest // 16)
        why = {choice.path[-1]: choice.why for choice in built.choices}
        assert f"one has {large} parameters that go to NVMe" in why["buffer_count"]
        assert f"12 buffers pin {pinned} on the host" in why["buffer_size"]


def test_what_one_update_needs_is_bounded_for_a_large_share() -> None:
    def sub_group(**options: Any) -> Any:
        zero = written(zero_stage=3, model=llama(), **options).zero_optimization
        return zero.sub_group_size if "sub_group_size" in zero.model_fields_set else None

    assert sub_group(num_gpus=8) == 100_000_000
    assert sub_group(num_gpus=1024) is None
    assert sub_group(num_gpus=8, offload_optimizer="cpu") is None
    assert sub_group(num_gpus=8, offload_optimizer="nvme", nvme_path="/nvme") == 100_000_000


def test_zero_plus_plus_groups_the_gpus_of_a_node() -> None:
    for options, size in (({}, 8), ({"gpus_per_node": 4}, 4), ({"hpz_size": 2}, 2)):
        zero = written(zero_stage=3, zero_plus_plus=True, num_gpus=16, **options).zero_optimization
        assert zero.zero_hpz_partition_size == size
        assert zero.zero_quantized_weights
        assert zero.zero_quantized_gradients
    alone = written(zero_stage=3, hpz_size=4).zero_optimization
    assert (alone.zero_hpz_partition_size, alone.zero_quantized_weights) == (4, False)


@pytest.mark.parametrize(("decisions", "message"), ROWS["decisions_that_do_not_go_together_are_refused"])
def test_decisions_that_do_not_go_together_are_refused(decisions: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        written(**decisions)
    assert caught.value.hint


def test_activation_checkpointing_is_for_scripts_that_call_it() -> None:
    data = written(zero_stage=2, target="deepspeed", activation_checkpointing="cpu").dump()
    assert data["activation_checkpointing"] == {"cpu_checkpointing": True}


LAUNCHES = [
    (decide(zero_stage=3, num_gpus=8), 1, 8),
    (decide(zero_stage=2, target="accelerate", num_gpus=16, precision=None), 2, 16),
    (decide(zero_stage=2, target="accelerate"), 1, -1),
    (decide(zero_stage=1, num_gpus=6, gpus_per_node=2), 3, 6),
]


@pytest.mark.torch
@pytest.mark.parametrize(("decisions", "machines", "processes"), LAUNCHES)
def test_accelerate_reads_the_launch_config(
    decisions: Decisions, machines: int, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own loader, by its launch command, and by the plugin that refuses keys said twice."""
    from accelerate.commands import launch
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    ds_file, launch_file = tmp_path / "ds 1.json", tmp_path / "launch.yaml"
    ds_file.write_text(json.dumps(build(decisions).config.dump()))
    launch_file.write_text(accelerate_yaml(decisions, str(ds_file)))
    loaded = load_config_from_file(str(launch_file))
    assert (loaded.num_machines, loaded.num_processes) == (machines, processes)

    options = ["--num_processes", "2"] if processes == -1 else []
    options += ["--machine_rank", "1", "--main_process_ip", "host"] if machines > 1 else []
    words = ["--config_file", str(launch_file), "--main_process_port", "0", *options, "train.py"]
    args, defaults, precision_is_given = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(words)
    )
    assert args.use_deepspeed
    assert not precision_is_given
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    command, environment = prepare_deepspeed_cmd_env(args)
    assert command is None  # torchrun's own launcher, which needs neither ssh nor a hostfile
    for name, value in environment.items():
        if name.startswith("ACCELERATE_"):
            monkeypatch.setenv(name, value)
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == decisions.zero_stage
    assert plugin.zero3_init_flag is (decisions.zero_stage == 3)


def test_a_launch_config_is_for_whole_nodes_and_for_accelerate() -> None:
    with pytest.raises(ZerokitError, match="do not fill nodes of 8"):
        accelerate_yaml(decide(zero_stage=2, num_gpus=12), "ds.json")
    with pytest.raises(ConfigError, match="DeepSpeed alone"):
        accelerate_yaml(decide(zero_stage=2, target="deepspeed"), "ds.json")
