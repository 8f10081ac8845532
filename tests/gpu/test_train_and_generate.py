"""Training and generation on real GPUs, all that this machine has. Skips by itself without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.tiny import launch, tiny_llama, tiny_tokenizer

NUM_GPUS = torch.cuda.device_count()

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason="needs an NVIDIA GPU")]

ON_GPU = {"DS_ACCELERATOR": "cuda", "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in range(NUM_GPUS))}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_train_and_generate(stage: int, tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model", initializer_range=0.05)
    (tmp_path / "data.jsonl").write_text('{"prompt": "for", "completion": " each element"}\n' * 64)
    (tmp_path / "ds_config.json").write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    trained = launch(
        [
            *("launch/train.py", "--model", tmp_path / "model", "--data.train", tmp_path / "data.jsonl"),
            *("--task.seq_len", "64", "--training.output_dir", tmp_path / "out", "--training.bf16", "true"),
            *("--training.max_steps", "10", "--training.learning_rate", "2e-3"),
            *("--deepspeed", tmp_path / "ds_config.json"),
        ],
        ranks=NUM_GPUS,
        env=ON_GPU,
    )
    assert trained.returncode == 0, trained.stderr[-3000:]
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert report["device"] == "cuda"
    assert report["loss_after"] < report["loss_before"]
    assert report["peak_memory_bytes"] >= report["model_states_bytes"]
    generated = launch(
        ["launch/generate.py", "--model", tmp_path / "out", "--prompt", "for", "-o", tmp_path / "out.jsonl"],
        ranks=NUM_GPUS,
        env=ON_GPU,
    )
    assert generated.returncode == 0, generated.stderr[-3000:]
    assert json.loads((tmp_path / "out.jsonl").read_text())["completion"].startswith(" each")
