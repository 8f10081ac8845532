"""Seconds of a pass with offloaded weights, compared with the bound that memory bandwidth sets, on one CPU rank.

``python -m tests.validation.generation.offloaded`` writes ``tests/validation/results/generation_offloaded.json``.

The "device" of a CPU rank is the host, so ZeRO-3 copies nothing, and the bound is the time in which the same threads
read the weights: a matmul of one row with each matrix of the model. The record also has the seconds of a copy of as
many bytes, and a pass of the same model without ZeRO. The measurements take turns, because other programs use the
machine; each figure is the least of all turns.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, tiny_llama, tiny_tokenizer
from zerokit.distributed.ranks import free_port

SIZES: dict[str, dict[str, Any]] = {
    "layers of an 8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2}
    | {"num_attention_heads": 32, "num_key_value_heads": 8},
    "layers of a 0.5B": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
    | {"num_attention_heads": 16, "num_key_value_heads": 16},
}
"""1.7 and 0.4 GB in float32. What DeepSpeed does for each module takes the same time in both."""
PROMPT, NEW_TOKENS, TURNS = 4, 24, int(os.environ.get("TURNS", "5"))
RESULT = REPOSITORY / "tests" / "validation" / "results" / "generation_offloaded.json"


def generator_in(folder: Path, mode: Any) -> Callable[[], None]:
    """What makes :data:`NEW_TOKENS` passes with a model in a mode, the prompt's included."""
    from zerokit.distributed.ranks import Ranks
    from zerokit.generation.decoding import Decoding
    from zerokit.generation.ds_config import plan_engine
    from zerokit.generation.engine import Generator, find_device
    from zerokit.generation.model import read_model
    from zerokit.generation.options import Options
    from zerokit.generation.requests import OwnRequests, Request
    from zerokit.generation.sampling import Sampling, settle_sampling

    files = read_model(folder, Options(model=str(folder), texts=("x",)))
    engine = plan_engine(None, requested_dtype="auto", model=files, device=find_device()).in_mode(mode)
    engine.ds_config["zero_optimization"].get("offload_param", {})["pin_memory"] = False
    generator = Generator(files, engine, Ranks(), trust_remote_code=False)
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
    decoding = Decoding(settle_sampling(Sampling(options, {}), files), batch_size=1)
    return lambda: generator.run(OwnRequests([Request(0, [*range(3, 3 + PROMPT)])]), lambda _: None, decoding)


def least(actions: dict[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    """Least seconds, and CPU seconds, of each action; they take turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for turn in range(TURNS + 1):
        for name, action in actions.items():
            started, cpu = time.perf_counter(), time.process_time()
            action()
            if turn:  # not the first, which warms up
                found[name].append((time.perf_counter() - started, time.process_time() - cpu))
    columns = {name: [min(column) for column in zip(*taken, strict=True)] for name, taken in found.items()}
    return {
        "seconds": {name: seconds for name, (seconds, _) in columns.items()},
        "cpu_seconds": {name: cpu for name, (_, cpu) in columns.items()},
    }


def main() -> None:
    """Measure, print and write the record."""
    os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    from zerokit.distributed.extensions import choose_extensions_folder

    choose_extensions_folder()
    record = {name: measured(size) for name, size in SIZES.items()}
    print(json.dumps(record, indent=1))
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def measured(size: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a copy, of the bound and of passes, for a model of a size."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_tokenizer(folder)
        model = tiny_llama(folder, **size, initializer_range=0.02)
        shapes = [weight.shape for weight in model.parameters() if weight.dim() == 2]
        del model
        replicated, offloaded = (generator_in(folder, mode) for mode in ("replicated", "offloaded"))
        matrices = [torch.ones(shape) for shape in shapes]
        rows = [torch.ones(1, shape[1]) for shape in shapes]
        source = torch.ones(sum(shape.numel() for shape in shapes))
        target = torch.empty_like(source)

        def read() -> None:
            for row, matrix in zip(rows, matrices, strict=True):
                torch.nn.functional.linear(row, matrix)

        with torch.no_grad():
            taken = least(
                {"copy": lambda: target.copy_(source), "read": read, "replicated": replicated, "offloaded": offloaded}
            )
    record: dict[str, Any] = {
        "bytes_of_weights": source.nbytes,
        "threads": torch.get_num_threads(),
        "bound": "a matmul of one row with each weight",
    }
    for kind, seconds in taken.items():
        passes = {mode: seconds[mode] / NEW_TOKENS for mode in ("replicated", "offloaded")}
        bound = seconds["read"]
        record[kind] = {
            **{"copy": round(seconds["copy"], 4), "read": round(seconds["read"], 4), "bound": round(bound, 4)},
            **{f"pass, {mode}": round(each, 4) for mode, each in passes.items()},
            "offloaded_to_bound": round(passes["offloaded"] / bound, 3),
        }
    return record


if __name__ == "__main__":
    main()
