"""Small runs of `zerokit train` on groups of ranks, to compare with a run of one process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file

from tests.tiny import launch, tiny_llama, tiny_tokenizer
from tests.validation.parallelism.train_on_ranks import ENGINE

STEPS = 6
START = "start"
"""The folder of the model and the data."""
_KINDS: dict[str, dict[str, Any]] = {
    "rows": {},
    "packed": {"task": {"packing": True}},
    "lora": {"peft": {"type": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]}},
    "window": {"model": "window"},  # of 8 tokens
    "chunked": {},  # the loss of groups alone
    "checkpointed": {"training": {"gradient_checkpointing": True}},
    "streamed": {"data": {"streaming": True, "buffer_size": 6}},
}


@dataclass(frozen=True)
class Case:
    """A run on groups of ranks."""

    sequence: int
    data: int
    accumulation: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}-sp{self.sequence}-dp{self.data}-accumulation{self.accumulation}"


SAMPLE = [Case(2, 1, 3, "lora"), Case(4, 1, 1, "window"), Case(2, 2, 3, "packed")]
"""The cases of ``make test``."""
CASES = [
    *SAMPLE,
    *(Case(*groups, accumulation, "rows") for groups in ((2, 1), (4, 1), (2, 2)) for accumulation in (1, 3)),
    *(Case(2, 1, 3, kind) for kind in ("chunked", "checkpointed", "streamed")),
    *(Case(*groups, 1, "packed") for groups in ((2, 1), (4, 1))),
]
_TEXT = "the for statement is used to iterate over elements of a sequence in order"


@dataclass(frozen=True)
class Trained:
    """What a run logged and saved."""

    losses: list[float]
    grad_norms: list[float]
    held_out: list[float]
    weights: dict[str, Any]
    tokens: int
    engine: list[Any]
    """Its class, its ZeRO stage, and the ranks that divide a sequence."""
    said: str

    def difference(self, other: Trained) -> dict[str, float]:
        """The largest differences from another run."""
        return {
            "loss": max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True)),
            "grad_norm": max(abs(a - b) for a, b in zip(self.grad_norms, other.grad_norms, strict=True)),
            "held_out": max(abs(a - b) for a, b in zip(self.held_out, other.held_out, strict=True)),
            "weights": max(float((self.weights[name] - each).abs().max()) for name, each in other.weights.items()),
        }


def make_start(folder: Path, **config: Any) -> None:
    """A model with four heads and pairs of unequal lengths, whose prompts are not trained on."""
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model", initializer_range=0.05, **config)
    tiny_tokenizer(folder / "window")
    _with_window(folder / "window")
    words = _TEXT.split()
    for name, numbers in (("train", range(40)), ("eval", range(40, 47))):
        lines = []
        for number in numbers:
            turned = words[number % len(words) :] + words[: number % len(words)]
            prompt, answer = turned[: 1 + number % 5], turned[1 + number % 5 : 3 + number % 9]
            lines.append(json.dumps({"prompt": " ".join(prompt), "completion": " " + " ".join(answer)}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def _with_window(folder: Path) -> None:
    """A Mistral whose layers see 8 tokens, with two heads of keys."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 320}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8}
    tokens = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1}
    torch.manual_seed(0)
    MistralForCausalLM(MistralConfig(**sizes, **heads, **tokens, initializer_range=0.05)).save_pretrained(folder)


def recipe_of(
    start: Path,
    folder: Path,
    *,
    sequence: int = 1,
    tensor: int = 1,
    stage: int = 3,
    split: tuple[int, int] = (2, 3),
    **sections: Any,
) -> Path:
    """A recipe of six steps of SGD in fp32; `split` is the micro batch and the accumulation steps."""
    recipe = {
        "model": str(start / sections.pop("model", "model")),
        "data": {"train": str(start / "train.jsonl"), "eval": str(start / "eval.jsonl"), **sections.pop("data", {})},
        "task": {"seq_len": 64, **sections.pop("task", {})},
        "parallel": {"sequence": sequence, "tensor": tensor},
        "training": {
            "output_dir": str(folder / "out"),
            "max_steps": STEPS,
            "per_device_train_batch_size": split[0],
            "gradient_accumulation_steps": split[1],
            "optim": "sgd",
            "learning_rate": 0.2,  # at 0.5, rounding errors grow from step to step
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "logging_steps": 1,
            "save_strategy": "no",
            **sections.pop("training", {}),
        },
        "deepspeed": {"zero_optimization": {"stage": stage}},
        **sections,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


def run_case(case: Case, folder: Path) -> tuple[Trained, Trained]:
    """The run of one process, which is trained once for each kind, and the run of the case."""
    split = (4, 1) if case.accumulation == 1 else (2, case.accumulation)
    alone = folder / f"one-{case.kind}-{case.accumulation}"
    if (alone / "out" / ENGINE).exists():
        one = read(alone / "out")
    else:
        one = train(recipe_of(folder / START, alone, split=split, **dict(_KINDS[case.kind])), ranks=1)
    split = (split[0] // case.data, split[1])
    sections = dict(_KINDS[case.kind])
    recipe = recipe_of(folder / START, folder / str(case), sequence=case.sequence, split=split, **sections)
    return one, train(recipe, ranks=case.sequence * case.data, chunks=case.kind == "chunked")


def train(recipe: Path, *options: str, ranks: int, chunks: bool = False) -> Trained:
    """Train on `ranks` processes, with the loss in small `chunks` or at once; AssertionError if the run fails."""
    words: list[str | Path] = ["tests/validation/parallelism/train_on_ranks.py", "--recipe", recipe, *options]
    ended = launch(words, ranks=ranks, launcher="none", env={"SMALL_CHUNKS": "1"} if chunks else None)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return read(recipe.parent / "out", ended.stderr)


def read(out: Path, said: str = "") -> Trained:
    """What a run left in its output folder."""
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (file,) = out.glob("*.safetensors")
    weights = load_file(file)
    head = weights.get("lm_head.weight")
    if head is not None and head.equal(weights["model.embed_tokens.weight"]):
        del weights["lm_head.weight"]  # tied: one process without ZeRO-3 writes it, too
    return Trained(
        [entry["loss"] for entry in entries if "loss" in entry],
        [entry["grad_norm"] for entry in entries if "grad_norm" in entry],
        [entry["eval_loss"] for entry in entries if "eval_loss" in entry],
        weights,
        json.loads((out / "run.json").read_text())["tokens"],
        json.loads((out / ENGINE).read_text()),
        said,
    )
