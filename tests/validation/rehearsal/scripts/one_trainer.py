"""transformers' Trainer under ZeRO-3 on a model folder; with --lora, its adapters alone under ZeRO-2.

In words that every transformers since 4.46 takes.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

SEQUENCE = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder with a config.json")
    parser.add_argument("--lora", action="store_true")
    args = parser.parse_args()
    # The Trainer's arguments come first: with them, from_pretrained knows whether to partition the model.
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        deepspeed={
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"stage": 2 if args.lora else 3, "reduce_bucket_size": "auto"},
            "gradient_clipping": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
        },
        bf16=True,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        logging_steps=1,
        save_steps=1,
        report_to="none",
    )
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    row = {"input_ids": torch.arange(SEQUENCE), "labels": torch.arange(SEQUENCE)}
    Trainer(model, arguments, train_dataset=[row] * 256).train()


if __name__ == "__main__":
    main()
