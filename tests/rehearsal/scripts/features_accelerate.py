"""A script that knows accelerate alone: Accelerator and DeepSpeedPlugin, and the loop of its docs."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.tracking import GeneralTracker
from small_llama import small_llama
from transformers import LlamaForCausalLM, get_linear_schedule_with_warmup


class Tracker(GeneralTracker):
    name, requires_logging_directory, tracker = "own", False, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=1)
    args = parser.parse_args()
    plugin = DeepSpeedPlugin(
        zero_stage=args.stage, gradient_accumulation_steps=args.accumulation, gradient_clipping=1.0
    )
    accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=plugin, log_with=Tracker())
    accelerator.init_trackers("run")
    accelerator.print("trackers", len(accelerator.log_with), "in use", len(accelerator.trackers))
    model = LlamaForCausalLM(small_llama())
    rows = [{"input_ids": torch.arange(512) % 32000} for _ in range(64)]
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 10)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch, labels=batch["input_ids"]).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.log({"loss": loss.item()})
    accelerator.print("batches", len(loader), "loss", accelerator.gather(loss.detach()).mean().item())


if __name__ == "__main__":
    main()
