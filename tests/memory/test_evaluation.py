"""Evaluation within training: the estimate against the rehearsal of launch/train.py, which says it first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.combinations import REST
from tests.memory.runs import LLAMA
from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY, tiny_tokenizer
from zerokit.estimation import estimate

pytestmark = [pytest.mark.torch, pytest.mark.rehearsal]

RECIPE = """\
model: {{from_config: config.json, tokenizer: .}}
data: {{train: data.jsonl, eval_fraction: 0.5}}
task: {{seq_len: 512}}
training:
  output_dir: out
  max_steps: 2
  bf16: true
  gradient_checkpointing: {checkpointing}
  per_device_train_batch_size: 1
  per_device_eval_batch_size: 16
  eval_strategy: steps
  eval_steps: 1
deepspeed: ds.json
"""


@pytest.mark.parametrize(
    ("stage", "num_gpus", "checkpointing", "vocab_size"),
    [(2, 1, True, 32000), pytest.param(3, 8, False, 512, marks=REST)],
    ids=["logits are the peak", "a layer is the peak"],
)
def test_an_evaluation_in_larger_batches_is_the_peak(
    stage: int, num_gpus: int, checkpointing: bool, vocab_size: int, tmp_path: Path
) -> None:
    tiny_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": vocab_size}))
    (tmp_path / "data.jsonl").write_text((json.dumps({"text": "word " * 2000}) + "\n") * 64)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(checkpointing=str(checkpointing).lower()))
    ds_config = {
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1_000_000},
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    (tmp_path / "ds.json").write_text(json.dumps(ds_config))
    words = ["--num-gpus", num_gpus, "--rank", 0, "--steps", 2, "--format", "json", "--no-advise"]
    words += [REPOSITORY / "launch" / "train.py", "--recipe", "recipe.yaml"]
    done = rehearse(*words, cwd=tmp_path, forked=True)
    assert done.code == 0, done.err[-3000:]
    rehearsed = done.report["device"]
    estimated = estimate(
        tmp_path,
        num_gpus=num_gpus,
        ds_config=ds_config,
        micro_batch_size=1,
        eval_batch_size=16,
        seq_len=512,
        gradient_checkpointing=checkpointing,
        chunked_loss="zerokit",
    )
    assert (rehearsed["peak_phase"], estimated.device.peak_phase) == ("between", "evaluation")
    assert estimated.device.peak_bytes == pytest.approx(rehearsed["peak_bytes"], rel=0.02)
    assert "estimated peak per rank, in evaluation: Fits: needs " in done.err
