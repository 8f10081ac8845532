from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.rehearsal.recordings import batches, device_with, job, timed, training
from zerokit import console
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import some_gpu
from zerokit.rehearsal.parent.start import config_findings
from zerokit.rehearsal.recording import RankFacts
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import (
    Advice,
    BatchSize,
    DataTime,
    RankMemory,
    RehearsalReport,
    RoleDevice,
    RoleMemory,
)
from zerokit.rehearsal.report.tables import print_report
from zerokit.reporting.verdicts import HostFit, Verdict
from zerokit.units import GIB


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Print a report at a width of 200 and give the text, spaces squeezed."""
    monkeypatch.setenv("COLUMNS", "200")
    console.stdout.cache_clear()

    def text(report: RehearsalReport) -> str:
        print_report(report, details=True)
        return "\n".join(" ".join(line.split()) for line in capsys.readouterr().out.splitlines())

    yield text
    console.stdout.cache_clear()


def test_the_default_is_the_verdict_and_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    time = timed("all_reduce", launching=10).time
    roles = [_role(f"pipeline stage {stage} of 8") for stage in range(8)]
    report = analyse(training(), job()).model_copy(update={"time": time, "roles": roles})
    print_report(report)
    text = capsys.readouterr().out
    assert text.startswith("Fits: needs 1.39 to 3.30 GiB of 80.00 GiB")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert len(lines) <= 27
    assert "GPU, allocated at the peak 864.00 MiB in backward of step 2" in lines
    assert "activations 384.00 MiB 44.4%" in lines
    assert lines[-1] == "3 notes, and more tables: --details prints them"


def _role(name: str) -> RoleMemory:
    device = RoleDevice(peak_bytes=1, steady_bytes=1, reserved_peak_bytes=1, peak_phase="backward")
    return RoleMemory(role=name, ranks=[0], rehearsed=0, device=device)


def _rank(rank: int, peak: int, reserved: int, phase: str, **figures: int) -> RankMemory:
    """A rank that fits; figures that are not given are 0."""
    others = ("device_steady_bytes", "host_peak_bytes", "host_steady_bytes", "pinned_bytes")
    peaks = {"device_peak_bytes": peak, "reserved_peak_bytes": reserved}
    held = dict.fromkeys(others, 0) | peaks | figures
    return RankMemory(rank=rank, peak_phase=phase, verdict="fits", **held)


def test_the_figures_are_printed(printed: Any) -> None:
    text = printed(analyse(training(), job()))
    for line in (
        "of 80.00 GiB; at least 76.70 GiB of the GPU to spare. Peak: backward of step 2",
        "train.py on 16 GPUs, 8 per node (H100-SXM, NVIDIA H100 80GB HBM3): rank 0, 2 optimizer steps "
        "rehearsed in 4.5 s",
        "GPU, allocated 864.00 MiB 352.00 MiB in backward of step 2",
        "GPU, reserved, ordinary 950.40 MiB 950.40 MiB 86.40 MiB unused",
        "Host, one node 768.00 MiB 768.00 MiB 8 ranks",
        "backward 864.00 MiB",
        "activations 384.00 MiB 44.4%",
        "forward (train.py:30) 128.00 MiB 14.8% 4",
        "other 96.00 MiB 48.00 MiB",
        "4 x 64.00 MiB parameters bfloat16 4096x8192 layers.*.weight",
        "4 x 32.00 MiB activations bfloat16 2x2048x4096 forward (train.py:30)",
        "reduce_scatter backward 16 4 256.00 MiB",
        "Warning: host memory is not pinned",
        "Made up, as there are no values: nonzero: assumed all true, 3 times at train.py:40 in mask",
        "Not written: checkpoint in runs/a",
    ):
        assert line in text
    assert text.startswith("Fits: ")
    assert text.count("1.39 to 3.30 GiB") == 2
    assert "allocated to reserved: 864.00 to 950.40 MiB" in text
    assert "CUDA context, an estimate: 481.28 to 942.08 MiB" in text
    shared = replace(training(), facts=RankFacts(reserved_is_lower_bound=True))
    assert "allocated to reserved: 864.00 to 950.40 MiB, or more: --time" in printed(analyse(shared, job()))


def test_blocks_are_folded_where_they_differ_by_the_layer_alone(printed: Any) -> None:
    for layers, line in (
        (1, "64.00 MiB parameters bfloat16 4096x8192 layers.0.weight"),
        (14, "14 x 64.00 MiB parameters bfloat16 4096x8192 layers.*.weight"),
    ):
        assert line in printed(analyse(training(layers), job())).splitlines()


def test_findings_about_the_ds_config_are_one_line_each(printed: Any) -> None:
    found = config_findings(
        {"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 3}},
        Cluster(16, gpu=some_gpu(None, 2**36)),
    )
    text = printed(analyse(training(), job()).model_copy(update={"ds_config_findings": found}))
    assert "; 1 error in the ds_config" in text.splitlines()[0]
    assert "ds_config (zero_optimisation): error: unknown key 'zero_optimisation'" in text
    assert "Did you mean 'zero_optimization'? [unknown-key]" in text
    assert config_findings(None, Cluster(1)) == []


@pytest.mark.parametrize("count", [1, 3, 5])
def test_errors_of_the_ds_config_follow_the_verdict(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 3}}
    error = next(found for found in config_findings(config, Cluster(1)) if found.severity == "error")
    found = [error.model_copy(update={"path": f"unknown_{number}"}) for number in range(count)]
    warning = error.model_copy(update={"severity": "warning", "message": "only a warning"})
    report = analyse(training(), job()).model_copy(update={"ds_config_findings": [warning, *found]})
    print_report(report)
    lines = capsys.readouterr().out.splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("ds_config (unknown_")]
    assert errors == list(range(1, 1 + min(count, 3)))
    assert ("2 more: --details" in lines) == (count == 5)
    assert "only a warning" not in "".join(lines)
    findings = "3 findings" if count == 5 else "1 finding"
    assert lines[-1].endswith(f"{findings} on the ds_config, and more tables: --details prints them")


def test_that_the_card_has_no_bf16_follows_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    found = config_findings(config, Cluster(1, gpu=some_gpu("T4", None)))
    print_report(analyse(training(), job()).model_copy(update={"ds_config_findings": found}))
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("ds_config (bf16.enabled): warning: T4 has no bf16: torch emulates it there")


def test_steps_are_shown_where_they_differ(printed: Any) -> None:
    report = analyse(training(), job())
    assert "Steps differ" in printed(report)
    alike = report.model_copy(update={"per_step": [report.per_step[0]] * 2})
    assert "Steps differ" not in printed(alike)


def test_a_run_that_does_not_fit_says_so(printed: Any) -> None:
    report = analyse(training(), job(device=device_with(2**30)))
    ranks = [_rank(0, 2**20, 2**20, "init"), _rank(15, 2**30, 2**30, "backward")]
    fit = report.fit.model_copy(update={"batch": "4 x 8,192 tokens"})
    first = printed(report.model_copy(update={"ranks": ranks, "fit": fit})).splitlines()[0]
    assert first == (
        "Does not fit: needs 1.39 to 3.30 GiB of 1.00 GiB; at least 394.78 MiB too much for the GPU. "
        "Peak: backward, rank 15; largest batch 4 x 8,192 tokens"
    )


def test_advice_and_ranks_are_shown(printed: Any) -> None:
    figures = {"saves_bytes": 2**30, "peak_bytes": 2**31, "host_bytes": 2**32}
    advice = Advice(change="ZeRO stage 3", **figures, verdict="fits", how='"stage": 3')
    rank = _rank(15, 2**30, 2**31, "init", device_steady_bytes=2**29)
    report = analyse(training(), job()).model_copy(update={"advice": [advice], "ranks": [rank]})
    text = printed(report)
    assert 'ZeRO stage 3 1.00 GiB 2.00 GiB 4.00 GiB fits "stage": 3' in text
    assert "15 1.00 GiB 2.00 GiB 512.00 MiB 0 B 0 B" in text


@pytest.mark.parametrize(
    ("scanned", "of", "said"),
    [
        (0, None, ""),
        (12, None, "Warning: looked through 12 of an unknown number of batches of the data in 5.0 s"),
        (12, 1200, "Warning: looked through 12 of 1,200 batches of the data in 5.0 s"),
    ],
)
def test_how_far_the_data_was_looked_through_is_said(printed: Any, scanned: int, of: int | None, said: str) -> None:
    size = BatchSize(shape=[2, 8], unit="tokens", tokens=16, bytes=128)
    found = batches(size, scanned=scanned, of=of)
    text = printed(analyse(training(), job()).model_copy(update={"batches": found}))
    assert "Batches: up to 2 x 8 tokens in the first steps" in text
    assert ("looked through" in text) == bool(said)
    assert said in text


@pytest.mark.parametrize(
    ("verdict", "host", "of_host"),
    [
        ("does not fit", HostFit(900 * GIB, 950 * GIB, 512 * GIB, False, 0, False), "each host's 512.00 GiB"),
        ("fits", HostFit(900 * GIB, 950 * GIB, None, False, 0, True), "if each host has"),
    ],
)
def test_a_report_of_time_ends_with_its_verdict_and_sets_its_tables_apart(
    verdict: Verdict, host: HostFit, of_host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = timed("all_reduce", launching=0)
    report = report.model_copy(update={"fit": report.fit.model_copy(update={"verdict": verdict, "host": host})})
    assert report.time is not None
    data = DataTime(batch_seconds=0.001, batches=4, workers=0, batches_of_step=1, workers_needed=1)
    time = report.time.model_copy(update={"tokens_per_second": 1234.0, "data": data})
    console.stdout.cache_clear()
    print_report(report.model_copy(update={"time": time}), details=True)
    lines = capsys.readouterr().out.splitlines()
    assert any("; 1,234 tokens/s on all GPUs with this step's batch" in line for line in lines)
    titles = ("Time by activity", "Longest kernels", "Critical path", "Memory")
    for title in titles:
        (at,) = (number for number, line in enumerate(lines) if line.startswith(title))
        assert lines[at - 1] == ""
    first = lines[0].partition("; ")[0]
    assert of_host in first
    assert lines[-1].startswith(f"{first}; a step takes ")
    assert lines[-2] == ""
