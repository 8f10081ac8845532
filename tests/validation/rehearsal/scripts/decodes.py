"""Has a model of transformers write tokens, as `generate` does, and prints the seconds of one.

``decodes.py CONFIG.json SEQUENCES``: a config.json, with eager attention and half precision.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FEWER, MORE = 4, 12


def seconds(model: Any, sequences: int, tokens: int) -> float:
    """Of so many tokens after the first, in each sequence."""
    prompt = torch.ones((sequences, 1), dtype=torch.long, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        do_sample=False,
    )
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    kinds = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    config = AutoConfig.for_model(kinds.pop("model_type"), **kinds)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16, attn_implementation="eager")
    model.eval()
    seconds(model, int(sys.argv[2]), FEWER)
    fewer, more = (seconds(model, int(sys.argv[2]), tokens) for tokens in (FEWER, MORE))
    print("seconds of a token:", (more - fewer) / (MORE - FEWER))


if __name__ == "__main__":
    main()
