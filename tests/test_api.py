"""`import zerokit`: what a script or an editor sees of it."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import json
import numbers
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zerokit
from tests import command_lines, processes
from tests.tiny import REPOSITORY
from zerokit.errors import ZerokitError
from zerokit.estimation import Question
from zerokit.memory import Lora
from zerokit.resolving.run import Run


@pytest.mark.torch
def test_every_name_is_listed_and_there() -> None:
    assert set(zerokit.__all__) <= set(dir(zerokit))
    assert {"DSConfig", "check", "estimate", "rehearse"} <= set(zerokit.__all__)
    for name in zerokit.__all__:
        assert getattr(zerokit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'estimat'"):
        zerokit.estimat  # noqa: B018


def test_the_parameters_of_estimate_are_those_of_its_question() -> None:
    named = inspect.signature(zerokit.estimate).parameters
    fields = dataclasses.fields(Question)
    of_the_cluster = ["num_gpus", "gpus_per_node", "gpu", "gpu_memory_bytes", "host_memory_bytes"]
    assert set(named) == {field.name for field in fields} - {"cluster"} | set(of_the_cluster)
    for field in fields:
        if field.default is not dataclasses.MISSING:
            assert named[field.name].default == field.default, field.name


RUN = {"num_gpus": 4, "zero_stage": 2, "micro_batch_size": 1, "seq_len": 4096}


@pytest.mark.parametrize(
    ("lora", "same"),
    [
        (16, Lora(16)),
        ({"r": 16, "lora_alpha": 32, "lora_dropout": 0.1}, Lora(16, dropout=True)),
        ({"r": 8, "target_modules": ["v_proj", "q_proj"]}, Lora(8, ("q_proj", "v_proj"))),
        ({"rank": 8, "target_modules": "all-linear", "use_dora": True}, Lora(8, "all-linear", dora=True)),
    ],
)
def test_lora_is_a_rank_or_the_keys_of_peft(lora: object, same: Lora) -> None:
    answer, expected = (zerokit.estimate("llama-3.1-8b", **RUN, lora=one) for one in (lora, same))  # type: ignore[arg-type]
    assert answer.run.lora == expected.run.lora
    assert answer.device == expected.device


def test_an_estimate_says_whether_it_fits(tmp_path: Path) -> None:
    command = "zerokit estimate llama-3.1-8b --num-gpus=4 --zero-stage=2 --micro-batch-size=1 --seq-len=4096"
    for card, fits in (("A100-40GB", False), ("B200", True)):
        answer = zerokit.estimate("llama-3.1-8b", **RUN, gpu=card)  # type: ignore[arg-type]
        assert answer.fits is fits
        printed = command_lines.run(f"{command} --gpu={card}", cwd=tmp_path, env={})
        assert answer.table() == printed.stdout
        printed = command_lines.run(f"{command} --gpu={card} --format=json", cwd=tmp_path, env={})
        assert answer.to_dict() == json.loads(printed.stdout)
        assert len(repr(answer)) < 150
        assert "Llama-3.1-8B on 4 GPUs, ZeRO-2" in repr(answer)
    assert "4 GPUs, without DeepSpeed: " in repr(zerokit.estimate("gpt2", **RUN | {"zero_stage": "none"}))  # type: ignore[arg-type]
    with pytest.raises(ZerokitError, match="no card is named"):
        zerokit.estimate("llama-3.1-8b", **RUN).fits  # type: ignore[arg-type]  # noqa: B018


def test_reports_are_short_and_true_if_nothing_is_wrong() -> None:
    config = zerokit.DSConfig(zero_optimization={"stage": 2})
    assert repr(config) == str(config) == "DSConfig(zero_optimization={'stage': 2})"
    assert zerokit.check(config)
    report = zerokit.check({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})
    assert not report
    assert not report.ok
    assert repr(report).startswith("<Report: 1 error")
    assert repr(zerokit.DSConfig().resolve(num_gpus=2)).startswith("<Resolution: ")


WRONG_TYPES = {
    'num_gpus: expected a whole number, found the string "4". Write 4': lambda: estimate(num_gpus="4"),
    "num_gpus: expected a whole number, found 2.5": lambda: estimate(num_gpus=2.5),
    "num_gpus: expected a whole number, found True": lambda: estimate(num_gpus=True),
    "num_gpus: expected a whole number, found None": lambda: estimate(num_gpus=None),
    'seq_len: expected a whole number, found the string "4k". Write 4096': lambda: estimate(seq_len="4k"),
    "gpu: expected text, found 80": lambda: estimate(gpu=80),
    "lora: expected a whole number or a dict or a Lora, found [16]": lambda: estimate(lora=[16]),
    "lora.rank: expected a whole number": lambda: estimate(lora={"r": "16"}),
    "lora.rnk: the estimate does not know": lambda: estimate(lora={"rnk": 16}),
    "lora.1: the estimate does not know": lambda: estimate(lora={1: 16}),
    "lora.target_modules: expected": lambda: estimate(lora={"r": 16, "target_modules": {"q_proj", 1}}),
    "frozen_modules: expected a list of text": lambda: estimate(frozen_modules=[1]),
    "there is no ZeRO stage '3'. Choose one of 0, 1, 2, 3": lambda: estimate(zero_stage="3"),
    "packing: expected True or False, found 3": lambda: estimate(packing=3),
    "frozen_modules: expected a list of text, found the string": lambda: estimate(frozen_modules="embed"),
    "chunked_loss: expected text, found True": lambda: estimate(chunked_loss=True),
    "config: expected text or a path or a dict or a DeepSpeedConfig, found 3": lambda: zerokit.check(3),
    "gpu_memory_bytes: expected": lambda: zerokit.check({}, gpu_memory_bytes="80GiB"),
    "recipe: expected text or a path or a Recipe": lambda: zerokit.DSConfig().check(recipe=3),
    "deepspeed_version: expected text": lambda: zerokit.check({}, deepspeed_version=0.16),
    "num_gpus: expected a whole number, found [2]": lambda: zerokit.DSConfig().resolve(num_gpus=[2]),
    "steps: expected a whole number": lambda: zerokit.rehearse("train.py", num_gpus=2, steps="3"),
    "arguments: expected a list": lambda: zerokit.rehearse("train.py", "--lr 1", num_gpus=2),
}


def estimate(**given: Any) -> object:
    return zerokit.estimate("llama-3.1-8b", **RUN | given)


@pytest.mark.parametrize("message", WRONG_TYPES)
def test_an_argument_of_another_type_is_named_in_one_line(message: str) -> None:
    with pytest.raises(ZerokitError) as error:
        WRONG_TYPES[message]()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: estimate(host_memory=2**40),
            "estimate() got an unexpected keyword argument 'host_memory'. Did you mean 'host_memory_bytes'?",
        ),
        (lambda: estimate(lora_rank=8), "Did you mean 'lora'?"),
        (lambda: zerokit.check({}, num_gpu=8), "check() got an unexpected keyword argument 'num_gpu'. Did you"),
        (lambda: zerokit.DSConfig().resolve(num_gpu=8), "Did you mean 'num_gpus'?"),
        (lambda: zerokit.DSConfig().check(xyz=8), "check() got an unexpected keyword argument 'xyz'"),
        (lambda: zerokit.estimate("gpt2"), "estimate() missing a required"),
        (
            lambda: zerokit.rehearse("train.py", num_gpus=2, network=100),
            "rehearse() got an unexpected keyword argument 'network'. Did you mean 'network_gbit_s'?",
        ),
    ],
)
def test_an_argument_of_another_name_is_refused_with_the_name_that_was_meant(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ZerokitError) as error:
        call()
    assert message in str(error.value)
    assert isinstance(error.value, TypeError)


@pytest.mark.parametrize(
    ("gpu", "host_memory_bytes", "words"),
    [
        ("4090", None, r"fits on 23\.65 GiB, if each host has [\d.]+ to [\d.]+ GiB>$"),
        ("4090", 2**40, r"fits on 23\.65 GiB>$"),
        ("H100", None, r"fits on 79\.19 GiB>$"),
        ("T4", None, r"does not fit on [\d.]+ GiB>$"),
    ],
)
def test_the_short_form_of_an_estimate_says_what_its_verdict_depends_on(
    gpu: str, host_memory_bytes: int | None, words: str
) -> None:
    sizes = {"seq_len": 2048 if gpu != "T4" else 2**16, "gpu": gpu, "host_memory_bytes": host_memory_bytes}
    answer = estimate(zero_stage=3, offload_optimizer="cpu", gradient_checkpointing=True, **sizes)
    assert re.search(words, repr(answer))
    assert "without activations" not in repr(answer)
    bare = zerokit.estimate("8B", num_gpus=4, zero_stage=3, gpu=gpu)
    assert re.search(r"peak [\d.]+ GiB without activations, ", repr(bare))


class Int64:
    """A whole number of numpy."""

    def __index__(self) -> int:
        return 4


def test_numbers_of_other_libraries_are_numbers() -> None:
    abc.ABCMeta.register(numbers.Integral, Int64)
    answer = zerokit.estimate("gpt2", **RUN | {"num_gpus": Int64(), "gpu": "H100"})  # type: ignore[arg-type]
    assert json.dumps(answer.to_dict()) == json.dumps(zerokit.estimate("gpt2", **RUN, gpu="H100").to_dict())  # type: ignore[arg-type]


def test_check_takes_all_that_rules_can_know_of_a_run() -> None:
    of_the_run = list(inspect.signature(Run.of).parameters)
    for function in (zerokit.check, zerokit.DSConfig.check):
        named = list(inspect.signature(function).parameters)[1:]
        assert named == [*of_the_run, "severity"]


def test_check_reads_files_dicts_and_configs(tmp_path: Path) -> None:
    text = '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}'
    file = tmp_path / "ds.json"
    file.write_text(text)
    config = zerokit.DSConfig.load(file)
    found = [zerokit.check(source, target="deepspeed") for source in (file, str(file), config, config.to_dict())]
    found.append(config.check(target="deepspeed"))
    rules = [{finding.rule for finding in report.findings} for report in found]
    assert "offload-param-stage" in rules[0]
    assert all(other == rules[0] for other in rules)
    old = zerokit.check(file, deepspeed_version="0.14.0")
    assert {finding.rule for finding in old.findings} >= {"offload-param-stage"}


MISSPELT = {
    "estimate": "zerokit.estimate('llama-3.1-8b', num_gpus=4, zero_stag=2)",
    "check": "zerokit.check('ds.json', num_gpu=4)",
    "rehearse": "zerokit.rehearse('train.py', num_gpus=4, gpu_memory=80)",
    "DSConfig.check": "zerokit.DSConfig().check(world_size=4)",
}


@pytest.mark.slow
def test_mypy_finds_misspelt_options_in_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    calls = [
        "import zerokit",
        "zerokit.estimate('llama-3.1-8b', num_gpus=4, zero_stage=2).device.peak_bytes",
        "zerokit.check('ds.json', num_gpus=4).findings",
        "zerokit.rehearse('train.py', num_gpus=4).device.peak_bytes",
        *MISSPELT.values(),
        "zerokit.estimat('llama-3.1-8b')",
    ]
    script.write_text("\n".join(calls) + "\n")
    # Without what zerokit imports, torch and pydantic among it, which takes mypy seven times as long to read.
    words = ["--no-site-packages", "--disable-error-code=import-not-found", "--follow-imports=silent"]
    words += ["--cache-dir", str(tmp_path / "cache")]
    answer = processes.run([sys.executable, "-m", "mypy", *words, script], cwd=REPOSITORY)
    first_wrong = 5
    lines = {int(line.split(":")[1]) for line in answer.stdout.splitlines() if ": error:" in line}
    assert lines == set(range(first_wrong, len(calls) + 1)), answer.stdout


def test_the_table_of_options_and_arguments_names_arguments() -> None:
    page = (REPOSITORY / "docs/how-to/python.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `--[^`]*` \| `(\w+)=.*` \|$", page, re.MULTILINE)
    known = {
        name for function in (zerokit.estimate, zerokit.rehearse) for name in inspect.signature(function).parameters
    }
    assert named
    assert set(named) <= known
