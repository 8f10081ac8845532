"""Inputs of checkpointed layers that wait in host memory: a rehearsal counts them there."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.rehearsal import commands
from tests.tiny import tiny_llama, tiny_tokenizer

LAYERS, TOKENS, HIDDEN = 2, 8192, 64


def test_offloaded_inputs_are_pinned_host_memory(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "model")
    tiny_llama(tmp_path / "model", max_position_embeddings=TOKENS, num_hidden_layers=LAYERS)
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "0123456789" * TOKENS}) + "\n")
    recipe = {
        "model": "model",
        "data": {"train": "data.jsonl", "eval_fraction": 0},
        "task": {"seq_len": TOKENS},
        "precision": "bf16",
        "training": {
            "output_dir": "out",
            "max_steps": 1,
            "per_device_train_batch_size": 1,
            "gradient_checkpointing": True,
            "activation_offloading": True,
            "tiled_mlp": True,
        },
        "deepspeed": {"zero_optimization": {"stage": 3}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = ["--num-gpus", 2, "--rank", 0, "--no-advise", "--format", "json", "-m", "zerokit.train"]
    done = commands.rehearse(*words, "--recipe", "recipe.yaml", cwd=tmp_path, forked=True)
    assert done.code == 0, done.err
    batch = 4 * TOKENS * 8  # which the loader pins
    assert done.report["host"]["pinned_bytes"] == LAYERS * TOKENS * HIDDEN * 2 + batch


def test_layers_run_no_further_ahead_than_their_inputs_are_copied(tmp_path: Path) -> None:
    """Else a GPU that is slower than Python keeps the inputs of more layers, the more there are."""
    words = ["--num-gpus", 1, "--gpu", "h100", "--time", "--no-advise", "--format", "json"]
    script = commands.SCRIPTS / "offloaded_inputs.py"
    done = commands.rehearse(*words, script, tmp_path / "reserved.json", cwd=tmp_path, forked=True)
    assert done.code == 0, done.err
    reserved = json.loads((tmp_path / "reserved.json").read_text())
    assert reserved["18"] - reserved["6"] < 1, reserved
