"""Run the experiments: ``python -m tests.validation.benchmarks.experiments [small|full] [NAMES]``.

``small`` trains each variant of a recipe of experiment_recipes/ on two CPU ranks, with a tiny model and
made-up data that it can learn. ``full`` rehearses the recipe itself, with its model's sizes and examples as
long as its data's, on one virtual GPU with its time. Each row goes into results/experiments.json as it is
found, and the tables into the page; ``--missing`` leaves out what is recorded.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rehearsal.commands import rehearse
from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

RECIPES = REPOSITORY / "tests" / "validation" / "benchmarks" / "experiment_recipes"
RECORDED = REPOSITORY / "tests" / "validation" / "results" / "experiments.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "experiments.md"
RANKS, REHEARSED_STEPS = 2, 3

Row = dict[str, Any]
Key = tuple[str, str, str]
"""Of a row: its experiment, its variant, ``small`` or ``full``."""


@dataclass(frozen=True)
class Variant:
    """What one run changes in its recipe, as on the command line."""

    words: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    """More of them at small size."""
    published: str = ""
    """What was published of it, as the table has it."""
    recipe: str | None = None
    """Its own, where a section has other keys; None: that of the experiment."""


@dataclass(frozen=True)
class Experiment:
    """A recipe, its variants, and what stands in for its model and data."""

    variants: dict[str, Variant]
    config: dict[str, Any]
    """The config.json of the recipe's model."""
    tiny: Callable[[Path], None]
    """Makes the model that is trained at small size."""
    example: Callable[[random.Random, int], Row]
    """One of about so many tokens."""
    tokens: tuple[float, float]
    """Median and sigma of the log-normal lengths of the recipe's data."""
    metric: str
    gpu: str
    small: tuple[str, ...] = field(default=())
    """Overrides at small size, of all variants."""


def bloom(folder: Path) -> None:
    """A tiny BLOOM."""
    from transformers import BloomConfig, BloomForCausalLM

    tiny_tokenizer(folder)
    config = BloomConfig(vocab_size=320, hidden_size=64, n_layer=2, n_head=4, pad_token_id=1, eos_token_id=0)
    _seeded(lambda: BloomForCausalLM(config)).save_pretrained(folder)


def distilbert(folder: Path) -> None:
    """A tiny DistilBERT."""
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    tiny_tokenizer(folder)
    sizes: dict[str, Any] = {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4}
    config = DistilBertConfig(vocab_size=320, max_position_embeddings=64, pad_token_id=1, **sizes)
    _seeded(lambda: DistilBertForMaskedLM(config)).save_pretrained(folder)


def llama(folder: Path) -> None:
    """A tiny Llama."""
    tiny_tokenizer(folder)
    tiny_llama(folder, initializer_range=0.05)


def _seeded(make: Callable[[], Any]) -> Any:
    import torch

    torch.manual_seed(0)
    return make()


_NOUNS = ["cat", "dog", "house", "river", "stone", "bird"]
_TONES = {"good": ["fine", "nice", "warm"], "bad": ["bad", "cold", "sad"]}


def review(chance: random.Random, tokens: int) -> Row:
    """A sentence that says how it is, and digits, of which each is a token."""
    label = chance.choice(sorted(_TONES))
    text = f"the {chance.choice(_NOUNS)} is {chance.choice(_TONES[label])} "
    return {"text": text + _digits(chance, tokens - 20), "label": label}


def question(chance: random.Random, tokens: int) -> Row:
    """What comes after a number, with digits before it."""
    number = chance.randrange(8)
    answer = " ".join(str((number + step) % 8) for step in range(1, 6))
    return {"prompt": f"{_digits(chance, tokens - 24)} After {number}: ", "completion": answer}


def _digits(chance: random.Random, count: int) -> str:
    return "".join(chance.choice("0123456789") for _ in range(count))


_BLOOM_560M = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": 250880} | {
    "hidden_size": 1024,
    "n_layer": 24,
    "n_head": 16,
    "pad_token_id": 3,
}
_DISTILBERT = {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], "vocab_size": 30522} | {
    "dim": 768,
    "hidden_dim": 3072,
    "n_layers": 6,
    "n_heads": 12,
    "max_position_embeddings": 512,
}
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256} | {
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
    "eos_token_id": 0,
}
_LLAMA_1B = _LLAMA | {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "head_dim": 64}
_LLAMA_3B = _LLAMA | {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128}

_WHOLE = ("--training.per_device_train_batch_size", "16", "--training.gradient_accumulation_steps", "1")
_HALF_STEPS = ("--training.gradient_accumulation_steps", "8")
_HALF_BATCH = ("--training.per_device_train_batch_size", "8")
_COMPILED = ("--training.torch_compile", "true")
_NVME = "device: nvme, nvme_path: nvme"
_OFFLOADED = "{{zero_optimization: {{stage: 3, offload_optimizer: {{{0}}}, offload_param: {{{0}}}}}}}"
_STEPS = ("--training.max_steps", "60", "--training.lr_scheduler_type", "constant")


def _precise(precision: str, matmul: str = "highest") -> tuple[str, ...]:
    return ("--precision", precision, "--matmul_precision", matmul)


EXPERIMENTS = {
    "classification": Experiment(
        {
            "batch 1, accumulation 16": Variant((), _HALF_STEPS, "8 steps: 51.37 min, 87.37 %"),
            "batch 16": Variant(_WHOLE, _HALF_BATCH),
            "batch 1, accumulation 16, compiled": Variant(_COMPILED, _HALF_STEPS, "8 steps: 43.33 min, 87.91 %"),
            "batch 16, compiled": Variant((*_WHOLE, *_COMPILED), _HALF_BATCH),
        },
        _BLOOM_560M,
        bloom,
        review,
        (230, 0.65),
        "accuracy",
        "A100-40",
        small=(*_STEPS, "--training.learning_rate", "2e-3", "--task.seq_len", "64", "--precision", "fp32"),
    ),
    "precision": Experiment(
        {
            "fp32, highest": Variant(_precise("fp32"), (), "21.75 min, 5.37 GB, 89.92 %"),
            "fp32, high": Variant(_precise("fp32", "high"), (), "8.11 min, 5.37 GB, 92.50 %"),
            "fp32, medium": Variant(_precise("fp32", "medium"), (), "8.14 min, 5.37 GB, 92.50 %"),
            "fp16, mixed": Variant(_precise("fp16"), (), "7.25 min, 4.31 GB, 92.15 %"),
            "bf16, mixed": Variant(_precise("bf16"), (), "7.45 min, 4.46 GB, 92.61 %"),
            "bf16, true": Variant(_precise("bf16-true"), (), "5.22 min, 2.87 GB, 92.69 %"),
        },
        _DISTILBERT,
        distilbert,
        review,
        (230, 0.65),
        "accuracy",
        "A100-40",
        small=(
            *_STEPS,
            *("--training.learning_rate", "2e-3", "--task.seq_len", "64"),
            *("--training.per_device_train_batch_size", "6"),
        ),
    ),
    "answers": Experiment(
        {
            "LoRA": Variant(),
            "DoRA": Variant(("--peft.use_dora", "true")),
            "P-tuning": Variant(recipe="answers_p_tuning"),
        },
        _LLAMA_1B,
        llama,
        question,
        (200, 0.5),
        "loss",
        "H100",
        small=(*_STEPS, "--task.seq_len", "64", "--training.learning_rate", "5e-3", "--precision", "fp32"),
    ),
    "offload": Experiment(
        {
            "none": Variant(),
            "to the CPU": Variant(("--deepspeed", _OFFLOADED.format("device: cpu"))),
            "to NVMe": Variant(("--deepspeed", _OFFLOADED.format(_NVME))),
        },
        _LLAMA_3B,
        llama,
        question,
        (200, 0.5),
        "loss",
        "H100",
        small=(*_STEPS, "--task.seq_len", "64", "--training.learning_rate", "2e-3", "--precision", "fp32"),
    ),
}


def small(name: str, variant: str, folder: Path) -> Row:
    """Train a variant on two CPU ranks."""
    experiment = EXPERIMENTS[name]
    one = experiment.variants[variant]
    if not (folder / "model").exists():
        experiment.tiny(folder / "model")
        _write(experiment, folder, 800, lambda _: 40)
    (folder / "nvme").mkdir(exist_ok=True)
    words = [
        *("launch/train.py", "--recipe", RECIPES / f"{one.recipe or name}.yaml", "--force"),
        *("--model", folder / "model", "--data.train", folder / "data.jsonl"),
        *("--training.output_dir", folder / "out", "--training.save_strategy", "no"),
        *experiment.small,
        *(word.replace("nvme_path: nvme", f"nvme_path: {folder / 'nvme'}") for word in one.words),
        *one.small,
    ]
    done = launch(words, ranks=RANKS, launcher="none")
    if done.returncode:
        lines = done.stderr.splitlines()
        said = [line for line in lines if line.startswith("zerokit: error:")]
        said += [line for line in lines if re.match(r"\w*Error: ", line)]
        return {"fails": said[0].removeprefix("zerokit: error: ")[:200] if said else lines[-1]}
    report = json.loads((folder / "out" / "run.json").read_text())
    before, after = (
        {"loss": report[f"loss_{when}"], **report[f"metrics_{when}"]}[experiment.metric]
        for when in ("before", "after")
    )
    return {
        "step_seconds": round(report["step_seconds"], 4),
        "peak_bytes": report["peak_memory_bytes"],
        "before": round(before, 4),
        "after": round(after, 4),
        "loss_after": round(report["loss_after"], 4),
    }


def full(name: str, variant: str, folder: Path) -> Row:
    """Rehearse a variant of the recipe on one virtual GPU."""
    experiment = EXPERIMENTS[name]
    one = experiment.variants[variant]
    if not (folder / "model").exists():
        tiny_tokenizer(folder / "model")
        (folder / "model" / "config.json").write_text(json.dumps(experiment.config))
        median, sigma = experiment.tokens
        _write(experiment, folder, 2000, lambda chance: round(median * math.exp(chance.gauss(0, sigma))))
    (folder / "nvme").mkdir(exist_ok=True)
    done = rehearse(
        *("--time", "--no-advise", "--format", "json", "--steps", REHEARSED_STEPS),
        *("--num-gpus", 1, "--gpu", experiment.gpu),
        *(REPOSITORY / "launch" / "train.py", "--recipe", RECIPES / f"{one.recipe or name}.yaml"),
        *("--model", "model", "--data.train", "data.jsonl", *one.words),
        cwd=folder,
    )
    if done.code not in (0, 1):
        return {"fails": done.err.strip().splitlines()[-1][-300:]}
    report = done.report
    seconds = [step["seconds"] for step in report["time"]["steps"][1:REHEARSED_STEPS]]
    return {
        "gpu": experiment.gpu,
        "step_seconds": round(sum(seconds) / len(seconds), 4),
        "peak_bytes": report["device"]["peak_bytes"],
        "reserved_bytes": report["device"]["reserved_peak_bytes"],
        "host_bytes": report["host"]["peak_bytes"],
    }


def _write(experiment: Experiment, folder: Path, count: int, length: Callable[[random.Random], int]) -> None:
    chance = random.Random(0)
    lines = [json.dumps(experiment.example(chance, length(chance))) for _ in range(count)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")


def table(rows: dict[Key, Row], name: str) -> str:
    """The variants of an experiment, as Markdown."""
    experiment = EXPERIMENTS[name]
    published = any(one.published for one in experiment.variants.values())
    lines = [
        f"| {name} | {experiment.gpu}, rehearsed: seconds of a step | peak, GiB | reserved, GiB "
        f"| two CPU ranks, tiny model: seconds of a step | peak, MiB | {experiment.metric}, held out |"
        + (" published |" * published),
        "|" + "---|" * (7 + published),
    ]
    for variant, one in experiment.variants.items():
        cells = [variant]
        on_gpu, tiny = rows.get((name, variant, "full"), {}), rows.get((name, variant, "small"), {})
        if "fails" in on_gpu:
            cells += [f"fails: {on_gpu['fails']}", "", ""]
        else:
            cells += [f"{on_gpu['step_seconds']:.3f}" if on_gpu else ""]
            cells += [f"{on_gpu[key] / 2**30:.2f}" if on_gpu else "" for key in ("peak_bytes", "reserved_bytes")]
        if "fails" in tiny:
            cells += [f"fails: {tiny['fails']}", "", ""]
        else:
            cells += [f"{tiny['step_seconds']:.3f}", f"{tiny['peak_bytes'] / 2**20:.0f}"] if tiny else ["", ""]
            cells += [f"{tiny['before']:.2f} to {tiny['after']:.2f}" if tiny else ""]
        lines.append(f"| {' | '.join([*cells, *([one.published] if published else [])])} |")
    return "\n".join(lines) + "\n"


def write_page(rows: dict[Key, Row]) -> None:
    """Put each table between its marks."""
    text = PAGE.read_text()
    for name in EXPERIMENTS:
        before, rest = text.split(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n{table(rows, name)}<!-- /{name} -->\n" + rest.split(f"<!-- /{name} -->\n")[1]
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("size", nargs="?", choices=["small", "full"], default="small")
    parser.add_argument("names", nargs="*", default=list(EXPERIMENTS), help="by default all")
    parser.add_argument("--missing", action="store_true", help="leave out rows that the record has")
    asked = parser.parse_args()
    recorded: list[Row] = json.loads(RECORDED.read_text())["rows"] if RECORDED.is_file() else []
    found: dict[Key, Row] = {(row["experiment"], row["variant"], row["size"]): row for row in recorded}
    for name in asked.names:
        with tempfile.TemporaryDirectory() as folder:
            for variant in EXPERIMENTS[name].variants:
                key = name, variant, asked.size
                if asked.missing and key in found:
                    continue
                row = {"small": small, "full": full}[asked.size](name, variant, Path(folder))
                found[key] = {"experiment": name, "variant": variant, "size": asked.size, **row}
                print(json.dumps(found[key]), flush=True, file=sys.stderr)
                RECORDED.write_text(json.dumps({"rows": list(found.values())}, indent=1) + "\n")
                write_page(found)


if __name__ == "__main__":
    main()
