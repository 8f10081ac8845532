"""The one key for optimizers: what it writes, what it refuses, and what serves in its place."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from torch.utils import cpp_extension
from transformers import TrainingArguments

from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.errors import ConfigError, RecipeError
from zerokit.recipe import load_recipe
from zerokit.training import optimizers
from zerokit.training.arguments import resolve_arguments
from zerokit.training.optimizers import (
    check_optimizer,
    check_optimizer_keys,
    check_schedule,
    check_zenflow,
    host_optimizer,
    replace_fused_optimizer,
    warmup_warning,
)
from zerokit.writing.named_optimizer import OF_DEEPSPEED

RECIPE = """\
model: model
data: {train: data.jsonl}
"""


def resolved(folder: Path, *words: str, stage: int = 2) -> Any:
    (folder / "recipe.yaml").write_text(RECIPE)
    zero = ("--deepspeed.zero_optimization.stage", str(stage))
    loaded = load_recipe(folder / "recipe.yaml", [*zero, *words])
    return resolve_arguments(loaded, place=GroupPlace(), default_precision="bf16")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--training.optim_args", "lr=1"), "optim_args has no effect: adamw_torch_fused does not read it"),
        (("--training.optim", "sgd", "--training.adam_beta1", "0.8"), "adam_beta1 has no effect: sgd does not"),
        (("--training.optim_target_modules", "a"), "optim_target_modules has no effect: adamw_torch_fused"),
        (
            ("--deepspeed.optimizer.type", "AdamW", "--training.optim_args", "a=1"),
            "optim_args has no effect: DeepSpeed's AdamW does not read it",
        ),
        (("--training.adam_beta1", "0.8"), None),
        (("--training.optim", "sgd", "--training.optim_args", "momentum=0.9"), None),
        (("--training.optim", "sgd", "--training.adam_beta1", "0.9"), None),  # its default
    ],
)
def test_a_key_that_the_optimizer_does_not_read_is_refused(
    words: tuple[str, ...], says: str | None, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    loaded = load_recipe(tmp_path / "recipe.yaml", words)
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, **loaded.recipe.training)
    ds_config = loaded.recipe.deepspeed or {}
    assert not isinstance(ds_config, str)
    with nullcontext() if says is None else pytest.raises(RecipeError, match=re.escape(says)):
        check_optimizer_keys(args, ds_config, loaded)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "_lacks_kernel", lambda _: False)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("optim", OF_DEEPSPEED)
def test_a_word_has_deepspeed_make_the_optimizer(optim: str, tmp_path: Path) -> None:
    word = ("--training.optim", optim, "--training.max_grad_norm", "0")
    found = resolved(tmp_path, *word, stage=0 if optim == "deepspeed_lamb" else 3)
    assert "optim" not in found.training
    assert found.ds_config["optimizer"]["type"] == OF_DEEPSPEED[optim]
    assert found.ds_config["optimizer"]["params"]["lr"] == "auto"
    with pytest.raises(ConfigError, match="optim would have no effect"):
        resolved(tmp_path, *word, "--deepspeed.optimizer.type", "AdamW")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("optim", "stage", "message"),
    [
        ("deepspeed_lamb", 2, "LAMB scales each parameter's step by its own norm, and ZeRO hands it"),
        ("adafactor", 2, "adafactor would be replaced by DeepSpeed's CPU Adam"),
        ("adamw_torch_8bit", 2, "adamw_torch_8bit would be replaced by DeepSpeed's CPU Adam"),
        ("adagrad", 2, "adagrad cannot be made DeepSpeed's CPU Adagrad by accelerate"),
        ("deepspeed_muon", 3, "clipping at 1.0 would cut Muon's updates"),
        ("deepspeed_muon", 2, "Muon's step would follow the plain gradient"),
    ],
)
def test_what_zero_or_offload_cannot_run_is_refused_with_what_works(
    optim: str, stage: int, message: str, tmp_path: Path
) -> None:
    offload = ("--deepspeed.zero_optimization.offload_optimizer.device", "cpu")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        resolved(tmp_path, "--training.optim", optim, *offload, stage=stage)
    assert caught.value.where == "--training.optim"
    assert caught.value.hint is not None


def test_the_optimizer_on_the_host_is_the_one_that_is_compiled() -> None:
    zero = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    assert host_optimizer({"zero_optimization": {}, "optimizer": {"type": "Lion"}}) is None
    assert [host_optimizer({**zero, "optimizer": {"type": name}}) for name in ("AdamW", "Lion")] == ["Adam", "Lion"]
    assert host_optimizer(zero) == "Adam"


def test_torch_serves_where_no_toolkit_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "count_gpus", lambda: 1)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    section: dict[str, Any] = {"type": "AdamW", "params": {"lr": 0.5, "weight_decay": 0.1}}
    said = replace_fused_optimizer({"optimizer": section}, where="here")
    assert said == "no CUDA toolkit (nvcc) to compile DeepSpeed's AdamW with: torch's fused one serves"
    assert section["params"] == {"lr": 0.5, "weight_decay": 0.1, "torch_adam": True, "fused": True}
    assert replace_fused_optimizer({"optimizer": section}, where="here") is None
    for other in ({"type": "Lion"}, {"type": "Adam", "params": {"bias_correction": False}}):
        with pytest.raises(ConfigError, match="no CUDA toolkit"):
            replace_fused_optimizer({"optimizer": other}, where="here")
    monkeypatch.setattr(optimizers, "count_gpus", lambda: 0)
    assert replace_fused_optimizer({"optimizer": {"type": "AdamW"}}, where="here") is None
    with pytest.raises(ConfigError, match="Lamb is a CUDA kernel of DeepSpeed's, and CPU ranks have none"):
        replace_fused_optimizer({"optimizer": {"type": "Lamb"}}, where="here")


@pytest.mark.parametrize(
    ("optim", "message"),
    [
        ("galore_adamw", "galore_adamw works on whole matrices, and ZeRO stage 2 gives"),
        ("schedule_free_adamw", "schedule_free_adamw cannot be made here: "),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_refused_before_the_model_is(
    optim: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "WORLD_SIZE", "RANK", "LOCAL_RANK"):  # of a test before
        monkeypatch.delenv(name, raising=False)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    args.optim = optim
    with pytest.raises(RecipeError, match=re.escape(message)) as caught:
        check_optimizer(args, {}, 2, "here")
    assert "\n" not in str(caught.value)
    check_optimizer(args, {"optimizer": {}}, 2, "here")
    args.optim = "sgd"
    check_optimizer(args, {}, 2, "here")
    args.optim = "adagrad"
    check_optimizer(args, {}, 0, "here")
    with pytest.raises(RecipeError, match=r"in stage 3 its first step fails\. Use deepspeed_adagrad"):
        check_optimizer(args, {}, 3, "here")


@pytest.mark.parametrize(
    ("schedule", "keys", "refused"),
    [
        ("linear", None, None),
        ("linear", {"num_cycles": 2}, "unexpected keyword argument 'num_cycles'"),
        ("cosine_with_min_lr", {"min_lr_rate": 0.5}, None),
        ("cosine_with_min_lr", None, "min_lr or min_lr_rate should be set"),
        ("warmup_stable_decay", {"num_decay_steps": 2}, None),
        ("warmup_stable_decay", None, "missing 1 required positional argument: 'num_decay_steps'"),
        ("polynomial", {"lr_end": 5.0}, "lr_end"),
    ],
)
def test_a_schedule_that_cannot_be_made_is_refused_before_the_model_is(
    schedule: str, keys: dict[str, Any] | None, refused: str | None, tmp_path: Path
) -> None:
    args: Any = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": []}
    args = TrainingArguments(**args, lr_scheduler_type=schedule, lr_scheduler_kwargs=keys)
    with nullcontext() if refused is None else pytest.raises(RecipeError, match=refused):
        check_schedule(args, {}, "here")
    check_schedule(args, {"scheduler": {"type": "WarmupLR"}}, "here")


@pytest.mark.parametrize(
    ("stage", "resumes", "refused"),
    [
        (2, False, None),
        (2, True, "no checkpoint has what ZenFlow keeps"),
        (3, False, "ZenFlow expects transposed matrices in stage 3"),
    ],
)
def test_zenflow_is_refused_where_it_would_train_something_else(
    stage: int, resumes: bool, refused: str | None
) -> None:
    with nullcontext() if refused is None else pytest.raises(ConfigError, match=refused):
        check_zenflow({"stage": stage, "zenflow": {"topk_ratio": 0.1}}, resumes=resumes, where="ds.json")
    check_zenflow({"stage": stage, "zenflow": None}, resumes=resumes, where="ds.json")


@pytest.mark.parametrize(
    ("keys", "ds_config", "steps", "is_told"),
    [
        ({"warmup_steps": 50}, {}, 50, True),
        ({"warmup_steps": 50}, {}, 51, False),
        ({"warmup_steps": 0.5}, {}, 1, False),  # a share of the run
        ({"warmup_steps": 50, "lr_scheduler_type": "constant"}, {}, 3, False),
        ({"warmup_steps": 50}, {"scheduler": {"type": "WarmupLR"}}, 3, False),
    ],
)
def test_a_warm_up_that_the_run_does_not_outlast_is_told(
    keys: dict[str, Any], ds_config: dict[str, Any], steps: int, is_told: bool, tmp_path: Path
) -> None:
    line = warmup_warning(TrainingArguments(str(tmp_path), use_cpu=True, **keys), ds_config, steps)
    assert (line is not None) == is_told
    if line is not None:
        assert line == (
            "warning: training.warmup_steps is 50 and the run has 50 steps: "
            "it ends before the learning rate is training.learning_rate"
        )
