"""Scripts that are not written for DeepSpeed's own API: accelerate, plain torch on a GPU, generation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.combinations import REST
from tests.rehearsal.feature_runs import GPUS_PER_NODE, NUM_GPUS, FeatureRuns, job_of
from zerokit.errors import ZerokitError
from zerokit.rehearsal.parent.processes import Output, Worker
from zerokit.rehearsal.report.analysis import analyse

PARAMETERS, LAYERS, KEYS, MICRO_BATCH = 110_633_984, 4, 256, 2
"""The same Llama in all of these scripts, and in scripts/features.py."""
WORKSPACES = 2 * 32 * 2**20
"""Of cuBLAS, for the threads of the forward and the backward pass."""
NEAR = 0.02


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
def test_a_script_of_accelerate_alone(runs: FeatureRuns, stage: int) -> None:
    report = runs.run("features_accelerate.py", "--stage", str(stage))
    assert "trackers 1 in use 0" in runs.printed("features_accelerate.py", "--stage", str(stage))
    assert "logs of trackers" in report.suppressed
    assert report.steps == 64 // (MICRO_BATCH * NUM_GPUS)
    assert report.run.ds_config is not None
    assert report.run.ds_config["zero_optimization"]["stage"] == stage
    states = report.device.at_peak["optimizer_states"]
    assert states == pytest.approx(12 * PARAMETERS / NUM_GPUS, rel=NEAR)


@pytest.mark.parametrize("how", ["cuda", "first", pytest.param("to", marks=REST)])
def test_a_model_is_put_on_its_gpu(runs: FeatureRuns, how: str) -> None:
    report = runs.run("features_placement.py", how)
    # Plain torch: parameters, gradients and both states in bfloat16.
    assert report.device.steady_bytes == pytest.approx(8 * PARAMETERS + WORKSPACES, rel=0.04)
    assert report.device.at_peak["parameters"] == pytest.approx(2 * PARAMETERS, rel=NEAR)
    assert any(warning.endswith("on each GPU for itself") for warning in report.warnings)


def test_device_map_auto_on_one_gpu(tmp_path: Path) -> None:
    job = job_of("features_placement.py", ("auto",), tmp_path / "rank-0.npz")
    job = replace(job, num_gpus=1, gpus_per_node=1)
    with Worker(job, Output.SHOWN_IF_IT_FAILS) as worker:
        report = analyse(worker.result(None), job)
    assert report.device.steady_bytes == pytest.approx(8 * PARAMETERS + WORKSPACES, rel=0.04)


@REST
def test_device_map_auto_on_several_gpus_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = job_of("features_placement.py", ("auto",), tmp_path / "rank-0.npz")
    with Worker(job, Output.SHOWN) as worker, pytest.raises(ZerokitError) as caught:
        worker.result(None)
    assert "cannot stand in for a model that one process spreads over" in str(caught.value)
    assert f"zerokit: error: {caught.value}\n" in capfd.readouterr().err


def test_the_buckets_and_the_first_backward_pass_of_ddp(runs: FeatureRuns) -> None:
    report = runs.run("one_decoder.py", "--with", "ddp")
    calls = {(call.phase, call.collective): call.count for call in report.communication}
    assert calls["backward", "all_reduce"] > 0
    assert ("init", "all_reduce") not in calls
    parameters = 220_366_848
    assert report.device.at_peak["parameters"] == parameters
    # The buckets, and what AdamW holds for a moment, of which the peak is.
    assert report.device.at_peak["buffers"] == pytest.approx(2 * parameters + WORKSPACES, rel=NEAR)
    assert report.device.by_phase["init"] == pytest.approx(2 * parameters, rel=NEAR)


def test_an_engine_that_makes_no_step_is_told_apart(runs: FeatureRuns) -> None:
    idle = runs.run("features.py", "--steps", "0", "--accumulation", "3", "--layers", "1")
    assert (idle.steps, idle.run.idle_micro_steps) == (0, (0, 3))


@pytest.mark.parametrize("how", ["spawn", "process"])
def test_ranks_that_the_script_starts_itself(runs: FeatureRuns, how: str) -> None:
    arguments = ("spawned_ranks.py", "--how", how, "--ranks", str(GPUS_PER_NODE))
    assert runs.run(*arguments).steps == 2
    # It sees the virtual GPU, though the script has it begin anew.
    for who in ("another process sees", "workers of an executor see"):
        assert (f"{who} NVIDIA H100" in runs.printed(*arguments)) == (how == "process")
    assert runs.printed(*arguments).count("trained rank 0 as 0") == 1


def test_the_cache_grows_while_text_is_generated(runs: FeatureRuns) -> None:
    figures = {}
    for tokens in (64, 128):
        words = ("features_generation.py", "--new-tokens", str(tokens))
        report = runs.run(*words)
        found = re.search(r"tokens \(4, (\d+)\) cache (\d+)", runs.printed(*words))
        assert found is not None
        assert int(found[1]) == 128 + tokens
        # The last token is not in the cache any more.
        assert int(found[2]) == 4 * (128 + tokens - 1) * LAYERS * 2 * KEYS * 2
        figures[tokens] = report.device.peak_bytes
        assert report.steps == 0
        assert any("no optimizer step was seen" in line for line in report.warnings)
    assert figures[128] - figures[64] == pytest.approx(4 * 64 * LAYERS * 2 * KEYS * 2, rel=0.1)


@pytest.mark.parametrize("how", [pytest.param("--sample", marks=REST), "--no-cache"])
def test_other_ways_to_generate(runs: FeatureRuns, how: str) -> None:
    words = ("features_generation.py", "--new-tokens", "64")
    greedy, report = runs.run(*words), runs.run(*words, how)
    if how == "--no-cache":
        assert "cache 0 " in runs.printed(*words, how)
        assert report.device.by_phase["between"] < greedy.device.by_phase["between"]
    else:
        assert report.device.peak_bytes == pytest.approx(greedy.device.peak_bytes, rel=0.01)
        assert any("multinomial" in case.what for case in report.made_up)


def test_triton_kernels_take_no_memory_and_are_named(runs: FeatureRuns) -> None:
    """Triton's own Python runs: its autotuner measures, and takes the first of equals."""
    printed = dict(line.split(" ", 1) for line in reversed(runs.printed("triton_kernels.py").splitlines()))
    results = 4096 * 1024 * 4
    first, later = (
        int(line.split()[1]) for line in runs.printed("triton_kernels.py").splitlines() if line.startswith("peak")
    )
    # Measuring clears the L2 cache with a buffer of 256 MiB, once the first launch has restored its output.
    assert (first, later) == (results + 256 * 2**20, results)
    assert printed["configuration"] == "512"
    assert printed["target"] == "90"
    # What is read only stays; what is written is made up.
    assert printed["read"] == "[2.0, 3.0] counted 0 loss 1.0"
    assert printed["pointer"] == "Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)"
    assert "Keyword argument BLOKSIZE was specified but unrecognised" in printed["keyword"]
    assert printed["hook"] == "8"
    (named,) = (line for line in runs.run("triton_kernels.py").warnings if "Triton" in line)
    assert "integers too (__main__.count_larger)" in named
    assert "__main__.scale, __main__.count_larger" in named


def test_what_bitsandbytes_allocates(runs: FeatureRuns) -> None:
    lines = [line.split() for line in runs.printed("features_quantized.py").splitlines()]
    found = dict(line for line in lines if len(line) == 2)
    embeddings = 2 * 32000 * 1024
    layers = 4 * (1024 * 1024 * 2 + 1024 * 256 * 2 + 3 * 1024 * 2816)
    # Half a byte each, a float32 for each 64; embeddings, the head and norms stay in bfloat16.
    four_bits = layers // 2 + layers // 64 * 4 + 2 * embeddings
    assert int(found["4bit"]) == pytest.approx(four_bits, rel=0.01)
    assert found["gradients"] == "16"
    states = 2 * 2048 * 2048
    assert int(found["AdamW8bit"]) == pytest.approx(states, rel=0.05)
    assert int(found["PagedAdamW8bit"]) < states // 10
    assert found["8bit"] == "2048"
    assert int(found["weight"]) == pytest.approx(2048 * 2048, rel=0.01)


def test_an_operator_that_calls_cuda_is_sized_by_its_fake_implementation(runs: FeatureRuns) -> None:
    assert f"normed (1024, 512) torch.float32 {1024 * 512 * 4 + 2048} [0, 0, 0, 0]" in runs.printed(
        "custom_operators.py"
    )
    said, loaded, compiled = (line for line in runs.run("custom_operators.py").warnings if "fake" in line)
    assert "outside::normed" in said
    assert "libcudart.so.0" in said
    assert "compiled (1024, 3)" in runs.printed("custom_operators.py")
    assert "outside::compiled" in compiled
    assert "loaded (5,)" in runs.printed("custom_operators.py")
    assert "outside::loaded" in loaded
    with pytest.raises(AssertionError, match="exit code 2") as stopped:
        runs.run("custom_operators.py", "unsized")
    assert "custom_operators.py:18: the rehearsal cannot stand in for what calls libcudart" in str(stopped.value)


def test_of_boxes_without_values_all_are_kept(runs: FeatureRuns) -> None:
    printed = runs.printed("custom_operators.py")
    assert "known boxes [0, 2]" in printed
    assert "\nboxes [0, 1, 2, 3, 4, 5]" in printed
    assert any("torchvision::nms kept all boxes" in line for line in runs.run("custom_operators.py").warnings)
