"""Padded batches beside zerokit's: ``python -m tests.validation.benchmarks.packing [--write]``.

The same model, examples, steps and ds_config on two CPU ranks, in turn in one pair of processes:
transformers' Trainer, which pads each batch to its longest, and ``zerokit train`` by its defaults. A step has
the same examples either way, so its loss must be the same; what is compared is the time for the same tokens.
With ``--write`` the figures go into results/packing.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "packing.json"
RANKS, ROUNDS, STEPS, BATCH, SEQ_LEN = 2, 3, 6, 8, 512
MEDIAN, SIGMA = 90, 1.0
"""Of the lengths in tokens, which are log-normal, as those of chats are, and cut to `SEQ_LEN`."""
TOLERANCE = 1e-4
"""Of the loss of a step, in fp32, after up to `STEPS` updates by gradients summed in another order."""

TRAINING: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "seed": 0,
}
DS_CONFIG: dict[str, Any] = {"zero_optimization": {"stage": 2}}


def make(folder: Path) -> None:
    """A model of 3 million parameters, its tokenizer, and as many examples as the steps take."""
    tiny_tokenizer(folder / "model")
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
    tiny_llama(folder / "model", **sizes, max_position_embeddings=SEQ_LEN)
    chance = random.Random(0)
    lines = []
    for _ in range(STEPS * BATCH * RANKS):
        length = max(8, round(math.exp(chance.gauss(math.log(MEDIAN), SIGMA))))
        letters = "".join(chance.choice("0123456789") for _ in range(length))  # a token each
        lines.append(json.dumps({"prompt": letters[: length // 4], "completion": letters[length // 4 :]}))
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")


def on_rank(folder: Path) -> None:
    """All rounds, on one rank; the first writes what it found."""
    import torch
    from transformers import TrainerCallback
    from transformers import trainer as module

    from zerokit.distributed.extensions import choose_extensions_folder
    from zerokit.distributed.group import RankGroup
    from zerokit.distributed.ranks import read_ranks

    found: list[dict[str, Any]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_train_begin(self, *args: Any, **_: Any) -> None:
            torch.distributed.barrier()
            self.begun = time.perf_counter(), time.process_time()

        def on_train_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            torch.distributed.barrier()
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            begun = self.begun
            ended = time.perf_counter(), time.process_time()
            found.append(
                {
                    "seconds": ended[0] - begun[0],
                    "cpu_seconds": ended[1] - begun[1],
                    "tokens": state.num_input_tokens_seen,
                    "losses": losses,
                }
            )

    module.DEFAULT_CALLBACKS.append(Clock)
    os.chdir(folder)
    choose_extensions_folder()
    group = RankGroup(read_ranks())
    for number in range(ROUNDS):
        _zerokit(group, number)
        _padded(number)
    if group.ranks.is_main:
        ways = {"zerokit": found[::2], "padded": found[1::2]}
        report = json.loads((folder / "out-0" / "run.json").read_text())
        Path("found.json").write_text(json.dumps({**ways, "padding": report["padding"]}))


def _zerokit(group: Any, number: int) -> None:
    from zerokit.training.main import train

    recipe = {
        "model": "model",
        "data": {"train": "data.jsonl", "eval_fraction": 0},
        "task": {"seq_len": SEQ_LEN},
        "training": {**TRAINING, "output_dir": f"out-{number}"},
        "deepspeed": DS_CONFIG,
    }
    file = Path("recipe.yaml")
    file.write_text(json.dumps(recipe))
    train(group, file, ())


def _padded(number: int) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

    from zerokit.data.sources import load_examples
    from zerokit.recipe.model import Columns, TaskSection
    from zerokit.training.examples import tokenize
    from zerokit.training.tasks.answers import AnswerEncoder

    args = TrainingArguments(
        f"padded-{number}",
        **TRAINING,
        deepspeed={**DS_CONFIG, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"},
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        include_num_input_tokens_seen="non_padding",
    )
    tokenizer = AutoTokenizer.from_pretrained("model")
    data = load_examples("data.jsonl", where="data")
    encoder = AnswerEncoder(tokenizer, "prompt_completion", Columns(), TaskSection(seq_len=SEQ_LEN))
    model = AutoModelForCausalLM.from_pretrained("model", dtype="float32")
    Trainer(
        model,
        args,
        train_dataset=tokenize(data, encoder, seq_len=SEQ_LEN, where="data").dataset,
        data_collator=DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8),
    ).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--on-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_rank is not None:
        on_rank(options.on_rank)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make(folder)
        words = [Path(__file__), "--on-rank", folder]
        ended = launch(words, ranks=RANKS, launcher="torchrun", env={"PYTHONPATH": str(REPOSITORY)})
        if ended.returncode:
            sys.exit(f"exit code {ended.returncode}\n{ended.stdout[-2000:]}\n{ended.stderr[-6000:]}")
        found = json.loads((folder / "found.json").read_text())
    rounds = list(zip(found["zerokit"], found["padded"], strict=True))
    for ours, theirs in rounds:
        for loss, other in zip(ours["losses"], theirs["losses"], strict=True):
            if abs(loss - other) > TOLERANCE:
                sys.exit(f"the losses are others: {ours['losses']}, padded {theirs['losses']}")
        assert ours["tokens"] == theirs["tokens"]
    speed = {name: [theirs[name] / ours[name] for ours, theirs in rounds] for name in ("seconds", "cpu_seconds")}
    result = {
        "ranks": RANKS,
        "micro_batch_size": BATCH,
        "seq_len": SEQ_LEN,
        "median_tokens": MEDIAN,
        "sigma": SIGMA,
        "steps": STEPS,
        "tokens": rounds[0][0]["tokens"],
        "padding": found["padding"],
        "times_as_many_tokens_per_second": round(statistics.median(speed["seconds"]), 2),
        "of_each_round": [round(one, 2) for one in speed["seconds"]],
        "times_less_cpu": round(statistics.median(speed["cpu_seconds"]), 2),
        "losses": [round(loss, 6) for loss in rounds[0][0]["losses"]],
        "losses_differ_by_at_most": max(
            abs(loss - other)
            for ours, theirs in rounds
            for loss, other in zip(ours["losses"], theirs["losses"], strict=True)
        ),
    }
    print(json.dumps(result, indent=2))
    if options.write:
        WRITTEN.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
