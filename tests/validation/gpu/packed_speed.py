"""Packed training in bf16 on one GPU, compared with transformers.

``python -m tests.validation.gpu.packed_speed``

A model of half a billion parameters, the same texts, micro batch, length and ds_config: ``zerokit train`` by
its defaults, which packs whole documents and keeps them apart, and transformers' Trainer on joined and cut
texts, as its example ``run_clm.py`` has them. They take turns. Told are tokens (without padding) per second
after the first steps, MFU by the products with parameters, and the peak of memory; all goes into
tests/validation/results/gpu_packed.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.tiny import REPOSITORY, launch, tiny_tokenizer
from tests.validation.gpu.compare_with_gpu import versions
from tests.validation.gpu.train_once import SHAPES

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "gpu_packed.json"
WAYS = ("zerokit", "joined")
MEDIAN, SIGMA = 400, 1.0
"""Of the lengths in tokens, which are log-normal, as those of chats are, and cut to the sequence."""
DS_CONFIG: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}


class Size(NamedTuple):
    """Of a comparison."""

    batch: int
    seq_len: int
    warm: int
    """Steps that do not count."""
    steps: int
    """All of them."""
    shape: tuple[str, dict[str, Any]]


FULL = Size(batch=4, seq_len=2048, warm=10, steps=40, shape=SHAPES["qwen2.5-0.5b"])


def make(folder: Path, size: Size) -> None:
    """The model with random weights, its tokenizer, and more texts than the steps take."""
    import torch
    import transformers

    tiny_tokenizer(folder / "model")
    name, shape = size.shape
    kind = getattr(transformers, name)
    config = kind.config_class(
        **shape, max_position_embeddings=size.seq_len, bos_token_id=None, eos_token_id=0, pad_token_id=1
    )
    torch.manual_seed(0)
    kind(config).to(torch.bfloat16).save_pretrained(folder / "model")
    chance = random.Random(0)
    needed = int(size.batch * size.seq_len * size.steps * 1.5)
    lines = []
    while needed > 0:
        length = min(max(8, round(math.exp(chance.gauss(math.log(MEDIAN), SIGMA)))), size.seq_len - 1)
        lines.append(json.dumps({"text": "".join(chance.choice("0123456789") for _ in range(length))}))
        needed -= length
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")


def training(size: Size) -> dict[str, Any]:
    """Arguments of both Trainers."""
    return {
        "max_steps": size.steps,
        "per_device_train_batch_size": size.batch,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-5,
        "bf16": True,
        "save_strategy": "no",
        "report_to": "none",
        "seed": 0,
    }


def on_rank(folder: Path, way: str, output: Path, size: Size) -> None:
    """All steps of one way; writes what they took."""
    from deepspeed.accelerator import get_accelerator
    from transformers import TrainerCallback
    from transformers import trainer as module

    from zerokit.training.throughput import operations_per_token, peak_flops

    found: dict[str, Any] = {}

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, args: Any, state: Any, *_: Any, model: Any, **__: Any) -> None:
            if state.global_step not in (size.warm, size.steps):
                return
            get_accelerator().synchronize()
            now = time.perf_counter(), int(state.num_input_tokens_seen)
            if state.global_step == size.warm:
                self.begun = now
                return
            seconds = now[0] - self.begun[0]
            found["tokens_per_second"] = rate = (now[1] - self.begun[1]) / seconds
            found["step_seconds"] = seconds / (size.steps - size.warm)
            found["device"] = card = get_accelerator().device_name()
            if card == "cuda":
                import torch

                found["device"] = card = torch.cuda.get_device_name()
                found["peak_bytes"] = torch.cuda.max_memory_allocated()
            flops, most = operations_per_token(model), peak_flops(card, "bf16", None)
            found["mfu"] = rate * flops / most if flops and most else None

    module.DEFAULT_CALLBACKS.append(Clock)
    {"zerokit": _zerokit, "joined": _joined}[way](folder, output, size)
    (output / "found.json").write_text(json.dumps(found))


def _zerokit(folder: Path, output: Path, size: Size) -> None:
    from zerokit.distributed.extensions import choose_extensions_folder
    from zerokit.distributed.group import RankGroup
    from zerokit.distributed.ranks import read_ranks
    from zerokit.training.main import train

    choose_extensions_folder()
    recipe = {
        "model": str(folder / "model"),
        "data": {"train": str(folder / "data.jsonl"), "eval_fraction": 0},
        "task": {"seq_len": size.seq_len},
        "precision": "bf16",
        "training": {**training(size), "output_dir": str(output / "out")},
        "deepspeed": DS_CONFIG,
    }
    del recipe["training"]["bf16"]
    (output / "recipe.yaml").write_text(json.dumps(recipe))
    train(RankGroup(read_ranks()), output / "recipe.yaml", ())


def _joined(folder: Path, output: Path, size: Size) -> None:
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, default_data_collator

    args = TrainingArguments(
        str(output / "out"),
        **training(size),
        deepspeed={**DS_CONFIG, "train_micro_batch_size_per_gpu": "auto"},
        include_num_input_tokens_seen="all",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    def joined(texts: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        ids = [token for text in texts["text"] for token in (*tokenizer(text)["input_ids"], 0)]
        ends = range(size.seq_len, len(ids) + 1, size.seq_len)
        rows = [ids[end - size.seq_len : end] for end in ends]
        return {"input_ids": rows, "labels": rows}

    data = load_dataset("json", data_files=str(folder / "data.jsonl"), split="train")
    data = data.map(joined, batched=True, remove_columns=data.column_names)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    Trainer(model, args, train_dataset=data, data_collator=default_data_collator).train()


def run(size: Size, rounds: int) -> dict[str, Any]:
    """Both ways in turn.

    Raises:
        RuntimeError: one failed; with the end of what it printed.
    """
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make(folder, size)
        for number in range(rounds):
            for way in WAYS if number % 2 else reversed(WAYS):
                output = folder / f"{way}-{number}"
                output.mkdir()
                words = [Path(__file__), "--on-rank", json.dumps(size), way, folder, output]
                ended = launch(words, ranks=1, launcher="torchrun", env={"PYTHONPATH": str(REPOSITORY)})
                if ended.returncode:
                    raise RuntimeError(f"{way}:\n{ended.stdout[-2000:]}\n{ended.stderr[-6000:]}")
                found[way].append(json.loads((output / "found.json").read_text()))
    medians = {way: statistics.median(one["tokens_per_second"] for one in found[way]) for way in WAYS}
    return {
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        **dict(zip(("micro_batch_size", "seq_len", "warm", "steps"), size, strict=False)),
        "ds_config": DS_CONFIG,
        "times_as_many_tokens_per_second": round(medians["zerokit"] / medians["joined"], 3),
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="NUMBER", help="of each way")
    parser.add_argument(
        "--output", type=Path, default=WRITTEN, help="the file; tests/validation/results/gpu_packed.json"
    )
    parser.add_argument("--on-rank", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        size, way, folder, output = args.on_rank
        on_rank(Path(folder), way, Path(output), Size(*json.loads(size)))
        return
    try:
        result = run(FULL, args.rounds)
    except RuntimeError as error:
        sys.exit(str(error))
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
