from __future__ import annotations

import copy
import io
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import pytest
from rich.console import Console

from tests.rehearsal import fake_worker
from tests.rehearsal.recordings import MIB, batches, job, training
from zerokit import console
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.parent.advice import _OPTIMIZER_REFUSED as REFUSAL
from zerokit.rehearsal.parent.advice import Candidate, advise, candidates, only_named
from zerokit.rehearsal.parent.processes import Output, run_workers
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.combination import on_nodes
from zerokit.rehearsal.report.report import BatchSize, RehearsalReport, TimeBreakdown, TimeReport
from zerokit.rehearsal.watching.overrides import merged
from zerokit.units import GIB, format_bytes

REPORT = analyse(training(), job())


def _report(
    ds_config: dict[str, Any] | None, *, at_peak: dict[str, int] | None = None, world_size: int = 16
) -> RehearsalReport:
    device = REPORT.device if at_peak is None else REPORT.device.model_copy(update={"at_peak": at_peak})
    run = REPORT.run.model_copy(update={"ds_config": ds_config})
    return REPORT.model_copy(update={"device": device, "run": run, "world_size": world_size})


def _with_peak(peak_bytes: int, **update: Any) -> RehearsalReport:
    device = REPORT.device.model_copy(update={"peak_bytes": peak_bytes})
    return REPORT.model_copy(update={"device": device, **update})


def _changes(report: RehearsalReport) -> list[str]:
    return [candidate.change for candidate in candidates(report)]


def _stage(stage: int, **more: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **more}}


CHECKPOINTED = {"flops_per_step": 4000, "model_flops_per_step": 3000}
"""As all layers compute their forward pass again."""
OFFLOADS = ("optimizer on the host", "parameters on the host")
SHRINKS = ("gradient checkpointing", "half the micro-batch")
BUCKETS, OVERLAP = "smaller reduce buckets", "no overlap of communication"
STAGES = ("ZeRO stage 1", "ZeRO stage 2", "ZeRO stage 3")


@pytest.mark.parametrize(
    ("report", "tried", "not_tried"),
    [
        (_report(None), ("ZeRO stage 1",), ()),
        (_report(_stage(0)), STAGES[::2], (STAGES[1], OFFLOADS[0])),
        (_report(_stage(1)), STAGES[1:], STAGES[:1]),
        (_report(_stage(2)), (STAGES[2], *SHRINKS, BUCKETS), (*STAGES[:2], OVERLAP)),
        (_report(_stage(3)), (*OFFLOADS, OVERLAP), STAGES),
        (_report(_stage(1), world_size=1), (), STAGES),  # nobody to divide with
        (_report(_stage(3, offload_optimizer={"device": "cpu"}, offload_param={"device": "nvme"})), (), OFFLOADS),
        (_report(_stage(3, offload_optimizer={"device": "none"})), OFFLOADS, ()),
        (_report(_stage(3, offload_optimizer={"pin_memory": True})), OFFLOADS, ()),
        (_report(_stage(2)).model_copy(update={"flops_per_step": 3300, "model_flops_per_step": 3000}), SHRINKS, ()),
        (_report(_stage(2)).model_copy(update=CHECKPOINTED), SHRINKS[1:], SHRINKS[:1]),
        (_report(_stage(2), at_peak={"parameters": REPORT.device.peak_bytes}), (), SHRINKS),
        (_report({**_stage(2), "train_micro_batch_size_per_gpu": 1}), SHRINKS[:1], SHRINKS[1:]),
        (_report(_stage(2, reduce_bucket_size="auto")), (BUCKETS,), ()),
        (_report(_stage(2, reduce_bucket_size=5e7)), (), (BUCKETS,)),
        (_report(_stage(2, overlap_comm=True)), (OVERLAP,), ()),
    ],
)
def test_what_may_save_memory_is_tried(
    report: RehearsalReport, tried: tuple[str, ...], not_tried: tuple[str, ...]
) -> None:
    changes = set(_changes(report))
    assert set(tried) <= changes
    assert not set(not_tried) & changes


def test_fewer_activations_come_before_offload_where_they_do_not_fit() -> None:
    lacking = {"verdict": "does not fit", "low_bytes": 90 * GIB, "gpu_memory_bytes": 80 * GIB}
    report = _report(_stage(3), at_peak={"activations": 40 * GIB, "parameters": 20 * GIB})
    report = report.model_copy(update={"fit": report.fit.model_copy(update=lacking)})
    changes = _changes(report)
    assert max(map(changes.index, SHRINKS)) < min(map(changes.index, OFFLOADS))
    assert [one.change for one in only_named(report)] == ["sequence parallelism", "tiled loss"]
    states = report.model_copy(update={"device": report.device.model_copy(update={"at_peak": {"activations": GIB}})})
    assert _changes(states).index(OFFLOADS[0]) < _changes(states).index(SHRINKS[0])
    assert not list(only_named(states))


def _timed(seconds: float, **breakdown: float) -> TimeReport:
    parts = dict.fromkeys(TimeBreakdown.model_fields, 0.0) | breakdown
    return TimeReport(
        rank=0, step_seconds=seconds, low_seconds=seconds, high_seconds=seconds, step=3,
        tokens_per_second=1 / seconds,
        breakdown=TimeBreakdown(**parts), mfu=0.3, hfu=0.4, peak_flops=1.0, steps=[], kernels=[],
        critical_path=[], run_class="", narrower_with=[], costs_low_seconds=seconds, costs_high_seconds=seconds,
    )  # fmt: skip


def test_what_may_be_faster_is_tried_where_time_is_known() -> None:
    zero = {"offload_optimizer": {"device": "cpu"}, "overlap_comm": False, "reduce_bucket_size": 1000}
    config = _stage(3, **zero)
    assert not {"twice the micro-batch", "ZeRO stage 2"} & set(_changes(_report(config)))
    hidden = _report(config).model_copy(update={"time": _timed(1.0), **CHECKPOINTED})
    tried = {"twice the micro-batch", "no gradient checkpointing", "ZeRO stage 2", "optimizer on the GPU"}
    assert tried <= set(_changes(hidden))
    keeps = _report(_stage(3, offload_optimizer={"pin_memory": True}))  # a section without a device
    assert "optimizer on the GPU" not in _changes(keeps.model_copy(update={"time": _timed(1.0)}))
    exposed = hidden.model_copy(update={"time": _timed(1.0, communication=0.1)})
    more = {"overlap of communication", "larger reduce buckets", "more prefetching"}
    assert not more & set(_changes(hidden))
    assert more <= set(_changes(exposed))


def test_a_run_that_fits_reports_first_what_makes_it_faster(tmp_path: Path) -> None:
    report = REPORT.model_copy(update={"time": _timed(1.0), **CHECKPOINTED})

    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        made = str(dict(changed.overrides))
        seconds = 0.5 if "factor': 2" in made else 0.8 if "gradient_checkpointing': False" in made else 1.2
        peak = (400 if "micro_batch_factor': 0.5" in made else 900) * MIB
        return _with_peak(peak, time=_timed(seconds))

    advice, *_ = advise(report, job(), tmp_path, rehearse)
    assert [(one.change, one.step_seconds, round(one.faster or 0, 2)) for one in advice] == [
        ("twice the micro-batch", 0.5, 0.5),
        ("no gradient checkpointing", 0.8, 0.2),
        ("half the micro-batch", 1.2, -0.2),
    ]


def test_a_run_that_does_not_fit_is_not_made_faster() -> None:
    report = REPORT.model_copy(update={"time": _timed(1.0)})
    fit = REPORT.fit.model_copy(update={"verdict": "does not fit"})
    assert "twice the micro-batch" in _changes(report)
    assert "twice the micro-batch" not in _changes(report.model_copy(update={"fit": fit}))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (True, {"twice the GPUs": 0.33, "gradient checkpointing": 0.2}),
        (False, {"gradient checkpointing": 0.2, "twice the GPUs": None}),  # a step of twice the examples
    ],
)
def test_speed_is_that_of_a_gpu_and_of_steps_of_one_size(
    tokens: bool, expected: dict[str, float | None], tmp_path: Path
) -> None:
    original = job()

    def made(peak_bytes: int, num_gpus: int, per_second: float, seconds: float) -> RehearsalReport:
        time = _timed(seconds).model_copy(update={"tokens_per_second": per_second if tokens else None})
        return _with_peak(peak_bytes, world_size=num_gpus, time=time)

    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        if changed.num_gpus > original.num_gpus:
            return made(100 * MIB, changed.num_gpus, 3.0, 0.5)
        return made(900 * MIB, changed.num_gpus, 1.25, 0.8)

    advice, *_ = advise(made(800 * MIB, original.num_gpus, 1.0, 1.0), original, tmp_path, rehearse)
    gains = {one.change: None if one.faster is None else round(one.faster, 2) for one in advice}
    assert {change: gains[change] for change in expected} == expected
    assert (next(iter(gains)) == "twice the GPUs") == tokens


def test_a_change_is_added_to_those_already_made(tmp_path: Path) -> None:
    original = job(overrides={"ds_config": {"zero_optimization.stage": 2, "bf16.enabled": True}})
    change = Candidate("c", "h", {"zero_optimization.stage": 3}, micro_batch_factor=0.5, num_gpus_factor=2)
    changed = change.applied_to(original, tmp_path, 4)
    assert changed.overrides == {
        "ds_config": {"zero_optimization.stage": 3, "bf16.enabled": True},
        "micro_batch_factor": 0.5,
    }
    assert changed.num_gpus == 32
    assert changed.recording_file == str(tmp_path / "change-4" / "rank-0.npz")
    assert (changed.gpus_per_node, changed.exchange_folder) == (8, None)
    assert "micro_batch_factor" not in original.overrides


def test_twice_the_gpus_fill_their_nodes_and_talk_among_themselves(tmp_path: Path) -> None:
    more = Candidate(change="c", how="h", num_gpus_factor=2)
    for number, (num_gpus, per_node) in enumerate(((4, 8), (6, 6), (8, 8))):
        original = job(num_gpus=num_gpus, exchange_folder=str(tmp_path / "exchange"))
        changed = more.applied_to(original, tmp_path, number)
        assert (changed.num_gpus, changed.gpus_per_node) == (2 * num_gpus, per_node)
        assert changed.cluster.num_nodes == 2 * num_gpus // per_node
        assert changed.exchange_folder == str(tmp_path / f"change-{number}" / "exchange")


def _rehearse(peaks: dict[str, int | None]) -> Any:
    """A rehearsal whose peak is found by the change that was made."""

    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        made = str(dict(changed.overrides)) + str(changed.num_gpus)
        peak = next((peak for part, peak in peaks.items() if part in made), REPORT.device.peak_bytes)
        if peak is None:
            raise ZerokitError("the optimizer does not run there", where="train.py", hint="Choose another")
        return _with_peak(peak)

    return rehearse


def test_what_helps_most_comes_first_and_what_does_not_is_left_out(tmp_path: Path) -> None:
    peaks = {
        "'zero_optimization.stage': 3": 500 * MIB,
        "gradient_checkpointing": 400 * MIB,
        "offload_optimizer": None,  # could not be rehearsed
        "micro_batch_factor": 863 * MIB,  # less than 1 %
        "32": 900 * MIB,  # makes it worse
    }
    advice, failed, _ = advise(REPORT, job(), tmp_path, _rehearse(peaks))
    assert [(one.change, one.why) for one in failed] == [("optimizer on the host", "the optimizer does not run there")]
    assert [(one.change, one.saves_bytes, one.peak_bytes) for one in advice] == [
        ("gradient checkpointing", 464 * MIB, 400 * MIB),
        ("ZeRO stage 3", 364 * MIB, 500 * MIB),
    ]
    assert all(one.how and one.verdict == "fits" for one in advice)


def test_a_lower_stage_says_what_it_leaves_out() -> None:
    def how(**offload: Any) -> str:
        report = _report(_stage(3, **offload)).model_copy(update={"time": _timed(1.0)})
        return next(one.how for one in candidates(report) if one.change == "ZeRO stage 2")

    assert how() == '"zero_optimization": {"stage": 2}'
    assert how(offload_param={"device": "cpu"}) == '"zero_optimization": {"stage": 2} without "offload_param"'


@pytest.mark.parametrize(("memory", "offered"), [(64 * GIB, False), (256 * GIB, True)])
def test_what_the_host_cannot_hold_is_no_advice(memory: int, offered: bool, tmp_path: Path) -> None:
    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        offloads = "offload_optimizer" in str(dict(changed.overrides))
        host = REPORT.host.model_copy(update={"per_node_peak_bytes": (100 if offloads else 10) * GIB})
        return on_nodes(_with_peak(500 * MIB, host=host), Cluster(changed.num_gpus, host_bytes=memory))

    advice = {one.change: one.host_bytes for one in advise(REPORT, job(), tmp_path, rehearse)[0]}
    assert ("optimizer on the host" in advice) == offered
    assert advice["ZeRO stage 3"] == 10 * GIB


def test_a_micro_batch_that_stays_as_it_was_is_no_advice(tmp_path: Path) -> None:
    size = BatchSize(shape=[4, 512], unit="tokens", tokens=2048, bytes=16384)
    same = {"batches": batches(size)}
    report = REPORT.model_copy(update=same)
    advice, failed, _ = advise(report, job(), tmp_path, lambda *_: _with_peak(100 * MIB, **same))
    assert "half the micro-batch" not in {one.change for one in advice}
    assert [(one.change, one.why) for one in failed] == [
        (
            "half the micro-batch",
            "the first batch is as large as before: of one example, or not of a size that the script gives a "
            "DataLoader",
        )
    ]


def test_there_are_never_more_than_five(tmp_path: Path) -> None:
    report = _report(_stage(1, overlap_comm=True))
    assert len(_changes(report)) > 5
    advice, *_ = advise(report, job(), tmp_path, _rehearse({"": 100 * MIB}))
    assert len(advice) == 5
    assert [one.saves_bytes for one in advice] == [764 * MIB] * 5


def test_what_is_tried_is_said_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console.stderr.cache_clear()
    advise(REPORT, job(), tmp_path, _rehearse({}))
    changes = _changes(REPORT)
    verdict, *lines = capsys.readouterr().err.splitlines()
    assert verdict.startswith(f"{REPORT.fit.verdict}: a GPU needs ")
    peak = format_bytes(REPORT.device.peak_bytes)
    results = [line for line in lines if not line.startswith("Trying")]
    assert sorted(results) == sorted(f"{change}: fits, peak {peak}" for change in changes)
    assert sorted(set(lines) - set(results)) == [
        f"Trying change {number} of {len(changes)}: {change}" for number, change in enumerate(changes, 1)
    ]


def _too_large(made: Callable[[RehearsalJob], int]) -> tuple[RehearsalReport, Any]:
    """A report of a run that does not fit, and a rehearsal with the peaks that `made` gives in MiB."""
    memory = 500 * MIB

    def of_peak(peak: int) -> RehearsalReport:
        verdict = "fits" if peak <= memory else "does not fit"
        fit = REPORT.fit.model_copy(
            update={"verdict": verdict, "low_bytes": peak, "high_bytes": peak, "gpu_memory_bytes": memory}
        )
        return _with_peak(peak, fit=fit, run=REPORT.run.model_copy(update={"ds_config": _stage(3)}))

    return of_peak(1000 * MIB), lambda changed, _stop: of_peak(MIB * made(changed))


def _saved_by(changed: RehearsalJob) -> int:
    """MiB: 1000 without changes; each saves some, and offload as much as two others."""
    config = changed.overrides.get("ds_config", {})
    saved = 300 * bool(changed.overrides.get("gradient_checkpointing"))
    saved += 300 * (changed.overrides.get("micro_batch_factor") == 0.5)
    return 1000 - saved - 300 * any("offload_optimizer" in key for key in config)


def test_where_no_change_is_enough_the_cheapest_combination_comes_first(tmp_path: Path) -> None:
    report, rehearse = _too_large(_saved_by)
    first, *others = advise(report, job(), tmp_path, rehearse)[0]
    assert (first.change, first.verdict) == ("optimizer on the host and gradient checkpointing", "fits")
    assert "offload_optimizer" in first.how
    assert "gradient_checkpointing_enable()" in first.how
    assert {one.verdict for one in others} == {"does not fit"}


def test_combinations_are_tried_only_where_they_may_be_enough(tmp_path: Path) -> None:
    tried = []

    def peak(changed: RehearsalJob) -> int:
        tried.append(changed)
        return 1000 - (1000 - _saved_by(changed)) // 10

    report, rehearse = _too_large(peak)
    changes = len(_changes(report))
    assert all(one.verdict == "does not fit" for one in advise(report, job(), tmp_path, rehearse)[0])
    assert len(tried) == changes
    tried.clear()
    report, rehearse = _too_large(lambda changed: 1000 - 2 * (1000 - _saved_by(changed)))
    (tmp_path / "second").mkdir()
    best = advise(report, job(), tmp_path / "second", rehearse)[0]
    assert not any(" and " in one.change for one in best), "one change is enough"


def test_interrupted_advice_keeps_what_is_known(tmp_path: Path) -> None:
    def made(changed: RehearsalJob) -> int:
        if _saved_by(changed) < 500:  # two changes together, after all by themselves
            raise KeyboardInterrupt
        return _saved_by(changed)

    report, rehearse = _too_large(made)
    found = advise(report, job(), tmp_path, rehearse)
    assert found.interrupted
    assert "gradient checkpointing" in {one.change for one in found.advice}


def test_what_is_tried_is_whole_in_the_bar_of_a_narrow_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(console, "stderr", lambda: screen)
    report = _report(_stage(1, overlap_comm=True))
    advise(report, job(), tmp_path, _rehearse({}))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    for change in (f"0/{len(_changes(report))}", *_changes(report)):
        assert change in shown
    assert "…" not in shown


def test_a_command_that_is_ended_ends_the_changes_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_worker.install(monkeypatch, tmp_path)
    ask = f"os.kill({os.getpid()}, signal.SIGUSR1)"
    script = fake_worker.script(tmp_path, f"import os, signal\n{ask}\nsignal.pause()")

    def rehearse(changed: RehearsalJob, stop: threading.Event) -> RehearsalReport:
        (recording,), _ = run_workers([changed], output=Output.DROPPED, stop=stop)
        return analyse(recording, changed)

    def leave(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # two changes run
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, leave)
    try:
        found = advise(_report(_stage(1)), job(script=str(script), cwd=str(tmp_path)), tmp_path, rehearse)
        assert found.interrupted
    finally:
        signal.signal(signal.SIGUSR1, before)


# ---- changes that a run refuses


@pytest.mark.parametrize("own_optimizer", [False, True])
def test_advice_is_about_what_is_set(own_optimizer: bool, tmp_path: Path) -> None:
    """DeepSpeed refuses to offload a script's own optimizer, unless a second key says that it may."""

    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        made = changed.overrides.get("ds_config", {})
        seconds = 1.0
        if made.get("zero_optimization.offload_optimizer.device"):
            forced = made.get("zero_force_ds_cpu_optimizer", True)
            if forced and own_optimizer:
                raise ZerokitError(f"the script fails (ZeRORuntimeException: You are using {REFUSAL} (AdamW) ...)")
            seconds = 0.5 if forced else 0.6
        return REPORT.model_copy(update={"time": _timed(seconds)})

    report = REPORT.model_copy(update={"time": _timed(1.0)})
    advice, failed, _ = advise(report, job(), tmp_path, rehearse)
    (offload,) = [one for one in advice if "optimizer on the host" in one.change]
    how = '"zero_optimization": {"offload_optimizer": {"device": "cpu"}}'
    keys = {"zero_optimization.offload_optimizer.device": "cpu"}
    if own_optimizer:
        how += ', "zero_force_ds_cpu_optimizer": false'
        keys |= {"zero_force_ds_cpu_optimizer": False}
    assert (offload.how, offload.ds_config) == (how, keys)
    assert offload.step_seconds == (0.6 if own_optimizer else 0.5)
    assert not failed


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("did not end in the time allowed", ("optimizer on the host", "did not end in the time allowed")),
        (REFUSAL, ("optimizer on the host, as the script makes it", "has no CPU kernel")),
    ],
)
def test_a_failed_change_is_reported_with_its_own_error(first: str, expected: tuple[str, str], tmp_path: Path) -> None:
    """And another way is tried only where DeepSpeed refuses the first."""

    def rehearse(changed: RehearsalJob, _stop: object) -> RehearsalReport:
        made = changed.overrides.get("ds_config", {})
        if "zero_force_ds_cpu_optimizer" in made:
            raise ZerokitError("has no CPU kernel")
        if "zero_optimization.offload_optimizer.device" in made:
            raise ZerokitError(first)
        return REPORT

    _, failed, _ = advise(REPORT, job(), tmp_path, rehearse)
    assert [(one.change, one.why) for one in failed] == [expected]


@pytest.mark.rehearsal
@pytest.mark.torch
def test_deepspeed_refuses_a_scripts_own_optimizer_in_these_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import deepspeed, torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "config = {'train_micro_batch_size_per_gpu': 1, 'zero_optimization': {'stage': 2}}\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "deepspeed.initialize(model=model, optimizer=optimizer, config=config)\n"
    )
    (offload,) = (one for one in candidates(REPORT) if one.change == "optimizer on the host")
    here = job(script=str(script), cwd=str(tmp_path), recording_file=str(tmp_path / "rank-0.npz"))
    with pytest.raises(ZerokitError) as caught:
        run_workers([offload.applied_to(here, tmp_path, 1)], output=Output.DROPPED)
    assert REFUSAL in caught.value.message


# ---- keys that a change sets in the config of the script


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"a": {"b": 1}, "c": None, "d": 3}),
        ({"a.b": 2, "a.x": 3}, {"a": {"b": 2, "x": 3}, "c": None, "d": 3}),
        ({"a": None, "e.f": None}, {"c": None, "d": 3}),
        ({"a.b": None}, {"a": {}, "c": None, "d": 3}),
        ({"c.x": 1, "d.y": 2, "e.f.g": 3}, {"a": {"b": 1}, "c": {"x": 1}, "d": {"y": 2}, "e": {"f": {"g": 3}}}),
    ],
)
def test_dotted_keys_are_set_and_none_removes_them(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    config = MappingProxyType({"a": MappingProxyType({"b": 1}), "c": None, "d": 3})
    assert merged(config, changes) == expected


def test_the_scripts_own_config_stays_what_it_was() -> None:
    config = {"a": {"b": {"c": 1}}, "d": [{"e": 1}]}
    before = copy.deepcopy(config)
    result = merged(config, {"a.x": 1})
    result["a"]["b"]["c"] = result["d"][0]["e"] = 2
    assert config == before
