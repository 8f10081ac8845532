"""Defaults of HF and zerokit on virtual H100s: ``python -m tests.validation.benchmarks.virtual_h100s``.

Llama-3.1-8B, fully fine-tuned in bf16 under ZeRO-3 with checkpointing on eight GPUs, on examples with lengths
spread like those of chats: transformers' Trainer and ``zerokit train``, each with what it does by itself, and
the same ds_config. A step has the same examples either way. Each of the eight ranks is rehearsed by
itself, with its time; a step takes as long as its slowest rank. No GPU is used: memory and seconds
are the rehearsal's (docs/accuracy.md). With ``--write`` the figures go into
results/virtual_h100s.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY, tiny_tokenizer
from zerokit.models import catalogue

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "virtual_h100s.json"
RANKS, BATCH, SEQ_LEN, STEPS = 8, 4, 4096, 5
MEDIAN, SIGMA = 400, 1.0
"""Of the lengths in tokens, which are log-normal, as those of chats are, and cut to `SEQ_LEN`."""
MODEL = "meta-llama/Llama-3.1-8B"
NO_SIZES = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0}
"""Of its config.json, that the catalogue leaves out."""
TOKENS = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1}
"""Of the small tokenizer that it has here."""
DS_CONFIG: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
TRAINING: dict[str, Any] = {
    "max_steps": 100,
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True,
    "bf16": True,
    "learning_rate": 1e-5,
    "train_sampling_strategy": "sequential",
    "save_strategy": "no",
    "report_to": "none",
}
HF = f"""
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

config = {{**{DS_CONFIG!r}, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}}
args = TrainingArguments("out", **{TRAINING!r}, deepspeed=config)
tokenizer = AutoTokenizer.from_pretrained("model")

def encode(example):
    prompt = tokenizer(example["prompt"])["input_ids"]
    answer = tokenizer(example["completion"])["input_ids"] + [tokenizer.eos_token_id]
    whole = (prompt + answer)[:{SEQ_LEN}]
    return {{"input_ids": whole, "labels": ([-100] * len(prompt) + answer)[:{SEQ_LEN}]}}

data = load_dataset("json", data_files="data.jsonl", split="train")
data = data.map(encode, remove_columns=data.column_names)
model = AutoModelForCausalLM.from_pretrained("model")
collator = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8)
Trainer(model, args, train_dataset=data, data_collator=collator).train()
"""


def make(folder: Path) -> list[int]:
    """The model's config, its data, both ways to train; returns the tokens of each example."""
    known = catalogue.find(MODEL)
    assert known is not None
    tiny_tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps({**known.config, **NO_SIZES, **TOKENS}))
    chance = random.Random(0)
    lines, lengths = [], []
    for _ in range(RANKS * BATCH * STEPS * 4):
        length = min(max(8, round(math.exp(chance.gauss(math.log(MEDIAN), SIGMA)))), SEQ_LEN - 1)
        letters = "".join(chance.choice("0123456789") for _ in range(length))  # a token each
        lines.append(json.dumps({"prompt": letters[: length // 4], "completion": letters[length // 4 :]}))
        lengths.append(length + 1)
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "hf.py").write_text(HF)
    recipe = {
        "model": "model",
        "data": {"train": "data.jsonl", "eval_fraction": 0},
        "task": {"seq_len": SEQ_LEN},
        "training": {**TRAINING, "output_dir": "out"},
        "deepspeed": DS_CONFIG,
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return lengths


def figures(reports: list[dict[str, Any]], lengths: list[int]) -> dict[str, Any]:
    """Of the rehearsals of all ranks, but for the first step, in which ZeRO-3 does not prefetch."""
    times = [report["time"] for report in reports]
    of_ranks = zip(*([step["seconds"] for step in time["steps"][1:STEPS]] for time in times), strict=True)
    seconds = [max(ranks) for ranks in of_ranks]
    fullest = max((report["device"] for report in reports), key=lambda device: device["peak_bytes"])
    return {
        "step_seconds": [round(one, 3) for one in seconds],
        "tokens_per_second": round(sum(lengths[RANKS * BATCH : RANKS * BATCH * STEPS]) / sum(seconds)),
        "low": round(min(time["low_seconds"] / time["step_seconds"] for time in times), 2),
        "high": round(max(time["high_seconds"] / time["step_seconds"] for time in times), 2),
        "peak_gib": round(fullest["peak_bytes"] / 2**30, 2),
        "peak_phase": fullest["peak_phase"],
        "reserved_peak_gib": round(max(one["device"]["reserved_peak_bytes"] for one in reports) / 2**30, 2),
    }


def _report(script: list[Any], folder: Path, rank: int) -> dict[str, Any]:
    words = ["--time", "--format", "json", "--num-gpus", RANKS, "--gpu", "H100", "--rank", rank]
    done = rehearse(*words, "--steps", STEPS, *script, cwd=folder)
    if done.code not in (0, 1):
        sys.exit(f"exit code {done.code}\n{done.err[-4000:]}")
    return done.report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    ways = {"hf": ["hf.py"], "zerokit": [REPOSITORY / "launch" / "train.py", "--recipe", "recipe.yaml"]}
    result: dict[str, Any] = {
        "model": "Llama-3.1-8B",
        "gpus": f"{RANKS} x H100",
        "zero_stage": 3,
        "micro_batch_size": BATCH,
        "seq_len": SEQ_LEN,
        "median_tokens": MEDIAN,
        "sigma": SIGMA,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lengths = make(folder)
        for way, script in ways.items():
            with ThreadPoolExecutor(2) as pool:
                reports = list(pool.map(partial(_report, script, folder), range(RANKS)))
            result[way] = figures(reports, lengths)
            print(json.dumps({way: result[way]}), flush=True)
    result["times_as_many_tokens_per_second"] = round(
        result["zerokit"]["tokens_per_second"] / result["hf"]["tokens_per_second"], 2
    )
    result["peak_share"] = round(result["zerokit"]["peak_gib"] / result["hf"]["peak_gib"], 2)
    print(json.dumps(result, indent=2))
    if options.write:
        WRITTEN.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
