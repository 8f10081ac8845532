"""DoRA, IA3 and dropout: the estimate against the rehearsal. The grid has LoRA's."""

from __future__ import annotations

import pytest

from tests.combinations import REST
from tests.validation.memory.against_rehearsal import compare
from tests.validation.memory.grid import LLAMA_8B, LORA
from tests.validation.memory.rehearsed import Point

pytestmark = [pytest.mark.torch, pytest.mark.rehearsal]

SMALL = {"num_hidden_layers": 3, "vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 3584} | {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
"""Of Llama 3.1 8B: the point is the layer, of a quarter of its width; the host computes norms for DoRA."""
WIDE = ["q_proj", "v_proj", "o_proj", "down_proj"]
DORA = {"rank": 16, "target_modules": WIDE, "dora": True}
IA3 = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
DROPPED = {"rank": 16, "target_modules": WIDE, "dropout": True}
LEAN = {
    "stage": 3,
    **dict.fromkeys(("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size"), 0),
}
"""What is gathered is released at once: activations are most of the peak."""
POINTS = {
    "DoRA": Point("DoRA", LLAMA_8B, {"stage": 2}, lora=DORA, changes=SMALL, seq_len=4096),
    "DoRA, checkpointing": Point(
        "DoRA, checkpointing", LLAMA_8B, {"stage": 2}, lora=DORA, changes=SMALL, checkpointing=True
    ),
    "DoRA, stage 3": Point("DoRA, stage 3", LLAMA_8B, {"stage": 3}, lora=DORA, changes=SMALL, seq_len=4096),
    "DoRA, dropout": Point("DoRA, dropout", LLAMA_8B, {"stage": 2}, lora=DORA | DROPPED, changes=SMALL, seq_len=4096),
    "dropout": Point("dropout", LLAMA_8B, {"stage": 2}, lora=DROPPED, changes=SMALL, seq_len=4096),
    "IA3": Point("IA3", LLAMA_8B, {"stage": 2}, ia3=IA3, changes=SMALL, seq_len=4096),
    # Stage 3's linear layers keep their input though they are frozen.
    "frozen, stage 3": Point("frozen, stage 3", LLAMA_8B, LEAN, lora=LORA, changes=SMALL, seq_len=4096),
    "IA3, stage 3": Point("IA3, stage 3", LLAMA_8B, LEAN, ia3=IA3, changes=SMALL, seq_len=4096),
    "IA3, checkpointing": Point(
        "IA3, checkpointing", LLAMA_8B, {"stage": 3}, ia3=IA3, changes=SMALL, checkpointing=True
    ),
}
LIKE_OTHERS = {"DoRA", "DoRA, dropout", "IA3, checkpointing", "IA3, stage 3"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=REST) if name in LIKE_OTHERS else name for name in POINTS])
def test_the_estimate_agrees_with_the_rehearsal(name: str) -> None:
    row = compare(POINTS[name], forked=True)
    assert abs(row.device_peak.error) < 0.03
    assert abs(row.device_steady.error) < 0.01
    assert row.phase_estimated == row.phase_rehearsed
