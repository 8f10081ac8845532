"""The ways a script puts a model on its GPU, and a plain torch training step there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from small_llama import small_llama
from transformers import AutoModelForCausalLM


def placed(how: str, folder: Path) -> Any:
    """The model, on cuda:0."""
    if how == "cuda":
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda()
    if how == "to":
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("cuda:0")
    where: Any = "auto" if how == "auto" else {"": 0}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=["cuda", "to", "auto", "first"])
    args = parser.parse_args()
    folder = Path("model")
    small_llama(architectures=["LlamaForCausalLM"], dtype="bfloat16").save_pretrained(folder)
    torch.cuda.reset_peak_memory_stats()
    model = placed(args.how, folder)
    model.train()
    devices = {str(parameter.device) for parameter in model.parameters()}
    print("devices", sorted(devices), "loaded", torch.cuda.memory_allocated(), flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.zeros(2, 512, dtype=torch.long, device="cuda:0")
    for _ in range(2):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("peak", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
