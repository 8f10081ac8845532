"""Fine-tuning tasks on two real ranks: cells of `tests.validation.training.task_table`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import NllbMoeConfig, NllbMoeForConditionalGeneration

from tests.tiny import launch, tiny_tokenizer
from tests.validation.training.task_table import STAGES, TRIALS, cell, write


@pytest.mark.parametrize(("task", "lora"), [("sequence_classification", True), ("dpo", True)])
def test_a_task_is_learned_and_reloads_in_plain_libraries(task: str, lora: bool, tmp_path: Path) -> None:
    write(TRIALS[task], task, tmp_path)
    row = cell(task, tmp_path, tmp_path / "out", "3", STAGES["3"], lora=lora)
    assert row["passes"], row
    if task == "dpo":  # at the first step the model is its reference, but for dropout, which must be off
        logs = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
        assert next(log["loss"] for log in logs if log["step"] == 1) == pytest.approx(math.log(2), abs=1e-6)


def test_ranks_stay_together_where_tokens_choose_the_modules(tmp_path: Path) -> None:
    """Experts that a rank calls by its tokens, layers left out by chance, and blanks, under ZeRO-3."""
    tiny_tokenizer(tmp_path / "model")
    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    experts = {"num_experts": 4, "encoder_sparse_step": 1, "decoder_sparse_step": 1, "encoder_layerdrop": 0.5}
    widths = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 0}
    config = NllbMoeConfig(**layers, **experts, **widths, **ids, vocab_size=320, max_position_embeddings=64)
    torch.manual_seed(0)
    NllbMoeForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    rows = [{"prompt": "abcdefgh"[index:], "completion": "x" * (index + 1)} for index in range(7)]
    for name, kept in (("train", rows[2:]), ("eval", rows[:2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    recipe = {
        "model": str(tmp_path / "model"),
        "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl")},
        "task": {"type": "seq2seq", "seq_len": 16, "target_len": 4},
        "training": {"output_dir": str(tmp_path / "out"), "max_steps": 4, "per_device_train_batch_size": 2},
        "deepspeed": {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    result = launch(["launch/train.py", "--recipe", tmp_path / "recipe.yaml"], ranks=2, launcher="none")
    assert result.returncode == 0, result.stderr
    assert "layerdrop is off" in result.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["steps"] == 4
