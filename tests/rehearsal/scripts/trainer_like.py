"""How most people fine-tune: transformers' Trainer and datasets, and a ds_config with "auto" in it."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, default_data_collator

BLOCK = 512
"""Tokens of one example."""


def main(model_folder: str, data_folder: str, ds_config: str, output: str) -> None:
    # The Trainer's arguments come first: with them, from_pretrained knows whether to partition the model.
    arguments = TrainingArguments(
        output_dir=output,
        deepspeed=ds_config,
        bf16=True,
        gradient_checkpointing=True,
        per_device_train_batch_size=1,
        max_steps=3,
        eval_strategy="steps",
        per_device_eval_batch_size=2,
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        report_to="none",
    )
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    texts = load_dataset("text", data_dir=data_folder, split="train")

    def blocks(rows: dict[str, list[str]]) -> dict[str, Any]:
        ids = list(chain.from_iterable(tokenizer(rows["text"])["input_ids"]))
        cut = [ids[start : start + BLOCK] for start in range(0, len(ids) - BLOCK + 1, BLOCK)]
        return {"input_ids": cut, "labels": cut}

    examples = texts.map(blocks, batched=True, remove_columns=texts.column_names)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype="bfloat16")
    Trainer(
        model,
        arguments,
        train_dataset=examples,
        eval_dataset=examples.select(range(8)),
        data_collator=default_data_collator,
    ).train()
    Path(output, "done").write_text(f"{len(examples)}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
