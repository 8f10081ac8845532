"""What a published row proves to work is not called impossible, and what ran out of memory not fitting."""

from __future__ import annotations

import json

import pytest

from tests.validation.hardware.published_throughput import judged
from tests.validation.memory.published import DATA
from tests.validation.memory.published_rows import GB, GIB, Judged, judge_all
from tests.validation.rehearsal.published_runs import Run, run_of
from zerokit.choices import Attention
from zerokit.config import DeepSpeedConfig
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.memory import Lora, TrainingRun, estimate
from zerokit.models import load_model_shape
from zerokit.planning.candidates import Candidate
from zerokit.planning.evaluate import Evaluator
from zerokit.planning.job import PlanJob
from zerokit.planning.workload import Workload
from zerokit.reporting.verdicts import NEGATIVE, judge

_ROWS = json.loads(DATA.read_text(encoding="utf-8"))


def test_what_worked_is_not_called_impossible() -> None:
    worked = [one for one in judge_all(_ROWS) if isinstance(one, Judged) and one.kind == "driver"]
    verdicts = {}
    for one in worked:
        row = _ROWS[one.row]
        # Rows in GB are sums over all GPUs.
        size = GIB if one.unit == "GiB" else GB / row["n_gpus"]
        assert one.low is not None
        assert one.high is not None
        memory = round(0.98 * (row["gpu_mem_gb"] or 80) * GIB)
        verdicts[one.row, one.what] = judge(round(one.low * size), round(one.high * size), memory)
    assert len(worked) >= 14
    assert {what for what, verdict in verdicts.items() if verdict not in ("fits", "tight")} == set()


_ATTENTION: dict[str, Attention] = {"flash": "flash_attention_2", "efficient": "sdpa", "eager": "eager"}
_TIMED = [
    run
    for row in json.loads(DATA.with_name("published_throughput.json").read_text(encoding="utf-8"))
    if not judged(row).lacks and (run := run_of(row)) is not None
    # Activations on the host are not planned.
    if run.plan.engine == "deepspeed" and run.plan.checkpointing != "host"
]


@pytest.mark.parametrize("run", _TIMED, ids=lambda run: f"{run.machines.gpus} x {run.machines.card}")
def test_what_was_timed_is_not_called_impossible(run: Run) -> None:
    plan, machines = run.plan, run.machines
    answer = estimate(
        TrainingRun(
            model=load_model_shape(plan.model),
            ds_config=DeepSpeedConfig.model_validate(plan.ds_config),
            cluster=Cluster(machines.gpus, min(machines.gpus, machines.gpus_per_node)),
            micro_batch_size=plan.micro_batch,
            gradient_accumulation_steps=max(1, run.accumulation),
            seq_len=plan.length,
            gradient_checkpointing=plan.checkpointing != "none",
            attention=_ATTENTION[plan.attention],
            lora=Lora(plan.lora_rank) if plan.lora_rank else None,
        )
    )
    memory = find_gpu(machines.card).memory_bytes
    assert judge(answer.device_low_bytes, answer.device_high_bytes, memory) not in NEGATIVE


def test_enough_timed_rows_say_enough() -> None:
    assert len(_TIMED) >= 29


@pytest.mark.parametrize(
    ("place", "model", "card"),
    [(108, "tiiuae/falcon-7b", "A100-40GB-SXM"), (136, "Qwen/Qwen3-30B-A3B", "A800-80GB-SXM")],
)
def test_what_ran_out_of_memory_is_not_called_fitting(place: int, model: str, card: str) -> None:
    """The two rows of DeepSpeed that name stage, length and cards; with the least micro batch."""
    row = _ROWS[place]
    assert row["measured_peak_gb"] is None
    workload = Workload(num_sequences=1000, seq_len=row["seq_len"], global_batch_size=2 * row["n_gpus"])
    job = PlanJob(model=load_model_shape(model), model_name=model, workload=workload, offers=())
    candidate = Candidate(
        num_gpus=row["n_gpus"],
        gpus_per_node=8,
        zero_stage=row["zero_stage"],
        micro_batch_size=1,
        gradient_accumulation_steps=2,
        gradient_checkpointing=place == 136,
    )
    need = Evaluator(job).memory(candidate)
    assert judge(need.device_low, need.device_high, find_gpu(card).memory_bytes) in NEGATIVE
