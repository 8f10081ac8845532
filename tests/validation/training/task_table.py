"""Train each task x ZeRO stage x {full, LoRA}: ``python -m tests.validation.training.task_table``.

A cell passes if the run beats the model that it started from on held-out data by the task's margin, and if
what it saved gives, in plain transformers and peft, the logits of the trained model.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer
from tests.validation.training.train_for_logits import KEPT

OFFLOADS = ("optimizer", "param")
OFFLOADED = {"stage": 3, **{f"offload_{what}": {"device": "cpu"} for what in OFFLOADS}}
ON_NVME = {"stage": 3, **{f"offload_{what}": {"device": "nvme"} for what in OFFLOADS}}
"""In a folder beside the cell's; takes libaio and its headers."""
STAGES: dict[str, dict[str, Any]] = {
    **{str(stage): {"stage": stage} for stage in range(4)},
    "3, offloaded": OFFLOADED,
    "3, on NVMe": ON_NVME,
}
TRAINED = ("full", "LoRA")
MOST_DIFFERENT = 1e-5
"""Logits that are the same: what float32 leaves of another order of sums."""
RECORDED = REPOSITORY / "tests" / "validation" / "results" / "tasks.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "tasks.md"
BEGIN, END = "<!-- tasks -->\n", "<!-- /tasks -->\n"

Row = dict[str, Any]
Key = tuple[str, str, str]
"""Of a cell: its task, its stage, and ``full`` or ``LoRA``."""


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
    known: Callable[[random.Random], Row] | None = None
    """Examples that its model has been trained on before, without which LoRA would adapt random weights."""


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


def _counting(chance: random.Random, by: int = 1) -> Row:
    start = chance.randrange(8)
    numbers = [str((start + by * step) % 8) for step in range(1, 6)]
    return {"prompt": f"{start} ", "completion": " ".join(numbers)}


def _counting_down(chance: random.Random) -> Row:
    return _counting(chance, -1)


_NAMES = ["Ada", "Bob", "Eve", "Kim", "Max"]


def _names(chance: random.Random) -> Row:
    person, place = chance.choice(_NAMES), chance.choice(["Rome", "Oslo", "Bonn", "Lima"])
    words = [(person, "B-PER"), ("Smith", "I-PER"), ("is", "O"), ("in", "O"), (place, "B-LOC")]
    if chance.random() < 0.5:
        del words[1]
    return {"tokens": [word for word, _ in words], "tags": [tag for _, tag in words]}


def _sentence(chance: random.Random) -> Row:
    return {"text": _tone(chance)["text"]}


def _other_order(chance: random.Random) -> Row:
    """The same words: a frozen model cannot learn to say any that it has never met."""
    _, noun, _, how = _sentence(chance)["text"].split()
    return {"text": f"is {how} the {noun}"}


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
        steps=20,
        targets=("q_proj", "v_proj", "up_proj", "down_proj"),
        learning_rate=1e-2,
        known=_counting_down,
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
        learning_rate=2.5e-3,
        targets=("query", "value", "dense"),
        known=_other_order,
    ),
    "seq2seq": Trial({"target_len": 16}, t5, _reversing, "loss", 0.5, targets=("q", "v"), learning_rate=1e-2),
    "dpo": Trial({}, llama, _preference, "reward_accuracy", 0.9, targets=("q_proj", "v_proj"), learning_rate=2e-3),
}


def write(trial: Trial, task: str, folder: Path) -> None:
    """The model and the data of a trial."""
    folder.mkdir(parents=True, exist_ok=True)
    trial.model(folder / "model")
    if trial.known is not None:
        _pretrain(trial, trial.known, task, folder / "model")
    chance = random.Random(0)
    for name, count in (("train", 160), ("eval", 40)):
        lines = [json.dumps(trial.examples(chance)) for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def _pretrain(trial: Trial, known: Callable[[random.Random], Row], task: str, folder: Path) -> None:
    """Train the model in a folder on what it is to know, on this process and in plain torch."""
    import torch
    from transformers import AutoTokenizer

    from zerokit.recipe.model import Columns, DataSection, TaskSection
    from zerokit.training.formats import detect_format
    from zerokit.training.tasks import task_of

    tokenizer = AutoTokenizer.from_pretrained(folder)
    made = task_of(TaskSection(type=task, seq_len=64, **trial.task))  # type: ignore[arg-type]
    model = made.model.auto.from_pretrained(folder)
    chance = random.Random(1)
    format_ = detect_format(list(known(chance)), DataSection(train="x"), made.formats, where="known")
    encoder, collate = made.encoder(tokenizer, format_, Columns()), made.collator(tokenizer, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(0)
    for _ in range(150):
        batch = collate([encoder.sequences(known(chance))[0].features for _ in range(16)])
        (made.loss(model, batch)[0] / made.num_targets(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


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
            "logging_first_step": True,
        },
        "deepspeed": {"zero_optimization": copy.deepcopy(zero)},
    }
    for offload in (recipe["deepspeed"]["zero_optimization"].get(f"offload_{what}", {}) for what in OFFLOADS):
        if offload.get("device") == "nvme":
            (out.parent / "nvme").mkdir(exist_ok=True)
            offload["nvme_path"] = str(out.parent / "nvme")
    if lora:
        recipe["peft"] = {"type": "lora", "r": 8, "lora_alpha": 16, "target_modules": list(trial.targets)}
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(recipe))
    result = launch(["tests/validation/training/train_for_logits.py", "--recipe", file], ranks=2, launcher="none")
    if result.returncode:
        raise RuntimeError(f"{task} with {zero}, LoRA {lora}: {result.stderr[-3000:]}")
    report: Row = json.loads((out / "run.json").read_text())
    return report


def difference(task: str, start: Path, out: Path, *, lora: bool) -> float:
    """The most by which a logit of what was saved, in plain libraries, is another than the run's was."""
    import torch
    from peft import PeftModel

    from zerokit.training.tasks import TASKS

    inputs = torch.load(out / KEPT, weights_only=True)
    expected = inputs.pop("logits")
    kind = TASKS[task].model
    head = {"num_labels": expected.shape[-1]} if kind.new_head else {}
    if lora:
        model = PeftModel.from_pretrained(kind.auto.from_pretrained(start / "model", **head), out)
    else:
        model, report = kind.auto.from_pretrained(out, output_loading_info=True)
        if report["missing_keys"]:
            raise RuntimeError(f"{out} lacks {report['missing_keys']}")
    with torch.no_grad():
        return float((model.eval()(**inputs).logits - expected).abs().max())


def cells(asked: list[Key]) -> Iterator[Row]:
    """The cells that are asked for, each with what it showed."""
    with tempfile.TemporaryDirectory() as folder:
        for task in dict.fromkeys(task for task, _, _ in asked):
            write(TRIALS[task], task, Path(folder, task))
        for task, stage, trained in asked:
            lora = trained == "LoRA"
            with tempfile.TemporaryDirectory(dir=folder) as out:
                yield cell(task, Path(folder, task), Path(out, "out"), stage, STAGES[stage], lora=lora)


def cell(task: str, start: Path, out: Path, stage: str, zero: dict[str, Any], *, lora: bool) -> Row:
    """Train, reload and judge."""
    trial = TRIALS[task]
    report = run(trial, task, start, out, zero, lora=lora)
    different = difference(task, start, out, lora=lora)
    before, after = (
        {"loss": report[f"loss_{when}"], **report[f"metrics_{when}"]}[trial.metric] for when in ("before", "after")
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
        "logits_differ_by": different,
        "passes": better >= trial.margin and different <= MOST_DIFFERENT,
    }


def table(rows: Mapping[Key, Row]) -> str:
    """The record as a Markdown table: the metric before and after, in each stage that has been tried."""
    lines = [
        f"| task | trained | metric, by at least | stage {' | '.join(STAGES)} | logits differ by at most |",
        f"|{'---|' * (len(STAGES) + 4)}",
    ]
    for task, how in product(TRIALS, TRAINED):
        tried = {stage: rows[task, stage, how] for stage in STAGES if (task, stage, how) in rows}
        figures = [_figures(tried[stage]) if stage in tried else "" for stage in STAGES]
        most = max((f"{row['logits_differ_by']:.1e}" for row in tried.values()), key=float, default="")
        trial = TRIALS[task]
        lines.append(" | ".join([f"| `{task}`", how, f"{trial.metric}, {trial.margin}", *figures, f"{most} |"]))
    return "\n".join(lines) + "\n"


def _figures(row: Row) -> str:
    return f"{row['before']:.2f} to {row['after']:.2f}" + ("" if row["passes"] else ", **fails**")


def main() -> None:
    """Run the cells that are asked for, and put each in its place in the record and on its page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TRIALS), help="by default all")
    parser.add_argument("--stages", nargs="*", default=list(STAGES), help="by default all")
    parser.add_argument("--missing", action="store_true", help="leave out cells that the record has")
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # as the ranks: two wait for each other where the machine has other work
    recorded: list[Row] = json.loads(RECORDED.read_text())["cells"] if RECORDED.is_file() else []
    found = {(row["task"], row["stage"], row["trained"]): row for row in recorded}
    keys = [(task, stage, how) for stage, task, how in product(asked.stages, asked.tasks, TRAINED)]
    for row in cells([key for key in keys if not (asked.missing and key in found)]):
        found[row["task"], row["stage"], row["trained"]] = row
        print(json.dumps(row), flush=True)
        in_order = [found[key] for key in product(TRIALS, STAGES, TRAINED) if key in found]
        RECORDED.write_text(json.dumps({"cells": in_order}, indent=1) + "\n")
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(before + BEGIN + table(found) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
