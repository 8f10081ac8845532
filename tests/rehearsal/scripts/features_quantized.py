"""bitsandbytes: 4-bit and 8-bit layers, LoRA, 8-bit and paged optimizers; prints the bytes of each."""

from __future__ import annotations

from pathlib import Path

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from small_llama import small_llama
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

SIZE = 2048


def say(what: str, before: int) -> None:
    print(what, torch.cuda.memory_allocated() - before)


def four_bits(folder: Path) -> None:
    small_llama(architectures=["LlamaForCausalLM"], dtype="bfloat16").save_pretrained(folder)
    quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantized, dtype=torch.bfloat16, device_map={"": 0}
    )
    say("4bit", 0)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]))
    ids = torch.zeros(2, 512, dtype=torch.long, device="cuda")
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    print("gradients", len(gradients))


def optimizer(kind: type) -> None:
    layer = torch.nn.Linear(SIZE, SIZE, bias=False, device="cuda")
    layer(torch.zeros(1, SIZE, device="cuda")).sum().backward()
    optimizer = kind(layer.parameters(), lr=1e-3)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    say(kind.__name__, before)


def eight_bits() -> None:
    before = torch.cuda.memory_allocated()
    layer = bnb.nn.Linear8bitLt(SIZE, SIZE, bias=False, has_fp16_weights=False, threshold=6.0)
    layer = layer.half().cuda()
    print("8bit", layer(torch.zeros(4, SIZE, dtype=torch.float16, device="cuda")).shape[1])
    say("weight", before)


four_bits(Path("model"))
optimizer(bnb.optim.AdamW8bit)
optimizer(bnb.optim.PagedAdamW8bit)
eight_bits()
