"""Every ZeRO stage, launcher and split of the batch trains like a plain PyTorch loop on one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.tiny import launch, tiny_llama, tiny_tokenizer

EPOCHS = 2
GLOBAL_BATCH = 8
# 6 full batches and one of 5: the last update of each epoch is incomplete, and uneven over two ranks.
NUM_EXAMPLES = 6 * GLOBAL_BATCH + 5
LEARNING_RATE = 1e-3
RUNS = [
    *((stage, bf16, (4, 1)) for stage in (0, 1, 2, 3) for bf16 in (False, True)),
    *((stage, False, (1, 4)) for stage in (2, 3)),
]
"""Stage, precision, and how a rank's share of a batch is split."""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with a model and prompt/completion pairs of unequal lengths."""
    folder = tmp_path_factory.mktemp("start")
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model", initializer_range=0.05)
    text = "the for statement is used to iterate over elements of a sequence in order"
    words = text.split()
    with (folder / "pairs.jsonl").open("w") as file:
        for i in range(NUM_EXAMPLES):
            turned = words[i % len(words) :] + words[: i % len(words)]
            pair = {
                "prompt": " ".join(turned[: 1 + i % 5]),
                "completion": " " + " ".join(turned[1 + i % 5 : 3 + i % 9]),
            }
            file.write(json.dumps(pair) + "\n")
    return folder


@pytest.fixture(scope="module")
def train(start, tmp_path_factory):
    """Gives the loss of each step of a run on two ranks; one start of them makes all but torchrun's."""
    folder = tmp_path_factory.mktemp("runs")
    for stage, bf16, split in RUNS:
        recipe = {
            "model": str(start / "model"),
            "data": {"train": str(start / "pairs.jsonl"), "eval_fraction": 0},
            "task": {"seq_len": 64},
            "training": {
                "output_dir": str(folder / f"{stage}-{bf16}-{split[0]}"),
                "num_train_epochs": EPOCHS,
                "per_device_train_batch_size": split[0],
                "gradient_accumulation_steps": split[1],
                "learning_rate": LEARNING_RATE,
                "lr_scheduler_type": "constant",
                "train_sampling_strategy": "sequential",
                "logging_steps": 1,
                "save_strategy": "no",
                "bf16": bf16,
            },
            "deepspeed": {"zero_optimization": {"stage": stage}},
        }
        (folder / f"{stage}-{bf16}-{split[0]}.yaml").write_text(yaml.safe_dump(recipe))
    result = launch(["tests/launched/train_recipes.py", folder], ranks=2, launcher="none")
    assert result.returncode == 0, result.stderr[-3000:]

    def run(*, stage: int, bf16=False, split=(4, 1), launcher="none"):
        out = folder / f"{stage}-{bf16}-{split[0]}"
        if launcher != "none":
            words = ["launch/train.py", "--recipe", out.with_suffix(".yaml"), "--training.output_dir"]
            out = folder / launcher
            result = launch([*words, out], ranks=2, launcher=launcher)
            assert result.returncode == 0, result.stderr[-3000:]
        lines = (out / "metrics.jsonl").read_text().splitlines()
        return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]

    return run


@pytest.fixture(scope="module")
def reference(start):
    """Loss of each step of a plain PyTorch loop, by dtype; bf16 keeps float32 master weights."""
    tokenizer = AutoTokenizer.from_pretrained(start / "model")
    batches = _batches(start / "pairs.jsonl", tokenizer)
    return {dtype: _plain_loop(start / "model", batches, dtype) for dtype in (torch.float32, torch.bfloat16)}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_fp32_losses_are_those_of_plain_pytorch(stage, train, reference):
    losses = train(stage=stage)
    assert len(losses) == EPOCHS * 7
    assert losses == pytest.approx(reference[torch.float32], abs=1e-5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bf16_losses_are_those_of_plain_pytorch(stage, train, reference):
    # bf16 keeps 8 bits of mantissa: one rounding is up to 2**-9 of the value.
    assert train(stage=stage, bf16=True) == pytest.approx(reference[torch.bfloat16], rel=2**-8)


@pytest.mark.parametrize("stage", [2, 3])
def test_four_small_batches_train_like_one_large(stage, train):
    """The last, incomplete accumulation window of each epoch included."""
    assert train(stage=stage, split=(1, 4)) == pytest.approx(train(stage=stage), abs=1e-5)


def test_torchrun_gives_the_same_losses(train):
    assert train(stage=2, launcher="torchrun") == train(stage=2)


def test_the_loss_falls(reference):
    """Guards the comparisons above: equal curves of a loop that does not train would prove nothing."""
    for losses in reference.values():
        assert losses[-1] < 0.7 * losses[0]


def _batches(file: Path, tokenizer):
    """The global batches of an epoch, as padded input ids, masks and labels."""
    examples = []
    for pair in map(json.loads, file.read_text().splitlines()):
        prompt = tokenizer(pair["prompt"])["input_ids"]
        completion = [*tokenizer(pair["completion"])["input_ids"], tokenizer.eos_token_id]
        examples.append((prompt + completion, [-100] * len(prompt) + completion))
    result = []
    for begin in range(0, len(examples), GLOBAL_BATCH):
        batch = examples[begin : begin + GLOBAL_BATCH]
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in batch])
        mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in batch])
        labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in batch])
        result.append((ids, mask, labels))
    return result


def _plain_loop(model_folder: Path, batches, dtype: torch.dtype) -> list[float]:
    model = LlamaForCausalLM.from_pretrained(model_folder, dtype=dtype).train()
    parameters = list(model.parameters())
    masters = [p.detach().clone().float() for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, weight_decay=0.0)
    losses = []
    for _ in range(EPOCHS):
        for ids, mask, labels in batches:
            logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
            loss.backward()
            for master, parameter in zip(masters, parameters, strict=True):
                master.grad, parameter.grad = parameter.grad.float(), None
            torch.nn.utils.clip_grad_norm_(masters, 1.0)
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, parameters, strict=True):
                    parameter.copy_(master)
            losses.append(loss.item())
    return losses
