"""Other names of a recipe's keys, and hints for unknown keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from zerokit.errors import did_you_mean, nearest
from zerokit.recipe.model import DataSection, ModelSection, Recipe, Section, TaskSection
from zerokit.recipe.trainer_keys import installed_types, is_free

_SYNONYMS: Mapping[str, Collection[str]] = {
    "model.path": ("model_name_or_path", "model_name", "model_id", "base_model", "pretrained_model"),
    "model.tokenizer": ("tokenizer_name", "tokenizer_name_or_path", "tokenizer_path"),
    "model.attn_implementation": (
        "attention",
        "attn",
        "flash_attn",
        "flash_attention",
        "attention_implementation",
    ),
    "model.dtype": ("torch_dtype",),
    "data.train": (
        "datasets",
        "train_dataset",
        "train_file",
        "train_data",
        "data_path",
        "dataset",
        "dataset_name",
        "dataset_path",
    ),
    "data.eval": ("eval_file", "eval_data", "validation_file", "eval_dataset", "validation"),
    "data.eval_fraction": ("val_size", "test_size", "validation_split", "eval_ratio", "val_set_size"),
    "data.subset": ("dataset_config_name", "dataset_config"),
    "data.train_split": ("dataset_train_split",),
    "data.eval_split": ("dataset_test_split",),
    "data.max_examples": ("max_samples", "max_train_samples"),
    "task.seq_len": (
        *("max_seq_length", "max_seq_len", "max_length", "max_len", "seq_length", "sequence_len"),
        *("sequence_length", "block_size", "cutoff_len", "model_max_length", "context_length"),
    ),
    "task.target_len": ("max_target_length",),
    "task.packing": ("sample_packing",),
    "task.loss_on": ("train_on_inputs", "completion_only_loss", "assistant_only_loss"),
    "task.beta": ("pref_beta",),
    "task.mask_probability": ("mlm_probability",),
    "peft.type": ("adapter", "finetuning_type", "load_in_4bit", "use_peft", "use_lora"),
    "peft.r": ("lora_r", "lora_rank"),
    "peft.lora_alpha": (),
    "peft.lora_dropout": (),
    "peft.target_modules": ("lora_target_modules", "lora_target", "lora_target_linear"),
    "peft.num_virtual_tokens": ("virtual_tokens",),
    "training.learning_rate": ("lr", "lr_rate"),
    "training.num_train_epochs": ("epoch", "epochs", "num_epochs", "n_epochs"),
    "training.per_device_train_batch_size": (
        *("bs", "batch", "batch_size", "train_batch_size", "micro_batch_size"),
        "per_device_batch_size",
    ),
    "training.per_device_eval_batch_size": ("eval_batch_size",),
    "training.gradient_accumulation_steps": (
        *("accumulation_steps", "grad_accum", "grad_acc", "grad_acc_steps", "grad_accum_steps"),
        *("gradient_accumulation", "gas"),
    ),
    "training.lr_scheduler_type": ("scheduler", "lr_scheduler", "lr_schedule"),
    "training.warmup_steps": ("warmup", "num_warmup_steps", "warmup_ratio"),
    "training.eval_strategy": ("evaluation_strategy",),
    "training.train_sampling_strategy": ("group_by_length",),
    "training.weight_decay": ("wd",),
    "training.max_grad_norm": ("clip_grad_norm", "gradient_clipping", "grad_clip", "clip"),
    "training.max_steps": ("steps", "num_steps", "num_train_steps"),
    "training.optim": ("optimizer",),
    "training.output_dir": ("output", "out", "out_dir", "save_dir"),
    "precision": ("mixed_precision",),
}
"""The key of a recipe -> its other names."""

_WITHIN: Mapping[str, Mapping[str, Collection[str]]] = {
    "peft": {
        "peft.r": ("rank",),
        "peft.lora_alpha": ("alpha",),
        "peft.lora_dropout": ("dropout",),
        "peft.target_modules": ("targets", "modules"),
        "peft.num_virtual_tokens": ("prompt_length", "prefix_length"),
    }
}
"""Section -> the names that mean something else outside it: a model has dropout, and no LoRA for that."""


def _by_name(names_of: Mapping[str, Collection[str]]) -> dict[str, str]:
    return {name: key for key, names in names_of.items() for name in names}


_KEYS = _by_name(_SYNONYMS)
_KEYS_WITHIN = {section: _by_name(names_of) for section, names_of in _WITHIN.items()}
_SECTIONS: Mapping[str, type[Section]] = {"model": ModelSection, "data": DataSection, "task": TaskSection}


def meant(section: str, name: str, choices: Iterable[str]) -> str:
    """A hint for a key that its section does not have: its name here, or its section.

    Args:
        section: of the recipe; empty for its top.
        name: the key.
        choices: those that there are.
    """
    choices = list(choices)
    known = _known(section, name, choices)
    if known is None:
        return did_you_mean(name, choices)
    above, _, key = known.rpartition(".")
    if above == section:
        return f"It is called {key}"
    return f"It is {known}" if above else f"It is {key}, of no section"


def key_meant(section: str, name: str, choices: Iterable[str]) -> str | None:
    """The key that the hint of :func:`meant` names, with its section; None where it names none."""
    choices = list(choices)
    known, close = _known(section, name, choices), nearest(name, choices)
    return known or (close and ".".join(filter(None, (section, close))))


def _known(section: str, name: str, choices: Collection[str]) -> str | None:
    """The key under another name, or in another section."""
    whole = _KEYS_WITHIN.get(section, {}).get(name.replace("-", "_")) or full_name(name)
    if whole is None:
        return None
    above, _, key = whole.rpartition(".")
    return whole if (key in choices if above == section else "." not in section) else None


def full_name(name: str) -> str | None:
    """The key that a name means in any section; None if there is none, or several."""
    name = name.replace("-", "_")
    of_the_trainer = set(filter(is_free, installed_types() or {}))
    if name in _KEYS:  # older releases of transformers have some of them themselves
        return f"training.{name}" if name in of_the_trainer else _KEYS[name]
    if name in _SYNONYMS or name in Recipe.model_fields:
        return name
    found = [f"{section}.{name}" for section, model in _SECTIONS.items() if name in model.model_fields]
    found += [key for key in _SYNONYMS if key.rpartition(".")[2] == name and key not in found]
    if not found and name in of_the_trainer:
        return f"training.{name}"
    return found[0] if len(found) == 1 else None
