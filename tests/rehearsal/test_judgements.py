"""What stands below the verdict: mistakes by which a script trains otherwise than it seems to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsal.commands import SCRIPTS, Rehearsed, rehearse
from tests.rehearsal.recordings import job, training
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.judgements import fragmentation_line
from zerokit.rehearsal.report.report import AllocatorMemory
from zerokit.units import GIB

pytestmark = pytest.mark.rehearsal


def _rehearse(
    script: str, *words: object, cwd: Path, options: tuple[object, ...] = (), forked: bool = True
) -> Rehearsed:
    given = ("--no-advise", *options, SCRIPTS / script, *words)
    return rehearse(*given, cwd=cwd, forked=forked)


def _mistakes(script: str, *words: object, cwd: Path, options: tuple[object, ...]) -> list[str]:
    report = _rehearse(script, *words, cwd=cwd, options=(*options, "--format", "json")).report
    found: list[str] = report["mistakes"]
    assert set(found) <= set(report["warnings"])
    return found


@pytest.mark.parametrize(
    ("stage", "steps", "way", "word"),
    [
        (1, 1, "own", "gradients are lost"),
        (2, 1, "own", "gradients are lost"),
        (2, 1, "loss.backward", "gradients are lost"),
        (2, 4, "own", "gradients are lost"),
        (2, 1, "two losses", "gradients are lost"),
        (3, 2, "own", "gradients are accumulated twice"),
    ],
)
def test_gradients_that_a_script_accumulates_otherwise_than_its_engine(
    stage: int, steps: int, way: str, word: str, tmp_path: Path
) -> None:
    options = ("--num-gpus", 2, "--rank", 0)
    (mistake,) = _mistakes("accumulates.py", stage, steps, way, cwd=tmp_path, options=options)
    assert mistake.startswith(word)
    assert "accumulates.py:" in mistake
    assert "backward() 2 times" in mistake
    assert ("call step() after each backward()" in mistake) == (way != "two losses" and steps != 4)


@pytest.mark.parametrize(
    ("stage", "steps", "way"),
    [
        *((3, 1, "own"), (0, 1, "own"), (3, 4, "own"), (2, 4, "each"), (2, 1, "each")),
        *((0, 2, "two losses"), (2, 1, "boundary"), (2, 1, "discarded"), (1, 1, "two engines"), (1, 1, "fp32")),
    ],
)
def test_no_gradients_are_lost(stage: int, steps: int, way: str, tmp_path: Path) -> None:
    options = ("--num-gpus", 2, "--rank", 0)
    assert _mistakes("accumulates.py", stage, steps, way, cwd=tmp_path, options=options) == []


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("nothing", 'neither bf16 nor fp16 is set, so "auto" is off'),
        ("plain", "neither autocast nor 16-bit weights"),
        *((way, None) for way in ("bf16", "turned off", "fp32 head", "fp32 teacher")),
        *((way, None) for way in ("plain autocast", "plain TF32", "plain newer TF32")),
    ],
)
def test_a_run_in_fp32_that_nothing_asks_for(way: str, words: str | None, tmp_path: Path) -> None:
    mistakes = _mistakes("precisions.py", way, cwd=tmp_path, options=("--num-gpus", 1))
    assert len(mistakes) == (words is not None)
    assert words is None or f"trains in fp32: {words}" in mistakes[0]


def test_bf16_is_rehearsed_where_a_run_is_in_fp32_by_default(tmp_path: Path) -> None:
    words = ("--num-gpus", 1, "--time", "--format", "json", SCRIPTS / "precisions.py")
    report = rehearse(*words, "small float input", cwd=tmp_path, forked=True).report
    (advice,) = report["advice"]
    assert advice["change"] == "bf16"
    assert advice["step_seconds"] > 0
    assert rehearse(*words, "turned off", cwd=tmp_path, forked=True).report["advice"] == []


def test_a_card_without_bf16_trains_in_fp32(tmp_path: Path) -> None:
    options = ("--num-gpus", 1, "--gpu", "V100-32GB")
    assert _mistakes("precisions.py", "nothing", cwd=tmp_path, options=options) == []


def test_an_assumed_network_that_decides_the_step_is_named_with_other_speeds(tmp_path: Path) -> None:
    script = ("plain_phases.py", "ddp", 64)
    options = ("--num-gpus", 4, "--gpus-per-node", 2, "--gpu", "RTX 6000 Ada", "--time", "--format", "json")
    report = _rehearse(*script, cwd=tmp_path, options=options).report
    by_network = report["time"]["by_network"]
    assert list(by_network) == ["10", "25", "400"], "the assumed one is 100 Gbit/s"
    assert by_network["10"] > by_network["25"] > report["time"]["step_seconds"] > by_network["400"]
    assert "of the step is communication" in report["mistakes"][-1]
    given = _rehearse(*script, cwd=tmp_path, options=(*options, "--network", "10Gbit")).report
    assert given["time"]["step_seconds"] == pytest.approx(by_network["10"], rel=0.02)
    assert not any("network" in line for line in given["warnings"])
    one_node = (*options[:2], "--gpus-per-node", 4, *options[4:])
    report = _rehearse(*script, cwd=tmp_path, options=one_node).report
    assert not any("network" in line for line in report["warnings"])


@pytest.mark.parametrize(
    ("stage", "way", "words"),
    [
        (3, "tower", "rank 1 runs 'towers.images', and rank 0 skips it"),
        (2, "tower", "rank 1 runs 'towers.images' in the backward pass, and rank 0 skips it"),
        (3, "dropped layer", "rank 0 runs 'layers.1', and rank 1 skips it"),
        (3, "experts", "rank 0 runs 'experts.0' where rank 1 runs 'experts.2'"),
        (3, "more passes", "rank 1 begins forward pass 2, and rank 0 does not"),
        (3, "detached", "rank 0 runs 'layers.2' in the backward pass, and rank 1 skips it"),
    ],
)
def test_the_module_that_one_rank_skips_is_named(stage: int, way: str, words: str, tmp_path: Path) -> None:
    done = _rehearse("differing_modules.py", stage, way, cwd=tmp_path, options=("--num-gpus", 2), forked=True)
    assert done.code != 0
    assert words in done.out + done.err
    assert "stage 2 helps" not in done.out + done.err or stage == 3


@pytest.mark.parametrize(("stage", "way"), [(3, "same"), (1, "same"), (2, "more passes")])
def test_ranks_that_run_the_same_modules_wait_for_each_other(stage: int, way: str, tmp_path: Path) -> None:
    done = _rehearse("differing_modules.py", stage, way, cwd=tmp_path, options=("--num-gpus", 2))
    assert done.code == 0
    assert "skips" not in done.out + done.err


@pytest.mark.parametrize("wrapper", ["none", "ddp", "fsdp", "fsdp2", "frozen teacher", "called before"])
def test_the_phases_of_a_script_without_an_engine(wrapper: str, tmp_path: Path) -> None:
    report = _rehearse("plain_phases.py", wrapper, cwd=tmp_path, options=("--num-gpus", 2, "--format", "json")).report
    held = report["device"]["by_phase"]
    assert {"init", "forward", "backward", "step"} <= held.keys()
    assert report["device"]["peak_phase"] in ("forward", "backward")
    # Nothing of the forward pass counts as between: the activations come after the batch.
    assert held["between"] < held["forward"]
    of_forward = [one["collective"] for one in report["communication"] if one["phase"] == "forward"]
    assert ("all_gather" in of_forward) == wrapper.startswith("fsdp")
    assert not any(one["phase"] == "between" for one in report["communication"])


@pytest.mark.parametrize(
    ("memory", "unused", "segments", "expected"),
    [
        (17, 4, "ordinary", True),  # from tight to fits
        (80, 4, "ordinary", False),
        (80, 0.5, "ordinary", None),
        (17, 4, "expandable", None),
        (12, 0, "ordinary", None),  # tight, but nothing is fragmented
    ],
)
def test_expandable_segments_are_named_where_they_help(
    memory: int, unused: float, segments: str, expected: bool | None
) -> None:
    report = analyse(training(), job())
    peak = 15 * GIB

    def reserved(more: float) -> AllocatorMemory:
        figures = dict.fromkeys(AllocatorMemory.model_fields, 0)
        return AllocatorMemory(
            **{**figures, "reserved_peak_bytes": peak + int(more * GIB), "fragmentation_bytes": int(more * GIB)}
        )

    allocator = {"ordinary": reserved(unused), "expandable": reserved(0)}
    device = report.device.model_copy(update={"peak_bytes": peak, "allocator": allocator, "segments": segments})
    high = peak + int((unused + 1) * GIB)
    fit = report.fit.model_copy(update={"low_bytes": peak, "high_bytes": high, "gpu_memory_bytes": memory * GIB})
    found = fragmentation_line(device, fit)
    assert (found and found[1]) == expected
    assert found is None or "expandable_segments:True: the GPU then needs 15.00 to 16.00 GiB" in found[0]
