"""`zerokit.generate` between the steps and micro batches of ZeRO-3 training on two ranks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tiny import launch, tiny_llama, tiny_tokenizer
from tests.validation.generation.in_training import PROMPTS


def test_training_goes_on_as_if_nothing_had_been_generated(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    tiny_llama(tmp_path)
    result = launch(["tests/launched/generate_in_training.py", tmp_path], ranks=2, launcher="none")
    assert result.returncode == 0, result.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["differs"] == first["changed"] == second["differs"] == second["changed"] == []
    assert first["order"], "no order of modules to keep"
    assert first["texts"] == second["texts"]
    assert {len(texts) for texts in first["texts"]} == {len(PROMPTS)}
    assert len({tuple(texts) for texts in first["texts"]}) > 1, "the weights have not changed meanwhile"
    assert "rank 1" in first["raised"]
    assert second["raised"] == "no words"
    assert first["unequal"] == second["unequal"] == "prompts or options: ranks differ. Pass the same on every rank"
    assert "onnection" in first["not_gathered"]
    assert second["not_gathered"] == "division by zero"
    assert all(each["is_partitioned"] and each["trains"] for each in (first, second))
