"""How published rows of throughput are rehearsed, and the page that shows what came out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.tiny import REPOSITORY
from tests.validation.hardware.published_throughput import Row, judged
from tests.validation.rehearsal import newest_runs, published_machines, published_runs, published_times
from zerokit.hardware.gpus import find_gpu

ROWS: list[dict[str, Any]] = json.loads(published_times.WRITTEN.read_text(encoding="utf-8"))
TRIED = [row for row in ROWS if "error" in row]
GATHERED = [row for row in TRIED if row["row"] < published_times.FIRST_LATER]
LATER = [row for row in TRIED if published_times.FIRST_LATER <= row["row"] < published_times.FIRST_NEWEST]
NEWEST = [row for row in TRIED if row["row"] >= published_times.FIRST_NEWEST]
LATER_ROWS: list[Row] = json.loads(published_times.LATER.read_text(encoding="utf-8"))
NEWEST_ROWS: list[Row] = json.loads(published_times.NEWEST.read_text(encoding="utf-8"))
PAGE = (REPOSITORY / "tests" / "validation" / "records" / "time-accuracy.md").read_text(encoding="utf-8")
ROWS_PAGE = (REPOSITORY / "tests" / "validation" / "records" / "published-times.md").read_text(encoding="utf-8")
FOUNDRY: Row = {
    "source": "mosaicml/llm-foundry scripts/train/benchmarking/README.md",
    "model": "MPT-7b",
    "gpu": "a100_40gb",
    "n_gpus": 64,
    "micro_batch": 18,
    "ga": 5,
    "seq_len": 2048,
    "zero_stage": "2 (FSDP)",
    "mp_mode": "PURE",
    "ckpt": True,
}


def test_a_row_is_run_as_its_source_says_and_the_rest_is_told() -> None:
    run = published_runs.run_of(FOUNDRY)
    assert run is not None
    assert run.machines == published_machines.Machines("A100-40GB-SXM", 64, network_gbit_s=1600)
    plan = run.plan
    assert (plan.engine, plan.stage, plan.reduced_in, plan.checkpointing) == ("fsdp", 2, "bfloat16", "whole")
    assert (plan.model["n_layer"], plan.model["n_embd"], plan.model["n_positions"]) == (32, 4096, 2048)
    assert plan.accumulated == [1, 1, 2]
    assert run.accumulation == 5
    assert "GPT-2's code in MPT's sizes" in run.assumed
    assert published_runs.run_of(FOUNDRY | {"model": "another"}) is None


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        ({}, "efficient"),
        ({"gpu": "h100_80gb"}, "efficient"),
        ({"gpu": "h100_80gb", "n_gpus": 128}, "flash"),
        ({"gpu": "h100_80gb", "n_gpus": 128, "model": "MPT-13b"}, "efficient"),
        ({"n_gpus": 128}, "efficient"),
    ],
)
def test_attention_is_by_the_kernel_of_the_sources_scripts(change: Row, kernel: str) -> None:
    run = published_runs.run_of(FOUNDRY | change)
    assert run is not None
    assert run.plan.attention == kernel


def test_layers_are_computed_again_as_torch_of_then_did() -> None:
    qwen: Row = {"source": "QwenLM/Qwen README", "model": "Qwen-7B", "gpu": "A100-80", "n_gpus": 2}
    qwen = qwen | {"micro_batch": 1, "seq_len": 1024}
    rows = {
        "whole": [FOUNDRY, qwen, next(row for row in LATER_ROWS if row["row"] == 303)],
        "full": [FOUNDRY | {"gpu": "h100_80gb"}, next(row for row in LATER_ROWS if "fms" in row["source"])],
        "none": [FOUNDRY | {"ckpt": False}],
    }
    for again, of_such in rows.items():
        for row in of_such:
            run = published_runs.run_of(row)
            assert run is not None
            assert run.plan.checkpointing == again


def test_deepspeed_gets_the_rows_config_and_steps_enough_to_prefetch() -> None:
    row = {"source": "ms-swift Quick-start.md", "model": "Qwen2.5-14B", "gpu": "A800-80", "n_gpus": 8}
    row |= {"micro_batch": 1, "seq_len": 8192, "zero_stage": 3}
    run, longer = (published_runs.run_of(row | {"note": f"packing, ga={ga} (14B)"}) for ga in (2, 8))
    assert run is not None
    assert longer is not None
    assert (run.accumulation, run.plan.accumulated) == (2, [2, 2, 2])
    assert (longer.accumulation, longer.plan.accumulated) == (8, [2, 1, 1, 1, 1, 2])
    config = run.plan.ds_config
    assert config["zero_optimization"]["reduce_bucket_size"] == 5120**2
    assert config["bf16"] == {"enabled": True}
    assert config["zero_optimization"]["overlap_comm"] is False
    assert run.environment == ""


def test_experts_that_transformers_looped_over_are_rehearsed_so() -> None:
    row = next(row for row in LATER_ROWS if row["model"] == "Qwen1.5-MoE-A2.7B")
    run = published_runs.run_of(row)
    assert run is not None
    assert run.environment == "transformers 4.52"


def test_torchtitan_s_cards_have_the_memory_that_its_page_tells() -> None:
    row = {"source": "pytorch/torchtitan Table 1", "model": "Llama-3.1-8B", "gpu": "H100-96 500W"}
    run = published_runs.run_of(row | {"n_gpus": 8, "micro_batch": 2, "seq_len": 8192})
    assert run is not None
    card = published_machines.card_of(run.machines)
    known = find_gpu("H100-SXM")
    assert (card["name"], card["bandwidth_gb_s"], card["tflops"]) == (known.name, 2400, known.tflops)
    assert card["node"]["network_gbit_s"] == 3200


def test_all_parameters_of_qwen_are_trained_by_its_script_for_them() -> None:
    row = {"source": "QwenLM/Qwen README", "model": "Qwen-1.8B", "gpu": "A100-80", "n_gpus": 1}
    row |= {"micro_batch": 1, "ga": 8, "seq_len": 512}
    runs = [published_runs.run_of(row | {"method": method}) for method in ("Full-parameter", "LoRA")]
    assert all(run is not None for run in runs)
    engines = [(run.plan.engine, run.plan.lora_rank) for run in runs if run is not None]
    assert engines == [("deepspeed", 0), ("torch", 64)]


@pytest.mark.parametrize(("word", "checkpointing"), [("HF+DS ZeRO", "whole"), ("Megatron+ZeRO3", "host")])
def test_bigscience_s_engine_waits_and_has_all_steps_as_a_first_one(word: str, checkpointing: str) -> None:
    row: Row = {"source": f"bigscience experiments/gpt2.md {word}", "model": "GPT-2 52B", "gpu": "V100-32"}
    run = published_runs.run_of(row | {"n_gpus": 64, "micro_batch": 8, "global_batch": 512, "seq_len": 1024})
    assert run is not None
    assert (run.first, run.plan.accumulated) == (1, [1])
    assert run.plan.waits_to_gather
    assert run.plan.checkpointing == checkpointing
    its_own = "gelu_new" if "HF" in word else "gelu"
    assert run.plan.model["activation_function"] == its_own


def test_later_rows_say_enough_and_are_of_other_sources() -> None:
    numbers = [row["row"] for row in LATER_ROWS]
    assert numbers == list(range(published_times.FIRST_LATER, published_times.FIRST_LATER + len(numbers)))
    assert not {row["source"] for row in LATER_ROWS} & {row["published"]["source"] for row in GATHERED}
    for row in LATER_ROWS:
        assert judged(row).lacks == ()
        assert row["url"].startswith("https://")
        assert published_runs.run_of(row) is not None
    assert [row["row"] for row in LATER] == numbers


def test_newest_rows_say_enough_and_are_of_other_sources() -> None:
    numbers = [row["row"] for row in NEWEST_ROWS]
    assert numbers == list(range(published_times.FIRST_NEWEST, published_times.FIRST_NEWEST + len(numbers)))
    earlier = {row["published"]["source"] for row in (*GATHERED, *LATER)}
    assert not {row["source"] for row in NEWEST_ROWS} & earlier
    for row in NEWEST_ROWS:
        assert judged(row).lacks == ()
        assert row["url"].startswith("https://")
        assert newest_runs.run_of(row) is not None
    waiting = sorted(set(numbers) - {row["row"] for row in NEWEST})
    assert all(re.search(rf"Rows? [^.]*\b{number}\b[^.]* not rehearsed yet", PAGE) for number in waiting)


def test_half_of_the_newest_rows_offload_or_have_short_batches() -> None:
    kinds = [published_times.kind_of({"published": row}) for row in NEWEST_ROWS]
    assert kinds.count("other") * 2 < len(kinds)


@pytest.mark.parametrize("row", NEWEST_ROWS, ids=lambda row: str(row["row"]))
def test_a_newest_row_offloads_and_computes_again_what_its_source_says(row: Row) -> None:
    run = newest_runs.run_of(row)
    assert run is not None
    zero = run.plan.ds_config["zero_optimization"]
    assert zero["stage"] == row["zero_stage"]
    assert {f"offload_{what}" in zero for what in ("optimizer", "param") if row.get(f"offload_{what}")} <= {True}
    assert (run.plan.checkpointing != "none") == bool(row["ckpt"])
    assert run.accumulation == row["ga"]


def test_variables_and_threads_of_a_source_s_script_are_given() -> None:
    by_number = {row["row"]: row for row in NEWEST_ROWS}
    blocking, threads = (newest_runs.run_of(by_number[number]) for number in (405, 422))
    assert blocking is not None
    assert threads is not None
    assert blocking.variables == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert (threads.launcher, threads.variables) == ("torchrun", {"OMP_NUM_THREADS": "8"})


def test_what_a_gist_offloads_is_offloaded() -> None:
    row = next(row for row in LATER_ROWS if row.get("offload_param"))
    run = published_runs.run_of(row)
    assert run is not None
    zero = run.plan.ds_config["zero_optimization"]
    assert [zero[f"offload_{what}"]["device"] for what in ("optimizer", "param")] == ["cpu", "cpu"]


def test_micro_batches_that_were_not_played_take_as_long_as_the_second() -> None:
    assert published_times.step_seconds([9, 3, 5], [1, 1, 2], 16) == 5 + 14 * 2
    assert published_times.step_seconds([9, 3, 5], [1, 1, 2], 2) == 5
    assert published_times.step_seconds([9, 3, 5], [8, 8, 8], 8) == 5


def test_a_summary_by_kind_has_errors_and_those_in_range() -> None:
    told: dict[str, Any] = {"micro_batch": 1, "seq_len": 512}
    rows = [
        {"published": told, "error": -0.5, "low": 1, "high": 2, "measured": 3},
        {"published": told, "error": 0.1, "low": 1, "high": 2, "measured": 1.5},
        {"published": told | {"offload_param": True}, "error": 0.2, "low": 1, "high": 2, "measured": 1},
        {"published": told | {"seq_len": 2048}, "lacks": ["x"]},
    ]
    assert list(published_times.summary_by_kind(rows)) == [
        "| offload | 1 | 20 % | 20 % | +20 % | 1 |",
        "| short batch | 2 | 30 % | 50 % | -20 % | 1 |",
        "| all | 3 | 20 % | 50 % | +10 % | 2 |",
    ]


def test_the_summary_has_the_size_of_errors_by_source() -> None:
    rows = [{"published": {"source": "a"}, "error": error} for error in (-0.3, 0.1, 0.2)]
    of_a, of_all = published_times.summary([*rows, {"published": {"source": "a"}, "lacks": ["x"]}])
    assert of_a == "| a | 3 | 20 % | 30 % | 1 |"
    assert of_all.startswith("| all |")


@pytest.mark.parametrize("row", TRIED, ids=lambda row: str(row["row"]))
def test_the_page_shows_every_row_that_was_tried(row: dict[str, Any]) -> None:
    assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1, abs=1e-3)
    assert published_times.line_of(row) in ROWS_PAGE


def test_the_page_has_a_word_on_each_row_that_is_far_off_and_the_summary_of_today() -> None:
    headings = re.findall(r"^\*\*([^(*]+)\(", PAGE.partition("## Rows that are far off")[2], re.MULTILINE)
    named = sorted(int(row) for heading in headings for row in re.findall(r"\d+", heading))
    assert named == [row["row"] for row in TRIED if abs(row["error"]) > published_times.FAR]
    for rows in (GATHERED, LATER, NEWEST):
        within = sum(row["low"] <= row["measured"] <= row["high"] for row in rows)
        assert f"lie within the range of the costs in {within} of the {len(rows)} rows" in PAGE
        for line in published_times.summary(rows):
            assert line in PAGE
    for line in published_times.summary_by_kind(NEWEST):
        assert line in PAGE
