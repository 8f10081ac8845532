"""The ds_config and the recipe of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from zerokit.data.files import is_builtin
from zerokit.documents import dotted, path_exists
from zerokit.errors import RecipeError
from zerokit.estimation.api import as_lora
from zerokit.hardware.cluster import Cluster
from zerokit.memory import Lora
from zerokit.planning.candidates import Candidate
from zerokit.planning.job import PlanJob
from zerokit.planning.report import Choice
from zerokit.planning.workload import Workload
from zerokit.recipe.load import load_recipe
from zerokit.recipe.starters import starter
from zerokit.resolving.run import Run
from zerokit.writing.build import build
from zerokit.writing.hyperparameters import LEFT_OUT
from zerokit.writing.request import Decisions

DS_CONFIG = "ds_config.json"
RECIPE = "recipe.yaml"
NO_DATA = "your-data.jsonl"
"""The training file of a recipe if the plan was made without data."""
_MORE_TRAINED = ("modules_to_save", "rank_pattern", "layers_to_transform", "bias", "trainable_token_indices")
"""Keys of LoRA by which more or fewer parameters are trained."""
_PLANNED_OPTIMIZERS = (None, "adamw_torch", "adamw_torch_fused")
_OWN_CHECKPOINTS = 2
"""Half-way and at the end."""
_PEFT_RANK = 8
"""Default of `r` in peft's LoraConfig."""
NVME_FOLDER = "/local_nvme"
"""A placeholder: drives of rented machines are mounted at various places."""


def ds_config_of(candidate: Candidate, job: PlanJob) -> tuple[dict[str, Any], dict[str, str]]:
    """The ds_config that ``zerokit config`` writes for a candidate, and the reason for each key.

    Raises:
        ConfigError: the settings do not go together.
    """
    devices = (candidate.offload_optimizer, candidate.offload_param)
    cluster = Cluster(candidate.num_gpus, candidate.gpus_per_node)
    decisions = Decisions(
        zero_stage=candidate.zero_stage,
        run=Run(target="trainer", cluster=cluster, model=job.model, parallelism=candidate.parallel),
        precision=candidate.precision,
        offload_optimizer=candidate.offload_optimizer,
        offload_param=candidate.offload_param,
        nvme_path=NVME_FOLDER if "nvme" in devices else None,
        micro_batch_size=candidate.micro_batch_size,
        gradient_accumulation_steps=candidate.gradient_accumulation_steps,
        # The Trainer's own default, as a number: nothing in the file then depends on who reads it.
        gradient_clipping=job.recipe.get("training", {}).get("max_grad_norm", 1.0),
        hpz_size=candidate.gpus_per_node if candidate.hpz else None,
    )
    built = build(decisions)
    reasons = {dotted(one.path): one.why for one in built.choices if one.value is not LEFT_OUT}
    return built.config.dump(), reasons


def recipe_of(settings: Candidate | Choice, job: PlanJob, ds_config: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of a plan; paths are absolute, or names of files beside it.

    It continues the user's recipe, or else the one that ``zerokit train --print-recipe`` prints.
    """
    recipe = deepcopy(job.recipe) or _started(job)
    recipe["precision"] = "fp16" if "fp16" in ds_config else "bf16"
    task = recipe.setdefault("task", {})
    task["seq_len"] = job.workload.seq_len
    if task.get("type", "causal_lm") == "causal_lm":
        task |= {"packing": job.workload.packing, "chunked_loss": settings.chunked_loss}
    sizes = {name: size for name in ("sequence", "tensor") if (size := getattr(settings.parallel, name)) > 1}
    recipe.pop("parallel", None)
    recipe |= {"parallel": sizes} if sizes else {}
    training = recipe.setdefault("training", {})
    for name in ("tiled_mlp", "activation_offloading"):
        training.pop(name, None)
        training |= {name: True} if getattr(settings, name) else {}
    training |= {
        "per_device_train_batch_size": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "num_train_epochs": _plain(job.workload.epochs),
    }
    training.pop("max_steps", None)
    recipe["deepspeed"] = DS_CONFIG
    return recipe


def read_recipe(file: Path) -> dict[str, Any]:
    """A user's recipe as it is written, with absolute paths of local files.

    Raises:
        ZerokitError: it cannot be read, or is not valid.
    """
    recipe: dict[str, Any] = load_recipe(file).recipe.model_dump(exclude_unset=True, exclude_none=True)
    optimizer = recipe.get("training", {}).get("optim")
    if optimizer not in _PLANNED_OPTIMIZERS:
        hint = "Leave it out to plan with AdamW"
        raise RecipeError(f"{optimizer} is not planned", where="training.optim", hint=hint)
    for section, keys in (("model", ("path", "from_config", "tokenizer")), ("data", ("train", "eval"))):
        for key in keys:
            if key in recipe[section]:
                recipe[section][key] = _absolute(recipe[section][key])
    return recipe


def _absolute(value: Any) -> Any:
    if isinstance(value, list):
        return [_absolute(one) for one in value]
    if not isinstance(value, str) or is_builtin(value):
        return value
    path = Path(value).expanduser()
    return str(path.absolute()) if path_exists(path) or any(sign in value for sign in "*?[") else value


def adapter_of(recipe: Mapping[str, Any]) -> tuple[Lora | None, bool]:
    """The LoRA adapters of a recipe, and whether it loads the model in 4 bits.

    Raises:
        RecipeError: another method of peft.
    """
    keys = recipe.get("peft")
    if keys is None:
        return None, False
    kind = keys.get("type", "lora")
    if kind not in ("lora", "qlora"):
        hint = "Plan it without peft, or with type: lora or qlora"
        raise RecipeError(f"{kind} is not planned", where="peft.type", hint=hint)
    for name in [one for one in _MORE_TRAINED if keys.get(one) not in (None, "none", [], {})]:
        hint = "Leave it out to plan without it"
        raise RecipeError(f"{name} changes what is trained, which is not planned", where=f"peft.{name}", hint=hint)
    settings = {name: keys[name] for name in ("target_modules", "use_dora", "lora_dropout") if name in keys}
    if kind == "qlora":
        settings.setdefault("target_modules", "all-linear")
    return as_lora({"r": keys.get("r", _PEFT_RANK), **settings}), kind == "qlora"


def num_checkpoints(recipe: Mapping[str, Any], workload: Workload) -> int:
    """The checkpoints that a run of a recipe writes; 2 for the recipe that a plan writes itself.

    ``save_steps`` is 500 by default (transformers `TrainingArguments`); below 1 it is a share of all steps.
    """
    if not recipe:
        return _OWN_CHECKPOINTS
    training = recipe.get("training", {})
    strategy, every = training.get("save_strategy", "steps"), training.get("save_steps", 500)
    if strategy == "epoch":
        return max(1, round(workload.epochs))
    if strategy != "steps" or every <= 0:
        return 0
    return max(1, int(1 / every) if every < 1 else workload.steps // int(every))


def recipe_text(recipe: dict[str, Any]) -> str:
    """The YAML of a recipe."""
    text: str = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def task_of(job: PlanJob) -> str:
    """The task by the class of the model."""
    if "task" in job.recipe:
        return str(job.recipe["task"].get("type", "causal_lm"))
    endings = {"ForConditionalGeneration": "seq2seq", "ForMaskedLM": "masked_lm"}
    found = (task for ending, task in endings.items() if job.model.architecture.endswith(ending))
    return next(found, "causal_lm")


def _started(job: PlanJob) -> dict[str, Any]:
    method = None if job.lora is None else "qlora" if job.load_in_4bit else "lora"
    recipe: dict[str, Any] = yaml.safe_load(starter(task_of(job), method))
    recipe["model"] = _model(job)
    files = [str(Path(file).absolute()) for file in job.data_files]
    recipe["data"] = {"train": files[0] if len(files) == 1 else files or NO_DATA}
    recipe["data"]["eval_fraction"] = 0
    recipe["training"].pop("eval_strategy", None)
    recipe["training"]["save_steps"] = 1 / _OWN_CHECKPOINTS
    if job.lora is not None:
        recipe["peft"] |= {"r": job.lora.rank, "lora_alpha": 2 * job.lora.rank}
        if job.lora.target_modules is not None:
            targets = job.lora.target_modules
            recipe["peft"]["target_modules"] = targets if isinstance(targets, str) else list(targets)
    return recipe


def _model(job: PlanJob) -> str | dict[str, Any]:
    """A folder or Hub id; a model from scratch if there is only a config.json."""
    path = Path(job.model_name)
    if path.is_file():
        tokenizer = {"train_bpe": {"vocab_size": job.model.vocab_size or 32_000}}
        return {"from_config": str(path.absolute()), "tokenizer": tokenizer}
    return str(path.absolute()) if path.is_dir() else job.model.name


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number
