"""Each task x ZeRO stage x {full, LoRA}, on two CPU ranks: ``python -m tests.training.task_table``.

A cell passes if the run beats the untrained model on held-out data by the task's margin, and if what it saved
gives, in plain transformers and peft, the held-out loss that the run measured at its end.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

OFFLOADED = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
STAGES: dict[str, dict[str, Any]] = {
    **{str(stage): {"stage": stage} for stage in range(4)},
    "3, offloaded": OFFLOADED,
}
RECORDED = REPOSITORY / "docs" / "measured" / "tasks.json"

Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A task that a tiny model can learn."""

    task: dict[str, Any]
    """The recipe's section."""
    model: Callable[[Path], None]
    """Makes the model to start from."""
    examples: Callable[[random.Random], Row]
    metric: str
    margin: float
    """By which `metric` must be better after training; for a loss, the share that must be gone."""
    steps: int = 40
    learning_rate: float = 5e-3
    targets: tuple[str, ...] = ("query", "value")
    """Modules that LoRA adapts."""


def bert(folder: Path) -> None:
    """A tiny BERT with the head that it was pre-trained with, and its tokenizer, which has a mask."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = tiny_tokenizer(folder)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = BertConfig(
        vocab_size=len(tokenizer), num_attention_heads=4, max_position_embeddings=64, pad_token_id=1, **sizes
    )
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)


def t5(folder: Path) -> None:
    """A tiny T5 and its tokenizer."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    tiny_tokenizer(folder)
    sizes: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    tokens: dict[str, Any] = {"decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 0}
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(vocab_size=320, **sizes, **tokens)).save_pretrained(folder)


def llama(folder: Path) -> None:
    """A tiny Llama, with dropout, and its tokenizer."""
    tiny_tokenizer(folder)
    tiny_llama(folder, initializer_range=0.05, attention_dropout=0.1)


_NOUNS = ["cat", "dog", "house", "river", "stone", "bird"]
_GOOD, _BAD = ["fine", "nice", "warm"], ["bad", "cold", "sad"]


def _tone(chance: random.Random) -> Row:
    label = chance.choice(["good", "bad"])
    words = _GOOD if label == "good" else _BAD
    return {"text": f"the {chance.choice(_NOUNS)} is {chance.choice(words)}", "label": label}


def _counting(chance: random.Random) -> Row:
    start = chance.randrange(8)
    return {"prompt": f"{start} ", "completion": " ".join(str((start + step) % 8) for step in range(1, 6))}


_NAMES = ["Ada", "Bob", "Eve", "Kim", "Max"]


def _names(chance: random.Random) -> Row:
    person, place = chance.choice(_NAMES), chance.choice(["Rome", "Oslo", "Bonn", "Lima"])
    words = [(person, "B-PER"), ("Smith", "I-PER"), ("is", "O"), ("in", "O"), (place, "B-LOC")]
    if chance.random() < 0.5:
        del words[1]
    return {"tokens": [word for word, _ in words], "tags": [tag for _, tag in words]}


def _sentence(chance: random.Random) -> Row:
    return {"text": _tone(chance)["text"]}


def _reversing(chance: random.Random) -> Row:
    word = chance.choice(_NOUNS)
    return {"prompt": f"the {word}", "completion": f"{word} {word}"}


def _preference(chance: random.Random) -> Row:
    prompt = f"the {chance.choice(_NOUNS)} is "
    return {"prompt": prompt, "chosen": chance.choice(_GOOD), "rejected": chance.choice(_BAD)}


TRIALS = {
    "causal_lm": Trial(
        {},
        llama,
        _counting,
        "loss",
        0.5,
        steps=60,
        targets=("q_proj", "v_proj", "up_proj", "down_proj"),
        learning_rate=1e-2,
    ),
    "sequence_classification": Trial({}, bert, _tone, "accuracy", 0.3),
    "token_classification": Trial({}, bert, _names, "f1", 0.5, steps=60),
    "masked_lm": Trial(
        {"whole_words": True, "packing": False},
        bert,
        _sentence,
        "loss",
        0.3,
        steps=60,
        learning_rate=1e-2,
        targets=("query", "value", "dense"),
    ),
    "seq2seq": Trial({"target_len": 16}, t5, _reversing, "loss", 0.5, targets=("q", "v"), learning_rate=1e-2),
    "dpo": Trial(
        {}, llama, _preference, "reward_accuracy", 0.9, targets=("q_proj", "v_proj"), learning_rate=2e-3
    ),
}


def write(trial: Trial, task: str, folder: Path) -> None:
    """The model and the data of a trial."""
    folder.mkdir(parents=True, exist_ok=True)
    trial.model(folder / "model")
    chance = random.Random(0)
    for name, count in (("train", 160), ("eval", 40)):
        lines = [json.dumps(trial.examples(chance)) for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def run(trial: Trial, task: str, start: Path, out: Path, zero: dict[str, Any], *, lora: bool) -> Row:
    """Train one cell on two ranks and return its report."""
    recipe = {
        "model": str(start / "model"),
        "data": {"train": str(start / "train.jsonl"), "eval": str(start / "eval.jsonl")},
        "task": {"type": task, "seq_len": 64, **trial.task},
        "training": {
            "output_dir": str(out),
            "max_steps": trial.steps,
            "per_device_train_batch_size": 4,
            "learning_rate": trial.learning_rate * (2 if lora else 1),
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 5,
            "save_strategy": "no",
            "logging_steps": 1,
        },
        "deepspeed": {"zero_optimization": zero},
    }
    if lora:
        recipe["peft"] = {"type": "lora", "r": 8, "lora_alpha": 16, "target_modules": list(trial.targets)}
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(recipe))
    result = launch(["launch/train.py", "--recipe", file], ranks=2, launcher="none")
    if result.returncode:
        raise RuntimeError(f"{task} with {zero}, LoRA {lora}: {result.stderr[-3000:]}")
    report: Row = json.loads((out / "run.json").read_text())
    return report


def reloaded_loss(task: str, start: Path, out: Path, section: dict[str, Any], *, lora: bool) -> float:
    """The held-out loss of what was saved, by the plain libraries on one process."""
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoTokenizer

    from zerokit.recipe.model import Columns, DataSection, TaskSection
    from zerokit.training.examples import tokenize
    from zerokit.training.shapes import detect_format
    from zerokit.training.tasks import task_of

    tokenizer = AutoTokenizer.from_pretrained(out)
    made = task_of(TaskSection(type=task, seq_len=64, **section))  # type: ignore[arg-type]
    examples = Dataset.from_json(str(start / "eval.jsonl"), cache_dir=str(out / "cache"))
    trained = Dataset.from_json(str(start / "train.jsonl"), cache_dir=str(out / "cache"))
    made = made.with_labels_of(trained, Columns(), (), "data.train")
    if lora:
        base = start / "model"
        plain = made.model.auto.from_pretrained(base, dtype=torch.float32, **made.config_keys())
        model = PeftModel.from_pretrained(plain, out).eval()
    else:
        model, report = made.model.auto.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
        if report["missing_keys"]:
            raise RuntimeError(f"{out} lacks {report['missing_keys']}")
        model = model.eval()
    format_ = detect_format(examples.column_names, DataSection(train="x"), made.formats, where="w")
    encoder = made.encoder(tokenizer, format_, Columns())
    encoded = tokenize(examples, encoder, seq_len=64, where="w").dataset
    collate = made.collator(tokenizer, model)
    untrained: Any = model.disable_adapter if lora else nullcontext
    reference = (
        model if lora else made.model.auto.from_pretrained(start / "model", dtype=torch.float32).eval()
    )
    total, count = 0.0, 0
    with torch.no_grad():
        for example in made.with_fixed_targets(encoded, tokenizer):
            batch = dict(collate([example]))
            if made.needs_reference:
                with untrained():
                    batch["reference"] = made.log_probabilities(reference, batch)
            total += float(made.loss(model, batch)[0])
            count += made.num_targets(batch)
    return total / count


def cells(tasks: list[str], stages: list[str]) -> Iterator[Row]:
    """All cells of the tasks and stages, each with what it showed."""
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            write(TRIALS[task], task, Path(folder, task))
        for stage, task, lora in product(stages, tasks, (False, True)):
            with tempfile.TemporaryDirectory(dir=folder) as out:
                yield cell(task, Path(folder, task), Path(out, "out"), stage, STAGES[stage], lora=lora)


def cell(task: str, start: Path, out: Path, stage: str, zero: dict[str, Any], *, lora: bool) -> Row:
    """Train, reload and judge."""
    trial = TRIALS[task]
    report = run(trial, task, start, out, zero, lora=lora)
    again = reloaded_loss(task, start, out, trial.task, lora=lora)
    before, after = (
        {"loss": report[f"loss_{when}"], **report[f"metrics_{when}"]}[trial.metric]
        for when in ("before", "after")
    )
    better = 1 - after / before if trial.metric == "loss" else after - before
    return {
        "task": task,
        "stage": stage,
        "trained": "LoRA" if lora else "full",
        "metric": trial.metric,
        "margin": trial.margin,
        "before": round(before, 4),
        "after": round(after, 4),
        "loss_after": report["loss_after"],
        "loss_reloaded": again,
        "passes": better >= trial.margin and abs(again - report["loss_after"]) <= 1e-5 * max(1, again),
    }


def main() -> None:
    """Run the cells that are asked for, and put each in its place in the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TRIALS), help="by default all")
    parser.add_argument("--stages", nargs="*", default=list(STAGES), help="by default all")
    asked = parser.parse_args()
    recorded: list[Row] = json.loads(RECORDED.read_text())["cells"] if RECORDED.is_file() else []
    found = {_key(row): row for row in recorded}
    for row in cells(asked.tasks, asked.stages):
        found[_key(row)] = row
        print(json.dumps(row), flush=True)
        in_order = [found[key] for key in product(TRIALS, STAGES, ("full", "LoRA")) if key in found]
        RECORDED.write_text(json.dumps({"cells": in_order}, indent=1) + "\n")


def _key(row: Row) -> tuple[str, str, str]:
    return row["task"], row["stage"], row["trained"]


if __name__ == "__main__":
    main()
