"""A script of transformers' Trainer under presets of ds_configs/, on 8 GPUs, through the command.

More settings: test_features.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.tiny import REPOSITORY
from tests.validation.rehearsal.local_inputs import ARCHITECTURES, write_model, write_text_dataset

NUM_GPUS = 8
LAYERS = 4
_SIZES = ARCHITECTURES["llama-3.1-8b"]
_MIB = 2**20
WORKSPACES = 64 * _MIB
"""cuBLAS keeps 32 MiB for each thread that multiplies: the main one, and autograd's."""
BUCKET = 2 * int(_SIZES["hidden_size"]) ** 2
"""ZeRO-3's bucket of gradients, which the Trainer sizes as hidden_size² elements ("auto")."""

Preset = dict[str, Any]


def _embedding() -> int:
    return int(_SIZES["vocab_size"]) * int(_SIZES["hidden_size"])


@cache
def num_parameters() -> int:
    """Φ of a Llama: two embeddings, a norm; in each layer q, k, v, o, three MLP matrices and two norms."""
    hidden, inner = int(_SIZES["hidden_size"]), int(_SIZES["intermediate_size"])
    key_value = hidden // int(_SIZES["num_attention_heads"]) * int(_SIZES["num_key_value_heads"])
    layer = 2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * inner + 2 * hidden
    return 2 * _embedding() + LAYERS * layer + hidden


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "model", "llama-3.1-8b", num_hidden_layers=LAYERS)
    write_text_dataset(folder / "data", kilobytes=100)
    return folder


@pytest.fixture(scope="module")
def rehearsed(inputs: Path) -> Any:
    """The report of a preset; each is rehearsed once."""

    @cache
    def report(preset: str) -> Preset:
        output = inputs / "out" / preset
        nvme = Path("/local_nvme")  # the presets' folder: nothing of it is made or touched
        before = nvme.stat() if nvme.exists() else None
        done = rehearse(
            *("--num-gpus", NUM_GPUS, "--no-advise", "--format", "json", SCRIPTS / "trainer_like.py"),
            *(inputs / "model", inputs / "data" / "text", REPOSITORY / "ds_configs" / f"{preset}.json", output),
            cwd=inputs,
            forked=preset != "zero3_nvme",  # which would write there, but for the overlay
        )
        found = done.report
        assert done.code == 0
        assert found["steps"] == 2
        assert found["run"]["stopped_after_steps"] == 2
        assert any("Trainer checkpoints" in line for line in found["suppressed"])
        assert not list(output.glob("checkpoint-*"))
        assert (nvme.stat() if nvme.exists() else None) == before
        return found

    return report


def steady(report: Preset) -> int:
    return int(report["device"]["steady_bytes"])


def test_stage_2_partitions_the_optimizer_states(rehearsed: Any) -> None:
    expected = (2 + 12 / NUM_GPUS) * num_parameters()
    assert steady(rehearsed("zero2")) == pytest.approx(expected + WORKSPACES, rel=0.005)


def test_stage_3_partitions_everything(rehearsed: Any) -> None:
    expected = 16 * num_parameters() / NUM_GPUS + BUCKET + WORKSPACES
    report = rehearsed("zero3")
    assert steady(report) == pytest.approx(expected, rel=0.005)
    # The script would evaluate later.
    assert report["evaluation"]["largest"]["shape"] == [2, 512]
    assert report["device"]["by_phase"]["evaluation"] > steady(report)


def test_stage_3_reads_the_checkpoint_on_rank_0_alone(rehearsed: Any) -> None:
    first, last = rehearsed("zero3")["ranks"]
    assert (first["rank"], last["rank"]) == (0, NUM_GPUS - 1)
    assert first["host_peak_bytes"] == pytest.approx(2 * num_parameters(), rel=0.001)
    assert last["host_peak_bytes"] <= 2 * num_parameters() / NUM_GPUS * 1.02
    assert last["device_steady_bytes"] == pytest.approx(first["device_steady_bytes"], rel=0.01)


def test_stage_3_with_everything_elsewhere_keeps_next_to_nothing(rehearsed: Any) -> None:
    report = rehearsed("zero3_nvme")
    assert steady(report) == pytest.approx(BUCKET + WORKSPACES, rel=0.02)
    # The largest matrix, its gradient and the chunk that gathers the next are there at once.
    assert report["device"]["peak_bytes"] >= 4 * _embedding()
