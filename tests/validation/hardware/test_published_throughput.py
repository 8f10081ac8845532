"""Which published rows of throughput say enough to be compared with."""

from __future__ import annotations

import pytest

from tests.validation.hardware.published_throughput import Row, judged

ROW: Row = {
    "source": "a README",
    "model": "Llama-3.1-8B",
    "gpu": "A100-80",
    "n_gpus": 8,
    "micro_batch": 2,
    "seq_len": 4096,
    "zero_stage": 3,
    "tokens_per_s_per_gpu": 1024,
}


def test_a_row_that_says_enough_has_seconds_and_what_is_assumed() -> None:
    one = judged(ROW | {"ga": 4})
    assert (one.lacks, one.step_seconds) == ((), 32.0)
    assert "torch's version" in one.assumed
    assert "no gradient accumulation" not in one.assumed
    assert judged(ROW | {"global_batch": 32}).step_seconds == 16.0
    assert "no gradient accumulation" in judged(ROW).assumed


@pytest.mark.parametrize(
    ("change", "micro_batches"), [({"ckpt": True}, 1), ({}, 4), ({"tokens_per_s_per_gpu": 3084.0}, 2), ({"ga": 3}, 3)]
)
def test_micro_batches_that_a_row_leaves_out_are_those_of_its_page(change: Row, micro_batches: int) -> None:
    internevo = ROW | {"source": "InternLM/InternEvo train_performance.md", "ckpt": False} | change
    one = judged(internevo)
    assert one.row["ga"] == micro_batches
    assert one.step_seconds == pytest.approx(micro_batches * 2 * 4096 / internevo["tokens_per_s_per_gpu"])
    assert "ga" not in judged(ROW).row


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"gpu": None}, "the GPU"),
        ({"gpu": "A100"}, "which A100"),
        ({"seq_len": None}, "the length"),
        ({"model": "ZeRO-2 <=13B no MP"}, "the model's layers"),
        ({"zero_stage": None}, "the stage of ZeRO"),
        ({"parallel": "FSDP8 TP8 PP8"}, "an engine like ZeRO's: tensor, context or pipeline parallel"),
        ({"precision": "amp_fp8"}, "16-bit products: they are in fp8"),
        ({"method": "Q-LoRA"}, "16-bit weights: they are quantised"),
        ({"tokens_per_s_per_gpu": None}, "a figure of time or tokens"),
    ],
)
def test_what_a_row_lacks_is_said(change: Row, lacks: str) -> None:
    one = judged(ROW | change)
    assert one.lacks == (lacks,)
    assert one.step_seconds is None
