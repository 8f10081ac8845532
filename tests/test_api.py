"""`import zerokit`: what a script or an editor sees of it."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

import pytest

import zerokit
from tests import processes
from tests.tiny import REPOSITORY
from zerokit.estimation import Question
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
    of_the_cluster = ["num_gpus", "gpus_per_node"]
    assert set(named) == {field.name for field in fields} - {"cluster"} | set(of_the_cluster)
    for field in fields:
        if field.default is not dataclasses.MISSING:
            assert named[field.name].default == field.default, field.name


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
    found = [
        zerokit.check(source, target="deepspeed") for source in (file, str(file), config, config.to_dict())
    ]
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
