"""Tokens per second of `zerokit.generate` with gathered weights beside `model.generate(synced_gpus=True)`.

``python -m tests.validation.generation.gathered_speed`` starts two CPU ranks with a ZeRO-3 engine, generates the same
greedy completions both ways, alternately, and writes ``tests/validation/results/gathered_speed.json``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

SIZE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "initializer_range": 0.05}
"""About 3 million parameters, as the quickstart's model."""
NUM_PROMPTS, NEW_TOKENS, BATCH, REPEATS = 8, 32, 4, 5
RESULT = REPOSITORY / "tests/validation/results/gathered_speed.json"


def measure(folder: Path) -> dict[str, Any]:
    """Seconds of both ways on this rank, and whether their tokens are the same."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import zerokit

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    prompts = [f"The {number} for statement is" for number in range(NUM_PROMPTS)]
    options = {"max_new_tokens": NEW_TOKENS, "suppress_tokens": [tokenizer.eos_token_id]}

    def synced() -> list[str]:
        texts: list[str] = []
        engine.eval()
        own = prompts[dist.get_rank() :: 2]
        for start in range(0, len(own), BATCH):
            batch = tokenizer(own[start : start + BATCH], return_tensors="pt", padding=True)
            with torch.no_grad():
                made = engine.module.generate(**batch, synced_gpus=True, do_sample=False, **options)
            texts += tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts

    def gathered() -> list[str]:
        records = zerokit.generate(
            engine, prompts, tokenizer=tokenizer, mode="gathered", batch_size=BATCH, do_sample=False, **options
        )
        return [record.text for record in records[dist.get_rank() :: 2]]

    seconds: dict[str, list[float]] = {"synced": [], "gathered": []}
    texts = {}
    for number in range(REPEATS + 1):
        for name, way in (("synced", synced), ("gathered", gathered)):
            dist.barrier()
            started = time.perf_counter()
            texts[name] = way()
            dist.barrier()
            if number:  # not the first, which warms up
                seconds[name].append(time.perf_counter() - started)
    return {"seconds": seconds, "same": texts["synced"] == texts["gathered"]}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_tokenizer(folder)
        num_parameters = tiny_llama(folder, **SIZE).num_parameters()
        result = launch([__file__, folder], ranks=2, launcher="none")
        if result.returncode:
            raise SystemExit(f"{result.stdout}\n{result.stderr}"[-6000:])
        ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    both = ranks[0]["seconds"]
    ratios = [slow / fast for slow, fast in zip(both["synced"], both["gathered"], strict=True)]
    tokens = NUM_PROMPTS * NEW_TOKENS
    record = {
        "num_parameters": num_parameters,
        "ranks": 2,
        "prompts": NUM_PROMPTS,
        "new_tokens": NEW_TOKENS,
        "batch_size": BATCH,
        "tokens_per_second": {name: round(tokens / statistics.median(values), 1) for name, values in both.items()},
        "times_as_fast": {"median": round(statistics.median(ratios), 2), "least": round(min(ratios), 2)},
        "same_texts": all(rank["same"] for rank in ranks),
    }
    print(json.dumps(record, indent=2))
    RESULT.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        (Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(measure(Path(sys.argv[1]))))
    else:
        main()
