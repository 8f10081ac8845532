"""Fine-tune with transformers' Trainer. TRL's SFTTrainer takes the same arguments."""

from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments

args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
tokenizer = AutoTokenizer.from_pretrained("model")
model = AutoModelForCausalLM.from_pretrained("model")

tokens = tokenizer("Name the planets of the solar system, from the sun outwards.")["input_ids"]
examples = [{"input_ids": tokens, "labels": tokens} for _ in range(1000)]
Trainer(model=model, args=args, train_dataset=examples).train()
