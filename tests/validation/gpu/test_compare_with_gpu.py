"""The comparison with a real GPU: its arithmetic everywhere, some of its runs where there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.validation.gpu import compare_with_gpu
from tests.validation.gpu.compare_with_gpu import CONFIGURATIONS, Configuration, Figures
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.devices import virtual_device

TWO = tuple(Configuration(name, f"--model {name} --optimizer fused_adam") for name in ("small", "large"))
H200 = virtual_device(find_gpu("H200"))


def figures(allocated: int, reserved: int) -> Figures:
    return {
        "allocated_after_init": 1,
        "allocated_after_step": [5, allocated // 2],
        "max_allocated": allocated,
        "max_reserved": reserved,
    }


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the command on two configurations whose figures are given, without a GPU."""
    halves: dict[str, dict[str, Figures]] = {"measure": {}, "rehearse": {}}
    told: list[tuple[str, ...]] = []

    def half(name: str) -> Any:
        def run_one(one: Configuration, arguments: Sequence[str], *_: Any) -> Figures:
            told.append((name, one.name, *arguments))
            if one.name not in halves[name]:
                raise RuntimeError(f"{one.name} fails")
            return halves[name][one.name]

        return run_one

    def command(
        *words: str, measured: dict[str, Figures] | None = None, rehearsed: dict[str, Figures] | None = None
    ) -> tuple[int, dict[str, Any]]:
        halves["measure"], halves["rehearse"] = measured or {}, rehearsed or {}
        output = tmp_path / "gpu.json"
        code = compare_with_gpu.main(["--output", str(output), *words])
        return code, json.loads(output.read_text())

    monkeypatch.setattr(compare_with_gpu, "CONFIGURATIONS", TWO)
    monkeypatch.setattr(compare_with_gpu, "gpu_of_this_machine", lambda: H200)
    monkeypatch.setattr(compare_with_gpu.shutil, "which", lambda name: None)
    for name in halves:
        monkeypatch.setattr(compare_with_gpu, name, half(name))
    command.told = told  # type: ignore[attr-defined]
    return command


def test_errors_are_of_the_measured_figure(compared: Any) -> None:
    code, document = compared(
        measured={"small": figures(1000, 2000), "large": figures(10_000, 20_000)},
        rehearsed={"small": figures(1010, 1900), "large": figures(9_980, 20_000)},
    )
    assert code == 0
    assert document["gpu"]["name"] == "NVIDIA H200"
    assert [row["errors_percent"]["max_allocated"] for row in document["configurations"]] == [1.0, -0.2]
    assert document["configurations"][0]["errors_percent"]["max_reserved"] == -5.0
    found = document["summary"]
    assert found["compared"] == 2
    assert found["max_allocated"] == {"median_percent": 0.6, "worst_percent": 1.0}
    assert found["max_reserved"] == {"median_percent": 2.5, "worst_percent": 5.0}
    assert found["after_last_step"] == {"median_percent": 0.6, "worst_percent": 1.0}


@pytest.mark.parametrize(
    ("rehearsed", "message"),
    [
        (figures(1032, 2000), "max_allocated: worst 3.2 % is more than 3.0 %"),
        (figures(1000, 2170), "max_reserved: worst 8.5 % is more than 8.0 %"),
        (figures(1015, 2000), "max_allocated: median 1.5 % is more than 1.0 %"),
    ],
)
def test_too_large_errors_give_1(
    compared: Any, capsys: pytest.CaptureFixture[str], rehearsed: Figures, message: str
) -> None:
    same = {name: figures(1000, 2000) for name in ("small", "large")}
    code, _ = compared(measured=same, rehearsed={**dict.fromkeys(same, rehearsed)})
    assert code == 1
    assert message in capsys.readouterr().err


def test_a_failure_is_written_down_and_is_not_compared(compared: Any) -> None:
    code, document = compared(
        measured={"small": figures(1000, 2000)}, rehearsed={"small": figures(1000, 2000), "large": figures(10, 20)}
    )
    assert code == 1
    large = document["configurations"][1]
    assert (large["measured"], large["errors_percent"]) == (None, None)
    assert large["failures"] == {"measured": "large fails"}
    assert document["summary"]["compared"] == 1


def test_nothing_compared_is_no_success(compared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = compared("--only", "neither")
    assert code == 1
    assert "nothing was compared" in capsys.readouterr().err


def test_halves_may_be_run_one_after_the_other(compared: Any) -> None:
    both = {name: figures(1000, 2000) for name in ("small", "large")}
    code, first = compared("--measure-only", measured=both)
    assert (code, first["summary"]["compared"]) == (0, 0)
    assert first["rehearsed_with"] is None
    code, second = compared("--rehearse-only", rehearsed={**both, "large": figures(1020, 2000)})
    assert (code, second["summary"]["compared"]) == (0, 2)
    assert second["gpu"] == first["gpu"]
    assert second["measured_with"] == first["measured_with"]
    assert second["summary"]["max_allocated"]["worst_percent"] == 2.0
    code, third = compared("--rehearse-only", "--only", "small", rehearsed={"small": figures(1010, 2000)})
    assert [row["errors_percent"]["max_allocated"] for row in third["configurations"]] == [1.0, 2.0]


def test_both_halves_are_told_the_same(compared: Any) -> None:
    both = {name: figures(1000, 2000) for name in ("small", "large")}
    compared(measured=both, rehearsed=both)
    assert {words[0] for words in compared.told} == {"measure", "rehearse"}
    # There is no nvcc here, so that DeepSpeed could not compile its optimizer.
    assert {words[1:] for words in compared.told} == {
        (name, "--model", name, "--optimizer", "torch_fused") for name in ("small", "large")
    }


def test_no_run_begins_when_the_time_is_up(compared: Any) -> None:
    both = {name: figures(1000, 2000) for name in ("small", "large")}
    code, document = compared("--limit-seconds", "0", measured=both, rehearsed=both)
    assert (code, compared.told) == (1, [])
    assert document["configurations"][0]["failures"]["measured"] == "the time was up"


def test_what_a_failed_run_says_last() -> None:
    printed = "Traceback\n  File\n\nValueError: no\n"
    assert compare_with_gpu.last_lines(printed) == "Traceback |   File | ValueError: no"


def test_the_matrix_covers_what_it_should() -> None:
    words = " ".join(one.options for one in CONFIGURATIONS)
    assert len(CONFIGURATIONS) >= 16
    assert len({one.name for one in CONFIGURATIONS}) == len(CONFIGURATIONS)
    for option in (
        *(f"--stage {stage}" for stage in range(4)),
        *("--precision fp16", "--precision fp32", "--precision autocast", "--offload-optimizer"),
        *("--offload-param", "--checkpointing", "--attention eager", "--lora", "--accumulation", "--padding"),
        *("torch_foreach", "fused_adam", "--sum-in-fp32", "gpt2", "--sequence 8192"),
    ):
        assert option in words, option
    assert any(one.expandable for one in CONFIGURATIONS)


def test_the_models_are_of_the_sizes_that_are_asked_for() -> None:
    from transformers import AutoModelForCausalLM

    from tests.validation.gpu import train_once

    used = {one.options.split()[1] for one in CONFIGURATIONS}
    sizes = {}
    for name in used:
        with torch.device("meta"):
            args = train_once.options(["--model", name, "--stage", "0", "--output", "figures.json"])
            model = AutoModelForCausalLM.from_config(train_once.model_config(args))
        sizes[name] = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    assert used == set(train_once.SHAPES)
    assert min(sizes.values()) == pytest.approx(0.494, abs=0.001)  # "0.5B"
    assert max(sizes.values()) == pytest.approx(8.03, abs=0.01)
    assert sizes["qwen3-4b"] == pytest.approx(4.02, abs=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs an NVIDIA GPU")
def test_some_configurations_on_this_gpu(tmp_path: Path) -> None:
    code = compare_with_gpu.main(["--only", "qwen-0.5b", "--output", str(tmp_path / "gpu.json")])
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert code == 0, document["summary"]
    assert document["summary"]["compared"] >= 4
