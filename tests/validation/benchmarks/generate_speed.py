"""Generation next to transformers on one process: ``make bench``.

Tokens per second of the same prompts and a model of 3 million parameters, without the time to start and to
load, on all cores of this machine. Programs take turns, and the fastest run of each counts.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.tiny import tiny_llama, tiny_tokenizer
from tests.validation.benchmarks.cost import cost_of

RUNS = 3
NUM_PROMPTS = 64
BATCH_SIZE = 8
NEW_TOKENS = 64
SIZES = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6}
PLAIN = f"""
import json, sys, time
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("model", padding_side="left")
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32).eval()
prompts = [json.loads(line)["prompt"] for line in open("prompts.jsonl")]
begun, made = time.perf_counter(), 0
for start in range(0, len(prompts), {BATCH_SIZE}):
    batch = tokenizer(prompts[start : start + {BATCH_SIZE}], return_tensors="pt", padding=True)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False,
                         min_new_tokens={NEW_TOKENS}, max_new_tokens={NEW_TOKENS})
    made += out[:, ids.shape[1] :].numel()
print(f"{{made / (time.perf_counter() - begun):.1f}} tokens/s")
"""


def main() -> None:
    generate = [
        *(str(Path(sys.executable).with_name("zerokit")), "generate", "--model", "model", "--force"),
        *("--prompts", "prompts.jsonl", "-o", "out.jsonl", "--batch-size", f"{BATCH_SIZE}"),
        *("--do_sample", "false", "--min_new_tokens", f"{NEW_TOKENS}", "--max_new_tokens", f"{NEW_TOKENS}"),
    ]
    commands = {
        "transformers, one process": [sys.executable, "-c", PLAIN],
        "zerokit generate, 1 rank": generate,
        "zerokit generate, 2 ranks": [*generate, "--num-gpus", "2"],
        "zerokit generate, 2 ranks, sharded": [*generate, "--num-gpus", "2", "--mode", "sharded"],
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "model").mkdir()
        tiny_tokenizer(place / "model")
        tiny_llama(place / "model", num_key_value_heads=6, max_position_embeddings=1024, **SIZES)
        lines = [json.dumps({"prompt": f"count to {number} and then"}) for number in range(NUM_PROMPTS)]
        (place / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
        rates: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(RUNS):
            for name, command in commands.items():
                printed = cost_of(command, cwd=place, env={**os.environ, "DS_ACCELERATOR": "cpu"}).printed
                found = re.findall(r"([\d,.]+) tokens/s", printed)
                rates[name].append(float(found[-1].replace(",", "")))
    base = max(rates["transformers, one process"])
    for name, found in rates.items():
        print(f"{name:36} {max(found):8.1f} tokens/s   {max(found) / base:.2f} x transformers")


if __name__ == "__main__":
    main()
