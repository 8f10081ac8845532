"""Every feature that changes memory: the rehearsal runs it, and the change is the one that its arithmetic
says.

The first line of each group is quick; ZEROKIT_ALL_COMBINATIONS=1 runs the rest, too.
"""

from __future__ import annotations

import pytest

from tests.combinations import REST
from tests.rehearsal.feature_runs import GPUS_PER_NODE, NUM_GPUS, FeatureRuns
from zerokit.rehearsal.report.report import RehearsalReport

LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY, KEYS = 4, 1024, 2816, 32000, 256
MICRO_BATCH, SEQUENCE = 2, 512
LAYER_PARAMETERS = 2 * HIDDEN * (HIDDEN + KEYS) + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
EMBEDDING = VOCABULARY * HIDDEN
PARAMETERS = 2 * EMBEDDING + LAYERS * LAYER_PARAMETERS + HIDDEN
LORA_PARAMETERS = LAYERS * 8 * (2 * HIDDEN + HIDDEN + KEYS)
LOGITS = MICRO_BATCH * SEQUENCE * VOCABULARY
BUCKET = 2_000_000
"""Elements of reduce_bucket_size, which ZeRO-3 keeps allocated."""
WORKSPACES = 2 * 32 * 2**20
"""cuBLAS keeps one for the thread of the forward pass and one for that of the backward pass (compute
capability 9.0)."""
NEAR = 0.02
"""The allocator leaves remainders below 1 MiB unsplit, and they count as allocated."""


def train(runs: FeatureRuns, options: str = "") -> RehearsalReport:
    """The report of scripts/features.py."""
    return runs.run("features.py", *options.split())


def sent(report: RehearsalReport, collective: str, phase: str | None = None) -> int:
    """Bytes of one step."""
    return sum(
        call.bytes
        for call in report.communication
        if call.collective == collective and call.phase != "init" and phase in (None, call.phase)
    )


# ---- model states


def _states(stage: int, precision: str) -> int:
    """Bytes between steps: parameters, masters, Adam's states, and the gradients' buffers of ZeRO-3."""
    width = 2 if precision in ("bf16", "fp16") else 4
    sharded = NUM_GPUS if stage else 1
    masters = 4 if stage or width == 2 else 0  # without ZeRO, float32 parameters are their own masters
    optimizer = (8 + masters) * PARAMETERS // sharded
    if stage < 3:
        return width * PARAMETERS + optimizer
    return 2 * width * PARAMETERS // NUM_GPUS + optimizer + width * BUCKET


def _is_first(stage: int, precision: str) -> bool:
    """Whether `make test` runs it: each stage, and each precision with and without divided parameters."""
    return precision == "bf16" or (stage, precision) in {(0, "fp32"), (1, "fp16"), (2, "autocast"), (3, "fp16")}


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        pytest.param(stage, precision, marks=() if _is_first(stage, precision) else REST)
        for stage in (0, 1, 2, 3)
        for precision in ("bf16", "fp16", "fp32", "autocast")
    ],
)
def test_model_states(runs: FeatureRuns, stage: int, precision: str) -> None:
    report = train(runs, f"--stage {stage} --precision {precision}")
    assert report.steps == 2
    expected = _states(stage, precision) + WORKSPACES
    assert report.device.steady_bytes == pytest.approx(expected, rel=NEAR)
    assert report.device.peak_bytes > report.device.steady_bytes + 4 * LOGITS


def test_bf16_optimizer_adds_gradients_in_fp32(runs: FeatureRuns) -> None:
    plain, summing = train(runs, "--stage 1"), train(runs, "--stage 1 --accumulate-in fp32")
    more = summing.device.steady_bytes - plain.device.steady_bytes
    assert more == pytest.approx(4 * PARAMETERS, rel=NEAR)


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
def test_bf16_masters_take_half(runs: FeatureRuns, stage: int) -> None:
    usual, short = train(runs, f"--stage {stage}"), train(runs, f"--stage {stage} --master bf16")
    less = usual.device.steady_bytes - short.device.steady_bytes
    assert less == pytest.approx(6 * PARAMETERS // NUM_GPUS, rel=NEAR)


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
def test_tied_weights_exist_once(runs: FeatureRuns, stage: int) -> None:
    usual, tied = train(runs, f"--stage {stage}"), train(runs, f"--stage {stage} --tied")
    parameters = 2 * EMBEDDING if stage == 2 else 4 * EMBEDDING // NUM_GPUS
    less = usual.device.steady_bytes - tied.device.steady_bytes
    assert less == pytest.approx(parameters + 12 * EMBEDDING // NUM_GPUS, rel=NEAR)


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
@pytest.mark.parametrize(("how", "trained"), [("--lora", LORA_PARAMETERS), ("--frozen", LAYER_PARAMETERS)])
def test_only_what_is_trained_has_states(runs: FeatureRuns, stage: int, how: str, trained: int) -> None:
    whole, report = train(runs, f"--stage {stage}"), train(runs, f"--stage {stage} {how}")
    assert report.device.at_peak["optimizer_states"] == pytest.approx(12 * trained / NUM_GPUS, rel=NEAR)
    assert report.device.peak_bytes < whole.device.peak_bytes - 10 * PARAMETERS // NUM_GPUS


# ---- offload


def test_offload_to_pageable_and_pinned_memory(runs: FeatureRuns) -> None:
    usual = train(runs, "--stage 2")
    pageable = train(runs, "--stage 2 --offload-optimizer cpu")
    pinned = train(runs, "--stage 2 --offload-optimizer cpu --pin-memory")
    states = 12 * PARAMETERS // NUM_GPUS
    assert usual.host.steady_bytes < states / 100
    for report in (pageable, pinned):
        assert report.device.at_peak["optimizer_states"] == 0
        assert report.host.steady_bytes > states
        assert report.host.per_node_steady_bytes == GPUS_PER_NODE * report.host.steady_bytes
    assert pageable.host.pinned_bytes == 0
    # Masters and gradients; torch's pinned allocator rounds each up to a power of two.
    assert 8 * PARAMETERS // NUM_GPUS < pinned.host.pinned_bytes < 32 * PARAMETERS // NUM_GPUS
    assert pageable.device.peak_bytes == pinned.device.peak_bytes < usual.device.peak_bytes


def test_parameters_on_the_host(runs: FeatureRuns) -> None:
    usual = train(runs, "--stage 3")
    report = train(runs, "--stage 3 --offload-optimizer cpu --offload-param cpu --pin-memory")
    assert report.host.steady_bytes > 14 * PARAMETERS // NUM_GPUS
    assert report.device.steady_bytes < WORKSPACES + 2 * BUCKET + 2**20
    assert report.device.peak_bytes < usual.device.peak_bytes - 14 * PARAMETERS // NUM_GPUS


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ("--offload-optimizer nvme --offload-param nvme --pin-memory", 14),
        pytest.param("--offload-optimizer nvme", 12, marks=REST),
    ],
)
def test_nvme_holds_what_is_offloaded(runs: FeatureRuns, options: str, least: int) -> None:
    report = train(runs, f"--stage 3 {options}")
    assert report.nvme is not None
    # Gradients in float32 wait there for the step as well, as far as they do not fit into a buffer.
    share = PARAMETERS / NUM_GPUS
    assert least * share < report.nvme.per_rank_bytes < (least + 4) * share
    assert report.nvme.per_node_bytes == GPUS_PER_NODE * report.nvme.per_rank_bytes
    # Every step reads all of it, and writes what has changed.
    assert report.nvme.read_bytes > report.nvme.per_rank_bytes
    # The swap buffers are page-locked.
    assert report.host.pinned_bytes > 4 * PARAMETERS // NUM_GPUS
    assert train(runs, "--stage 2 --offload-optimizer cpu").nvme is None


# ---- communication


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
def test_overlapping_keeps_blocks_of_two_streams(runs: FeatureRuns, stage: int) -> None:
    usual = train(runs, f"--stage {stage}")
    overlapping = train(runs, f"--stage {stage} --zero overlap_comm=true")
    assert overlapping.device.reserved_peak_bytes > usual.device.reserved_peak_bytes
    assert overlapping.device.reserved_is_lower_bound
    assert overlapping.device.peak_bytes == pytest.approx(usual.device.peak_bytes, rel=NEAR)


def test_hpz_keeps_a_second_partition(runs: FeatureRuns) -> None:
    usual = train(runs, "--stage 3")
    report = train(runs, f"--stage 3 --zero zero_hpz_partition_size={GPUS_PER_NODE}")
    more = report.device.peak_bytes - usual.device.peak_bytes
    assert more == pytest.approx(2 * PARAMETERS / GPUS_PER_NODE, rel=0.05)
    # The backward pass gathers inside the node.
    backward = [call for call in report.communication if call.phase == "backward" and "gather" in call.collective]
    assert {call.group_size for call in backward} == {GPUS_PER_NODE}


def test_quantized_weights_halve_the_gathers(runs: FeatureRuns) -> None:
    usual, report = train(runs, "--stage 3"), train(runs, "--stage 3 --zero zero_quantized_weights=true")
    assert sent(usual, "all_gather", "forward") == pytest.approx(2 * PARAMETERS, rel=NEAR)
    assert sent(report, "all_gather", "forward") == pytest.approx(PARAMETERS, rel=NEAR)


def test_quantized_gradients_go_by_all_to_all(runs: FeatureRuns) -> None:
    usual, report = train(runs, "--stage 3"), train(runs, "--stage 3 --zero zero_quantized_gradients=true")
    assert sent(usual, "reduce_scatter") == pytest.approx(2 * PARAMETERS, rel=NEAR)
    assert sent(report, "reduce_scatter") < PARAMETERS // 100  # norms only
    # Four bits for each gradient inside the node, then a GPU's share of them between the nodes.
    inside = PARAMETERS / 2
    assert sent(report, "all_to_all") == pytest.approx(inside + inside / GPUS_PER_NODE, rel=0.05)


@REST
def test_all_of_zeropp(runs: FeatureRuns) -> None:
    keys = (f"hpz_partition_size={GPUS_PER_NODE}", "quantized_weights=true", "quantized_gradients=true")
    report = train(runs, "--stage 3 " + " ".join(f"--zero zero_{key}" for key in keys))
    assert sent(report, "all_gather", "forward") < 1.1 * PARAMETERS
    assert sent(report, "all_to_all") > PARAMETERS / 2


def test_accumulation_sends_once_at_stage_1_and_always_at_stage_2(runs: FeatureRuns) -> None:
    bytes_by_stage = {}
    for stage in (1, 2):
        once, often = train(runs, f"--stage {stage}"), train(runs, f"--stage {stage} --accumulation 4")
        reductions = [
            sum(sent(report, name) for name in ("reduce", "all_reduce", "reduce_scatter")) for report in (once, often)
        ]
        bytes_by_stage[stage] = reductions[1] / reductions[0]
        assert often.steps == 2
        assert often.device.peak_bytes > once.device.peak_bytes
    assert bytes_by_stage == {1: pytest.approx(1, rel=0.01), 2: pytest.approx(4, rel=0.01)}


# ---- activations


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
@pytest.mark.parametrize("how", ["reentrant", "non_reentrant"])
def test_checkpointing_lowers_the_activations(runs: FeatureRuns, stage: int, how: str) -> None:
    usual, report = train(runs, f"--stage {stage}"), train(runs, f"--stage {stage} --checkpointing {how}")
    saved = usual.device.peak_bytes - report.device.peak_bytes
    # At least the intermediate activations of the feed-forward parts: gate, up and their product.
    assert saved > (LAYERS - 1) * 3 * 2 * MICRO_BATCH * SEQUENCE * INTERMEDIATE
    assert report.flops_per_step > 1.1 * usual.flops_per_step


def test_deepspeed_checkpointing_to_the_host(runs: FeatureRuns) -> None:
    on_gpu = train(runs, "--stage 2 --checkpointing deepspeed")
    on_host = train(runs, "--stage 2 --checkpointing deepspeed_cpu")
    hidden = 2 * MICRO_BATCH * SEQUENCE * HIDDEN
    # DeepSpeed leaves the last layer's input where it is (checkpointing.py, keep_last_count).
    assert on_host.host.pinned_bytes - on_gpu.host.pinned_bytes == pytest.approx((LAYERS - 1) * hidden, rel=NEAR)
    assert on_host.device.peak_bytes < on_gpu.device.peak_bytes
    torchs = train(runs, "--stage 2 --checkpointing reentrant")
    assert on_gpu.device.peak_bytes == pytest.approx(torchs.device.peak_bytes, rel=NEAR)


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
@pytest.mark.parametrize("how", ["chunked", "tiled"])
def test_a_loss_in_chunks_never_has_all_logits(runs: FeatureRuns, stage: int, how: str) -> None:
    usual, report = train(runs, f"--stage {stage}"), train(runs, f"--stage {stage} --loss {how}")
    assert usual.device.peak_bytes - report.device.peak_bytes > 4 * LOGITS
    logits = [block for block in report.device.largest_blocks_at_peak if block.bytes >= 2 * LOGITS]
    assert all(VOCABULARY not in block.shape or HIDDEN in block.shape for block in logits)


def test_eager_attention_keeps_the_probabilities(runs: FeatureRuns) -> None:
    length, heads = 2048, 16
    fused = train(runs, f"--sequence {length}")
    eager = train(runs, f"--sequence {length} --attention eager")
    probabilities = 2 * LAYERS * heads * MICRO_BATCH * length**2
    assert eager.device.peak_bytes - fused.device.peak_bytes > probabilities


def test_flash_attention_needs_what_sdpa_does(runs: FeatureRuns) -> None:
    sdpa, flash = train(runs, "--sequence 2048"), train(runs, "--sequence 2048 --attention flash_attention_2")
    assert flash.device.peak_bytes == pytest.approx(sdpa.device.peak_bytes, rel=0.01)
    sites = " ".join(site.site for site in flash.device.sites_at_peak)
    assert "flash_attention" in sites
    assert "sdpa_attention" not in sites


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
def test_ulysses_splits_the_sequence(runs: FeatureRuns, stage: int) -> None:
    quarter = train(runs, f"--stage {stage}")
    split = train(runs, f"--stage {stage} --sequence {4 * SEQUENCE} --sequence-parallel 4")
    assert split.device.peak_bytes == pytest.approx(quarter.device.peak_bytes, rel=0.03)
    hidden = 2 * MICRO_BATCH * SEQUENCE * HIDDEN
    # Queries there and results back, and both ways again in the backward pass; keys and values besides.
    assert sent(split, "all_to_all") > LAYERS * 4 * hidden
    assert sent(quarter, "all_to_all") == 0


# ---- optimizers


@pytest.mark.parametrize(
    ("optimizer", "elements"),
    [("torch_fused", 12), ("torch_foreach", 12), ("Lion", 8), pytest.param("Lamb", 12, marks=REST), ("Adagrad", 8)],
)
def test_optimizer_states(runs: FeatureRuns, optimizer: str, elements: int) -> None:
    report = train(runs, f"--stage 2 --optimizer {optimizer}")
    assert report.device.at_peak["optimizer_states"] == pytest.approx(elements * PARAMETERS / NUM_GPUS, rel=NEAR)


def test_foreach_makes_copies_of_everything_at_the_step(runs: FeatureRuns) -> None:
    options = "--stage 0 --precision fp32 --optimizer"
    fused, foreach = train(runs, f"{options} torch_fused"), train(runs, f"{options} torch_foreach")
    more = foreach.device.by_phase["step"] - fused.device.by_phase["step"]
    assert more == pytest.approx(4 * PARAMETERS, rel=0.05)


@pytest.mark.parametrize(
    ("optimizer", "elements"),
    [
        ("Lion", 16),  # DeepSpeedCPULion keeps a second moment, too, which it does not use
        pytest.param("AdamW", 16, marks=REST),
        pytest.param("Adagrad", 12, marks=REST),
        pytest.param("torch_fused", 16, marks=REST),
    ],
)
def test_optimizers_on_the_host(runs: FeatureRuns, optimizer: str, elements: int) -> None:
    report = train(runs, f"--stage 2 --offload-optimizer cpu --optimizer {optimizer}")
    assert report.device.at_peak["optimizer_states"] == 0
    # Masters, their gradients and the states, and the gradients of parameters that cross two partitions.
    least = elements * PARAMETERS / NUM_GPUS
    assert least * (1 - NEAR) < report.host.steady_bytes < least + 4 * EMBEDDING


@pytest.mark.parametrize("options", ["--stage 2", pytest.param("--stage 3 --zero reduce_scatter=false", marks=REST)])
def test_muon_has_one_state_less_for_matrices(runs: FeatureRuns, options: str) -> None:
    report = train(runs, f"{options} --optimizer Muon")
    states = report.device.at_peak["optimizer_states"]
    assert 8 * PARAMETERS / NUM_GPUS <= states < 11 * PARAMETERS / NUM_GPUS
    # DeepSpeed has Muon's update compiled.
    assert not any("torch.compile" in warning for warning in report.warnings)


# ---- mixtures of experts


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    "model", ["qwen3_moe", pytest.param("mixtral", marks=REST), pytest.param("deepseek_v3", marks=REST)]
)
def test_mixtures_of_experts(runs: FeatureRuns, model: str, stage: int) -> None:
    report = train(runs, f"--stage {stage} --model {model}")
    printed = runs.printed("features.py", "--stage", str(stage), "--model", model)
    parameters = int(printed.rpartition("parameters ")[2].split()[0])
    assert report.device.at_peak["optimizer_states"] == pytest.approx(12 * parameters / NUM_GPUS, rel=NEAR)
    # The choice of experts has no values to go by, and the report says what was chosen instead.
    assert any("balanced routing" in case.what for case in report.made_up)


@pytest.mark.parametrize("over", [4, pytest.param(8, marks=REST)])
def test_experts_of_deepspeed_lie_on_several_gpus(runs: FeatureRuns, over: int) -> None:
    whole = train(runs, "--model deepspeed_moe")
    spread = train(runs, f"--model deepspeed_moe --experts-over {over}")
    width, experts, layers = 512, 8, 2
    expert = 2 * 4 * width * width + 4 * width + width
    less = whole.device.at_peak["parameters"] - spread.device.at_peak["parameters"]
    assert less == pytest.approx(2 * layers * experts * expert * (1 - 1 / over), rel=NEAR)
    assert sent(spread, "all_to_all") > 0
