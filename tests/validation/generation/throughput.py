"""Tokens per second of 500 prompts with a realistic spread of lengths.

Run ``python -m tests.validation.generation.throughput [SIZE ...]``. It compares zerokit's decoder with a loop that
calls transformers' ``generate`` with one batch after the other, in one process on one thread. The model counts down
from the last token of the prompt to the end token, so both make the same tokens. Lengths are log-normal: the
median completion has 25 tokens, the longest 128. Rates are per second of CPU.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from zerokit.generation.decoding import Decoder, Decoding, pad
from zerokit.generation.requests import OwnRequests, Request

RECORD = Path(__file__).parents[1] / "results" / "generation_throughput.json"
NUM_PROMPTS = 500
LONGEST = 128
END = 2
MODELS = {
    "0.2M": {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6},
    "3M": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6},
    "20M": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 10, "num_attention_heads": 6},
}


class Countdown(LlamaForCausalLM):  # type: ignore[misc]  # transformers is not followed
    """A Llama in which token N is followed by token N - 1."""

    @wraps(LlamaForCausalLM.forward)  # its signature says that the model takes positions
    def forward(self, input_ids: torch.Tensor, **inputs: Any) -> Any:
        """As a Llama, with the successor of the last token in front."""
        output = super().forward(input_ids, **inputs)
        output.logits[:, -1].scatter_(1, (input_ids[:, -1:] - 1).clamp(min=END), 1e4)
        return output


def draw_prompts(chance: random.Random) -> list[list[int]]:
    """Prompts whose last token is the length of their completion plus 1."""
    prompts = []
    for _ in range(NUM_PROMPTS):
        length = min(200, 1 + round(chance.lognormvariate(3, 0.9)))
        completion = min(LONGEST, 1 + round(chance.lognormvariate(3.2, 1.0)))
        prompts.append([*chance.choices(range(3, 300), k=length), completion + END])
    return prompts


def fixed_batches(model: Any, prompts: list[list[int]], config: GenerationConfig, size: int) -> int:
    """Tokens that `generate` makes, batch by batch."""
    made = 0
    for start in range(0, len(prompts), size):
        ids, mask = pad(prompts[start : start + size], 0, on_left=True)
        rows = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, ids.shape[1] :]
        made += int((rows != 0).sum())
    return made


def zerokit(model: Any, prompts: list[list[int]], config: GenerationConfig, **sizes: int) -> int:
    """Tokens that zerokit's decoder makes."""
    made: list[int] = []
    queue = OwnRequests([Request(index, prompt) for index, prompt in enumerate(prompts)])
    decoder = Decoder(model, None, Decoding(config, **sizes), device=model.device)  # type: ignore[arg-type]
    decoder.run(queue, lambda decoded: made.append(len(decoded.completions[0])))
    return sum(made)


def main(chosen: list[str]) -> None:
    """Measure models, print and write the record."""
    torch.set_num_threads(1)
    config = GenerationConfig(max_new_tokens=LONGEST, eos_token_id=END, pad_token_id=0, do_sample=False)
    known = json.loads(RECORD.read_text(encoding="utf-8"))["tokens_per_cpu_second"] if RECORD.is_file() else {}
    record: dict[str, Any] = {"prompts": NUM_PROMPTS, "threads": 1}
    record["tokens_per_cpu_second"] = {name: known[name] for name in MODELS if name in known}
    for name in chosen or MODELS:
        sizes = MODELS[name]
        shape = LlamaConfig(vocab_size=320, num_key_value_heads=6, max_position_embeddings=1024, **sizes)
        model = Countdown(shape).eval()
        model.generation_config = GenerationConfig()
        prompts = draw_prompts(random.Random(0))
        by_length = sorted(prompts, key=len, reverse=True)
        programs: dict[str, Callable[[], int]] = {
            "zerokit, 16 rows": partial(zerokit, model, by_length, config, batch_size=16),
            "generate, batches of 16 by prompt length": partial(fixed_batches, model, by_length, config, 16),
            "generate, batches of 16": partial(fixed_batches, model, prompts, config, 16),
            "zerokit, 4096 tokens": partial(zerokit, model, by_length, config, max_batch_tokens=4096),
        }
        rates = record["tokens_per_cpu_second"][name] = {}
        for program, run in programs.items():
            begun = time.process_time()
            made = run()
            rates[program] = round(made / (time.process_time() - begun), 1)
            print(f"{name:4} {program:42} {made} tokens, {rates[program]:8.1f} tokens/s", flush=True)
            RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
