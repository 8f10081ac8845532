"""launch/train.py on real ranks: what it saves, adapters, offload, resuming, and every launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.combinations import REST
from tests.tiny import launch, tiny_llama, tiny_tokenizer
from zerokit.checkpoint.checksums import check_checksums, files_of, read_checksums
from zerokit.checkpoint.export import export
from zerokit.checkpoint.verify import verify

MESSAGES = [
    [{"role": "user", "content": f"What is {i}?"}, {"role": "assistant", "content": f"The number {i} of a sequence."}]
    for i in range(24)
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tied model, its tokenizer, and chat data."""
    folder = tmp_path_factory.mktemp("start")
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model", initializer_range=0.05, tie_word_embeddings=True)
    for name, conversations in (("train", MESSAGES[:19]), ("eval", MESSAGES[19:])):
        lines = [json.dumps({"messages": messages}) for messages in conversations]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_recipe(start: Path, folder: Path, *, ds_config: dict[str, Any], **sections: Any) -> Path:
    training = {
        "output_dir": str(folder / "out"),
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        **sections.pop("training", {}),
    }
    recipe = {
        "model": str(start / "model"),
        "data": {"train": str(start / "train.jsonl"), "eval": str(start / "eval.jsonl")},
        "task": {"seq_len": 64},
        "training": training,
        "deepspeed": ds_config,
        **sections,
    }
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    return file


def run(recipe: Path, *options: str, ranks: int = 2, launcher: str = "deepspeed") -> dict[str, Any]:
    """Train, and return the run's report with the losses of its steps."""
    result = launch(["launch/train.py", "--recipe", recipe, *options], ranks=ranks, launcher=launcher)
    assert result.returncode == 0, result.stderr[-3000:]
    out = recipe.parent / "out"
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    report["losses"] = [entry["loss"] for entry in entries if "loss" in entry]
    return report


def answer_loss(model: torch.nn.Module, tokenizer: Any, conversations: list[list[dict[str, str]]]) -> float:
    """Mean loss per token of the answers, computed without zerokit, one conversation at a time."""
    total, count = 0.0, 0
    for messages in conversations:
        options = {"tokenize": True, "return_dict": False}
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, **options)
        whole = tokenizer.apply_chat_template(messages, **options)
        labels = [-100] * len(prompt) + whole[len(prompt) :]
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([whole]), labels=torch.tensor([labels])).loss
        total += loss.item() * (len(whole) - len(prompt))
        count += len(whole) - len(prompt)
    return total / count


OFFLOADED = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}


@pytest.mark.parametrize(
    "zero", [{"stage": 1}, {"stage": 2}, {"stage": 3}, OFFLOADED], ids=["1", "2", "3", "3-offloaded"]
)
def test_saved_model_is_the_trained_one(zero: dict[str, Any], start: Path, tmp_path: Path) -> None:
    """What from_pretrained loads has the held-out loss that the run measured at its end."""
    recipe = write_recipe(start, tmp_path, ds_config={"zero_optimization": zero}, generation={"max_new_tokens": 7})
    report = run(recipe, launcher="none")
    out = tmp_path / "out"
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert model.generation_config.max_new_tokens == 7
    assert report["loss_after"] < 0.9 * report["loss_before"]
    assert answer_loss(model, tokenizer, MESSAGES[19:]) == pytest.approx(report["loss_after"], abs=1e-5)
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1
    assert {file.name for file in out.iterdir()} == {
        *("chat_template.jinja", "config.json", "generation_config.json", "metrics.jsonl", "model.safetensors"),
        *("run.json", "tokenizer.json", "tokenizer_config.json"),
    }


def test_lora_under_zero_3_saves_a_trained_adapter(start: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    recipe = write_recipe(
        start,
        tmp_path,
        ds_config={"zero_optimization": {"stage": 3}},
        peft={"type": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]},
        training={"learning_rate": 2e-2, "gradient_checkpointing": True, "save_strategy": "steps"},
    )
    report = run(recipe, launcher="none")
    assert report["num_trainable_parameters"] == 2 * (4 * (64 + 64) + 4 * (64 + 32))
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert all(tensor.numel() > 0 for tensor in adapter.values())
    assert all(tensor.abs().sum() > 0 for name, tensor in adapter.items() if "lora_B" in name)
    (checkpoint,) = (tmp_path / "out").glob("checkpoint-*")
    check_export(checkpoint, adapter)
    base = AutoModelForCausalLM.from_pretrained(start / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert answer_loss(model, tokenizer, MESSAGES[19:]) == pytest.approx(report["loss_after"], abs=1e-5)


def check_export(checkpoint: Path, trained: dict[str, torch.Tensor]) -> None:
    """See that a checkpoint of the Trainer, exported, has the weights that its run saved in the end."""
    assert verify(checkpoint).hashes
    exported = checkpoint.with_name("exported")
    export(checkpoint, exported)
    (file,) = exported.glob("*.safetensors")
    weights = load_file(file)
    assert trained.keys() - weights.keys() <= {"lm_head.weight"}  # tied, which the Trainer writes twice
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights.items())
    assert AutoTokenizer.from_pretrained(exported).eos_token == "<|end|>"


def test_a_resumed_run_continues_where_it_stopped(start: Path, tmp_path: Path) -> None:
    recipe = write_recipe(
        start,
        tmp_path,
        ds_config={"zero_optimization": {"stage": 2}},
        training={"max_steps": 8, "save_strategy": "steps", "save_steps": 6},
    )
    whole = run(recipe, launcher="none")
    (tmp_path / "out" / "checkpoint-8").rename(tmp_path / "elsewhere")
    sums = read_checksums(tmp_path / "out" / "checkpoint-6")
    assert sums is not None
    assert list(sums) == files_of(tmp_path / "out" / "checkpoint-6")
    check_checksums(tmp_path / "elsewhere", read_checksums(tmp_path / "elsewhere") or {})
    check_export(tmp_path / "elsewhere", load_file(tmp_path / "out" / "model.safetensors"))
    resumed = run(recipe, "--training.resume_from_checkpoint", "true", launcher="none")
    assert resumed["losses"][-2:] == pytest.approx(whole["losses"][-2:], abs=1e-6)
    assert resumed["loss_after"] == pytest.approx(whole["loss_after"], abs=1e-6)


@pytest.fixture(scope="module")
def two_ranks(start: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a run on two ranks, at stage 1."""
    folder = tmp_path_factory.mktemp("two")
    return run(write_recipe(start, folder, ds_config={"zero_optimization": {"stage": 1}}))


def test_a_step_exchanges_its_tokens_and_its_loss_beside_what_deepspeed_does(start: Path, tmp_path: Path) -> None:
    recipe = write_recipe(
        start, tmp_path, ds_config={"zero_optimization": {"stage": 2}}, training={"max_steps": 4, "logging_steps": 10}
    )
    ended = launch(
        ["tests/validation/launched/count_exchanges.py", recipe, tmp_path / "found.json"], ranks=2, launcher="none"
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    _, second, third, *_ = json.loads((tmp_path / "found.json").read_text())
    gradients, norm, weights = "all_reduce", "all_reduce", "all_gather_into_tensor"
    assert second == third == ["all_gather", gradients, norm, weights, "all_reduce"]


@pytest.mark.parametrize("launcher", ["python", "accelerate"])
def test_one_process_gives_the_losses_of_two(
    launcher: str, two_ranks: dict[str, Any], start: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(
        start, tmp_path, ds_config={"zero_optimization": {"stage": 1}}, training={"per_device_train_batch_size": 4}
    )
    one = run(recipe, ranks=1, launcher=launcher)
    assert one["losses"] == pytest.approx(two_ranks["losses"], abs=1e-5)
    assert one["loss_after"] == pytest.approx(two_ranks["loss_after"], abs=1e-5)


@REST
@pytest.mark.parametrize("stage", [2, 3])
def test_a_compiled_model_trains_saves_and_goes_on_as_it_is(stage: int, start: Path, tmp_path: Path) -> None:
    """With `torch_compile`; of its compilers the one that generates no code, which takes a minute here."""
    compiled = ("--training.torch_compile_backend", "aot_eager", "--training.eval_steps", "3")
    keys = {"save_strategy": "steps", "save_steps": 3}
    runs = {}
    for name in ("usual", "compiled"):
        folder = tmp_path / name
        folder.mkdir()
        recipe = write_recipe(start, folder, ds_config={"zero_optimization": {"stage": stage}}, training=keys)
        runs[name] = run(recipe, *(compiled if name == "compiled" else ()), launcher="none")
    assert runs["compiled"]["losses"] == pytest.approx(runs["usual"]["losses"], rel=1e-5)
    assert runs["compiled"]["loss_after"] == pytest.approx(runs["usual"]["loss_after"], rel=1e-5)
    weights = [load_file(tmp_path / name / "out" / "model.safetensors") for name in runs]
    assert weights[0].keys() == weights[1].keys()
    at = ("--training.resume_from_checkpoint", str(tmp_path / "compiled" / "out" / "checkpoint-3"))
    resumed = run(recipe, *compiled, *at, "--force", launcher="none")
    assert resumed["losses"][-3:] == pytest.approx(runs["usual"]["losses"][3:], rel=1e-5)
