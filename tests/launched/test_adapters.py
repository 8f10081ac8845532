"""Each kind of adapter on two ranks: what ZeRO divides is saved whole, and plain peft loads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel

from tests.tiny import launch
from tests.validation.training.task_table import TRIALS, write
from tests.validation.training.train_for_logits import KEPT
from zerokit.training.tasks import TASKS

RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "p_tuning": ("causal_lm", 3, {"type": "p_tuning", "encoder_reparameterization_type": "LSTM"}),
    "prefix_tuning": ("sequence_classification", 3, {"type": "prefix_tuning", "prefix_projection": True}),
    "prompt_tuning": ("dpo", 3, {"type": "prompt_tuning"}),
    "prompts of tags": ("token_classification", 2, {"type": "prompt_tuning"}),
    "ia3": ("seq2seq", 3, {"type": "ia3"}),
    "dora": ("causal_lm", 3, {"type": "lora", "use_dora": True, "use_rslora": True}),
    "qlora": ("causal_lm", 2, {"type": "qlora", "r": 4}),
}
"""The task, the ZeRO stage and the section `peft` of each."""


def make(folder: Path) -> None:
    """Models, data and recipes."""
    for task in {task for task, _, _ in RUNS.values()}:
        write(replace(TRIALS[task], known=None), task, folder / task)
    for name, (task, stage, section) in RUNS.items():
        recipe = {
            "model": f"{task}/model",
            "data": {"train": f"{task}/train.jsonl", "eval": f"{task}/eval.jsonl"},
            "task": {"type": task, "seq_len": 32, **TRIALS[task].task},
            "peft": section,
            "training": {
                "output_dir": name,
                "max_steps": 2,
                "per_device_train_batch_size": 2,
                "per_device_eval_batch_size": 8,
                "learning_rate": 0.05,
                "lr_scheduler_type": "constant",
                "save_strategy": "no",
            },
            "deepspeed": {"zero_optimization": {"stage": stage}},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    make(folder)
    result = launch(["tests/launched/train_adapters.py", folder], ranks=2, launcher="none")
    assert result.returncode == 0, result.stderr[-4000:]
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_an_adapter_gives_in_plain_peft_what_it_gave_in_the_run(name: str, trained: Path) -> None:
    task, _, section = RUNS[name]
    inputs = torch.load(trained / name / KEPT, weights_only=True)
    expected = inputs.pop("logits")
    options: dict[str, Any] = {"num_labels": expected.shape[-1]} if TASKS[task].model.new_head else {}
    if section["type"] == "qlora":
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
        options["device_map"] = {"": "cpu"}
    base = TASKS[task].model.auto.from_pretrained(trained / task / "model", dtype=torch.float32, **options)
    tokens = expected.shape[1]
    with torch.no_grad():
        alone = base.eval()(**inputs).logits
        model = PeftModel.from_pretrained(base, trained / name).eval()
        found = model(**inputs).logits
    found = found[:, -tokens:] if found.ndim == 3 else found  # those of learned tokens come first
    # For a CPU in evaluation, bitsandbytes packs weights anew and multiplies them in bf16.
    near = 0.02 if section["type"] == "qlora" else 1e-5
    torch.testing.assert_close(found, expected, rtol=0, atol=near)
    assert (alone - expected).abs().max() > 5 * near
