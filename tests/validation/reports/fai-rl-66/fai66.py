import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3Config, Trainer, TrainingArguments

config = Qwen3Config(vocab_size=151936, hidden_size=5120, intermediate_size=25600, num_hidden_layers=32,
                     num_attention_heads=64, num_key_value_heads=8, head_dim=128)
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=1, max_steps=2, bf16=True,
                              report_to=[], save_strategy="no", deepspeed="zero3_config.json")
data = [{"input_ids": torch.randint(0, 1000, (512,)), "labels": torch.randint(0, 1000, (512,))} for _ in range(64)]
Trainer(model=model, args=arguments, train_dataset=data).train()
