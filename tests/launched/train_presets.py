"""Started on two ranks by test_presets.py: train three steps with one ds_config after the other.

    train_presets.py MODEL_FOLDER OUTPUT.json FORM NAME=FILE...

FORM is `auto`, for transformers' Trainer, or `plain`, for DeepSpeed alone. Writes what each run showed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

STEPS = 3
ROWS = 2
SEQ_LEN = 16


def data(rank: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(7 + rank)
    rows = torch.randint(2, 32, (ROWS, SEQ_LEN), generator=generator)  # few tokens, learned at once
    return [{"input_ids": row, "labels": row} for row in rows]


def with_the_trainer(folder: Path, config: dict[str, Any], *, inference: bool) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as output:
        args = TrainingArguments(
            output_dir=output,
            deepspeed=config,
            use_cpu=True,
            bf16=True,
            max_steps=STEPS,
            per_device_train_batch_size=ROWS,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        model = AutoModelForCausalLM.from_pretrained(folder)
        trainer = Trainer(model=model, args=args, train_dataset=STEPS * (data(0) + data(1)), eval_dataset=data(0))
        if inference:
            loss = trainer.evaluate()["eval_loss"]
            return {"losses": [loss], **of_the_engine(trainer.model_wrapped)}
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return {"losses": losses, **of_the_engine(trainer.model_wrapped)}


def with_deepspeed(folder: Path, config: dict[str, Any], rank: int) -> dict[str, Any]:
    import deepspeed

    model, _kept = load(folder, config)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    losses = []
    batch = torch.stack([row["input_ids"] for row in data(rank)])
    for _ in range(STEPS):
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return {"losses": losses, **of_the_engine(engine)}


def generating(folder: Path, config: dict[str, Any], rank: int) -> dict[str, Any]:
    """What the inference preset is for: a model divided among the ranks, that generates."""
    import deepspeed

    model, _kept = load(folder, config)
    engine = deepspeed.initialize(model=model, config=config)[0]
    engine.module.eval()
    prompt = data(rank)[0]["input_ids"][None]
    out = engine.module.generate(prompt, max_new_tokens=STEPS, do_sample=False, synced_gpus=True)
    return {"generated": out.shape[1] - SEQ_LEN, **of_the_engine(engine)}


def load(folder: Path, config: dict[str, Any]) -> tuple[Any, Any]:
    """The model, divided as it is loaded if the config says so; and what must live as long as it does."""
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    kept = HfDeepSpeedConfig(config)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), kept


def of_the_engine(engine: Any) -> dict[str, Any]:
    optimizer = engine.optimizer
    divided = [p for p in engine.module.parameters() if hasattr(p, "ds_tensor") and not p.ds_persist]
    return {
        "stage": engine.zero_optimization_stage(),
        "steps": engine.global_steps,
        "num_divided": len(divided),
        "parameters_elsewhere": any(p.ds_tensor.final_location is not None for p in divided),
        "optimizer_elsewhere": any(
            bool(getattr(optimizer, name, False)) for name in ("cpu_offload", "offload_optimizer")
        ),
        "precision": str(next(engine.module.parameters()).dtype),
    }


def release() -> None:
    """Leave nothing of one run to the next."""
    from deepspeed.utils import groups
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    groups._ALL_TO_ALL_GROUP = {}
    gc.collect()


def prepare() -> None:
    """Open the process group and give DeepSpeed the extensions that this machine can have."""
    from zerokit.distributed.extensions import choose_extensions_folder, compile_extensions
    from zerokit.distributed.group import RankGroup
    from zerokit.distributed.ranks import read_ranks

    choose_extensions_folder()
    group = RankGroup(read_ranks())
    compile_extensions(group, cpu_optimizer="Adam")
    import deepspeed

    from tests.launched import cpu_ops

    deepspeed.init_distributed("gloo")
    cpu_ops.install()


def main() -> None:
    folder, output, form, *named = sys.argv[1:]
    rank = int(os.environ["RANK"])
    prepare()
    results: dict[str, Any] = {}
    for word in named:
        name, file = word.split("=", 1)
        config = json.loads(Path(file).read_text(encoding="utf-8"))
        inference = name == "inference"
        if form == "auto":
            results[name] = with_the_trainer(Path(folder), config, inference=inference)
        else:
            results[name] = (generating if inference else with_deepspeed)(Path(folder), config, rank)
        release()
    if rank == 0:
        Path(output).write_text(json.dumps(results), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
