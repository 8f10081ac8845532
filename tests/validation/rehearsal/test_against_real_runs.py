"""Rehearsals against real runs on two gloo ranks, and those real runs against plain PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.combinations import REST
from tests.validation.rehearsal.real_runs import (
    ALL,
    NUM_RANKS,
    QUICK,
    STEPS,
    WRITTEN,
    Combination,
    Pair,
    compare,
    deviations,
    figures,
    run,
)

TOLERANCE = 0.005
"""Half of what is promised: half of the device bytes are workspaces of cuBLAS, which no setting changes."""


def _parameter(combination: Combination) -> object:
    marks = () if combination in QUICK else (REST,)
    return pytest.param(combination, id=combination.name, marks=marks)


@pytest.mark.distributed
@pytest.mark.parametrize("combination", [_parameter(combination) for combination in ALL])
def test_a_rehearsal_holds_the_bytes_of_the_real_run(combination: Combination, tmp_path: Path) -> None:
    pair = compare(combination, tmp_path, forked=True)
    assert pair.worst <= TOLERANCE, _told(pair)
    for real, rehearsed in zip(pair.real, pair.rehearsed, strict=True):
        assert rehearsed.communication == real.communication
    for losses in pair.losses:
        assert len(losses) == STEPS * combination.accumulation
        # The batch is the same in every step, so that a loss which did not fall would be no training.
        assert losses[-1] < losses[0]


def _told(pair: Pair) -> str:
    return "\n".join(
        f"rank {real.rank}: real {figures(real)}, rehearsed {figures(rehearsed)}"
        for real, rehearsed in zip(pair.real, pair.rehearsed, strict=True)
    )


def test_deviations_are_of_the_real_figure() -> None:
    real = {"device_peak": 100, "host_peak": 50, "host_steady": 0, "pinned_peak": 0, "device_peak_in_loss": 7}
    rehearsed = {"device_peak": 102, "host_peak": 49, "host_steady": 1, "pinned_peak": 0}
    assert deviations(rehearsed, real) == {
        "device_peak": 0.02,
        "device_peak_in_loss": -1.0,
        "host_peak": -0.02,
        "host_steady": float("inf"),
        "pinned_peak": 0.0,
    }


PLAIN_STEPS = 5


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """Weights of the model of scripts/matrix.py, and its losses by rank in a loop of plain PyTorch."""
    from transformers import LlamaForCausalLM

    from tests.validation.rehearsal.scripts.matrix_model import LEARNING_RATE, WEIGHT_DECAY, batch, model_config

    torch.manual_seed(11)
    model = LlamaForCausalLM(model_config())
    weights = tmp_path_factory.mktemp("plain") / "weights.pt"
    torch.save(model.state_dict(), weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = [batch(rank, "cpu") for rank in range(NUM_RANKS)]
    losses: list[list[float]] = [[] for _ in batches]
    for _ in range(PLAIN_STEPS):
        for ids, told in zip(batches, losses, strict=True):
            loss = model(input_ids=ids, labels=ids).loss
            (loss / NUM_RANKS).backward()
            told.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return weights, losses


@pytest.mark.distributed
@pytest.mark.parametrize("stage", [*(pytest.param(stage, marks=REST) for stage in (0, 1, 2)), 3])
def test_a_real_run_trains_as_plain_pytorch_does(
    stage: int, plain: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    weights, losses = plain
    arguments = ["--stage", str(stage), "--precision", "fp32", "--weights", str(weights)]
    _, real = run(arguments, "real", tmp_path, steps=PLAIN_STEPS, forked=True)
    for own, expected in zip(real, losses, strict=True):
        assert own == pytest.approx(expected, abs=1e-4)


def test_what_was_written_down_is_of_every_combination() -> None:
    """`python -m tests.validation.rehearsal.real_runs --write` makes the record."""
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert [row["name"] for row in written["combinations"]] == [combination.name for combination in ALL]
    assert len(ALL) >= 24
    # Settings that changed nothing would show nothing; fp16 and bf16 may hold the same bytes.
    assert len({json.dumps(row["ranks"]) for row in written["combinations"]}) >= 24
    assert written["worst_deviation_percent"] <= 100 * TOLERANCE
    worst = max(
        abs(value)
        for row in written["combinations"]
        for rank in row["ranks"]
        for value in deviations(rank["rehearsed"], rank["real"]).values()
    )
    assert written["worst_deviation_percent"] == pytest.approx(100 * worst, abs=1e-4)
