"""An ordinary training script that prints a checksum of everything it computes on the host.

Its data comes from the folder that ``tests.validation.rehearsal.local_inputs`` writes. It shuffles,
tokenises, packs, collates and does statistics before, between and after the building and the stepping of a
model, and prints one line ``checksum NAME VALUE`` for each result. None of these depends on the device, nor
on the number of ranks, so a run for real (``DS_ACCELERATOR=cpu python host_truth.py FOLDER``) and a
rehearsal print the same::

    zerokit rehearse --num-gpus 8 --steps 3 host_truth.py FOLDER
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

BLOCK = 128
VOCABULARY = 1024


def report(name: str, value: Any) -> None:
    """Print the SHA-256 of an array's, a tensor's or a JSON value's bytes, its type and shape included."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        content = f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    else:
        content = json.dumps(value, sort_keys=True).encode()
    print(f"checksum {name} {hashlib.sha256(content).hexdigest()[:16]}", flush=True)


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """Token ids packed into blocks of equal length."""

    def __init__(self, blocks: torch.Tensor) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index].clone()}


def tokenise_and_pack(tokenizer: PreTrainedTokenizerBase, file: Path) -> torch.Tensor:
    """All lines of a text file as one tensor of blocks, (blocks, BLOCK), int64."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    stream: list[int] = []
    for ids in tokenizer(lines)["input_ids"]:
        stream += [*ids, tokenizer.eos_token_id]
    whole = len(stream) // BLOCK
    return torch.tensor(stream[: whole * BLOCK]).view(whole, BLOCK)


def check_shuffles(moment: str, seed: int | None) -> None:
    """Permutations large enough to be taken for weights; without a seed the generators go on."""
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
    order = list(range(100_000))
    random.shuffle(order)
    report(f"{moment}.random.shuffle", order)
    report(f"{moment}.numpy.permutation", np.random.permutation(100_000))
    permutation = torch.randperm(100_000)
    report(f"{moment}.torch.randperm", permutation)
    report(f"{moment}.torch.randperm.sum", int(permutation.sum()))
    generator = torch.Generator().manual_seed(7)
    report(f"{moment}.torch.randint", torch.randint(0, 50_000, (300_000,), generator=generator))


def check_statistics(moment: str) -> None:
    """Float and integer arithmetic over a million values, all of it on the host."""
    generator = torch.Generator().manual_seed(11)
    values = torch.rand(1_000_000, dtype=torch.float64, generator=generator)
    ids = torch.randint(0, 5_000, (1_000_000,), generator=generator)
    report(f"{moment}.mean", values.mean())
    report(f"{moment}.std", values.std())
    report(f"{moment}.sort", torch.sort(values).values)
    report(f"{moment}.argsort", torch.argsort(ids, stable=True))
    report(f"{moment}.cumsum", values.cumsum(0))
    report(f"{moment}.unique", torch.unique(ids, return_counts=True)[1])
    report(f"{moment}.bincount", torch.bincount(ids, minlength=5_000))
    report(f"{moment}.where", torch.where(ids % 3 == 0, values, -values))
    report(f"{moment}.masked", values[ids > 2_500])
    report(f"{moment}.nonzero", (ids == 17).nonzero())
    report(f"{moment}.gather", values[ids].clone().index_add_(0, ids, values))
    report(f"{moment}.topk", torch.topk(values, 100).indices)
    table = values.view(1_000, 1_000)
    report(f"{moment}.matmul", table @ table.t())
    report(f"{moment}.softmax", torch.log_softmax(table.float(), dim=-1).exp().half())
    report(f"{moment}.numpy", np.quantile(values.numpy(), [0.1, 0.5, 0.9]))


def check_regression(moment: str) -> None:
    """Ten steps of a small model that stays on the host: its autograd is nobody's rehearsal."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(20_000, 16, generator=generator)
    weights = torch.zeros(16, 1, requires_grad=True)
    for _ in range(10):
        loss = (inputs @ weights - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        with torch.no_grad():
            weights -= 0.1 * weights.grad
            weights.grad = None
    report(f"{moment}.regression", weights)


def check_files(moment: str, blocks: torch.Tensor) -> None:
    """The script's own data survives torch.save and numpy.save, as caches of tokenised data need it to."""
    stream = io.BytesIO()
    torch.save({"blocks": blocks}, stream)
    stream.seek(0)
    report(f"{moment}.torch.load", torch.load(stream)["blocks"])
    stream = io.BytesIO()
    np.save(stream, blocks.numpy())
    stream.seek(0)
    report(f"{moment}.numpy.load", np.load(stream))


def check_data(moment: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> torch.Tensor:
    blocks = tokenise_and_pack(tokenizer, folder / "data" / "text" / "train.txt")
    report(f"{moment}.packed", blocks)
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(5))
    report(f"{moment}.packed.shuffled", blocks[order])
    loader = DataLoader(Blocks(blocks), batch_size=64, pin_memory=torch.cuda.is_available())
    report(f"{moment}.batches", torch.cat([batch["input_ids"] for batch in loader]))
    return blocks


def check_everything(moment: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> torch.Tensor:
    blocks = check_data(moment, tokenizer, folder)
    check_shuffles(moment, seed=42)
    check_statistics(moment)
    check_regression(moment)
    check_files(moment, blocks)
    return blocks


def build_engine() -> deepspeed.DeepSpeedEngine:
    """A small Llama without dropout under ZeRO-2; each of its matrices is larger than a megabyte."""
    torch.manual_seed(1)
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=2,
            num_attention_heads=8,
            max_position_embeddings=BLOCK,
        )
    )
    # The weights are drawn on the host by the global generator: it must be left where a real run leaves it.
    check_shuffles("model_built", seed=None)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="written by tests.validation.rehearsal.local_inputs")
    parser.add_argument("--local_rank", type=int, default=0)
    options = parser.parse_args()

    # If two threads ask at once for the first exponentials of a process, they are others in the last bit in
    # about one of 200 processes, without any rehearsal: these are asked for by one.
    torch.ones(1).exp()
    tokenizer = AutoTokenizer.from_pretrained(options.folder / "model")
    blocks = check_everything("before", tokenizer, options.folder)

    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29500}.items():
        os.environ.setdefault(name, f"{value}")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    deepspeed.init_distributed()
    engine = build_engine()
    check_everything("initialized", tokenizer, options.folder)

    for step in range(2):
        batch = blocks[2 * step : 2 * step + 2].to(engine.device)
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        report(f"between.{step}.rows", blocks[2 * step : 2 * step + 2])
        check_shuffles(f"between.{step}", seed=None)
        engine.step()
    check_everything("after", tokenizer, options.folder)
    print("steps", engine.global_steps)


if __name__ == "__main__":
    main()
