"""Telling a ds_config from other files that lie beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.documents import Document
from zerokit.errors import DocumentError
from zerokit.lint.accelerate_file import is_accelerate_config

_TELLING = frozenset(
    {
        "bf16",
        "bfloat16",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
    }
)
"""Keys that only a ds_config has at its top."""
_TELLING_BYTES = tuple(f'"{key}"'.encode() for key in sorted(_TELLING))

_OTHERS: tuple[tuple[frozenset[str], int, str], ...] = (
    (frozenset({"model", "data", "task", "training", "generation"}), 2, "a recipe of zerokit"),
    (
        frozenset({"model_type", "architectures", "hidden_size", "transformers_version"}),
        1,
        "the config.json of a model",
    ),
    (frozenset({"tokenizer_class", "added_tokens_decoder", "chat_template"}), 1, "the config of a tokenizer"),
    (frozenset({"added_tokens", "pre_tokenizer", "post_processor"}), 1, "a tokenizer"),
    (frozenset({"weight_map"}), 1, "the index of a checkpoint's weights"),
    (frozenset({"peft_type", "lora_alpha"}), 1, "the config of a peft adapter"),
    (frozenset({"log_history", "best_model_checkpoint"}), 1, "the state of a Trainer"),
    (frozenset({"per_device_train_batch_size", "output_dir", "num_train_epochs"}), 2, "TrainingArguments"),
    (frozenset({"dependencies", "devDependencies"}), 1, "a package of JavaScript"),
    (frozenset({"$schema", "$defs", "properties"}), 2, "a JSON Schema"),
    (frozenset({"cells", "nbformat"}), 2, "a notebook"),
)
"""Keys, how many of them a file must have, and what it is then if it has no telling key of a ds_config."""

_NEOX = frozenset(
    {
        *(
            "pipe_parallel_size",
            "model_parallel_size",
            "num_layers",
            "num_attention_heads",
            "pos_emb",
            "norm",
        ),
        *("max_position_embeddings", "train_iters", "lr_decay_style", "lr_decay_iters", "vocab_file"),
        *("tokenizer_type", "data_path", "eval_interval", "log_interval", "seq_length", "init_method"),
    }
)
"""Keys of GPT-NeoX and Megatron, of which files may write `_` as `-`; DeepSpeed's stand among them."""
_NEOX_LEAST = 4

_WRAPPERS = ("deepspeed", "ds_config", "deepspeed_config", "config")


def looks_like_ds_config(data: Any) -> bool:
    """Whether `data`, found in a folder, is surely meant as a ds_config."""
    if not isinstance(data, Mapping) or _TELLING.isdisjoint(data):
        return False
    return not is_accelerate_config(data) and not _is_of_neox(data)


def _is_of_neox(data: Mapping[Any, Any]) -> bool:
    return len(_NEOX & {str(key).replace("-", "_") for key in data}) >= _NEOX_LEAST


def mentions_ds_config(content: bytes) -> bool:
    """Whether a file that perhaps cannot be parsed has one of the telling keys in quotes."""
    return any(key in content for key in _TELLING_BYTES)


def refuse_other_files(document: Document) -> None:
    """Raise if a file is surely something else than a ds_config.

    Raises:
        DocumentError: it is no JSON object, or another known kind of file.
    """
    data = document.data
    if not isinstance(data, Mapping):
        what = {list: "a list", str: "a text", type(None): "empty"}.get(type(data), "a single value")
        raise DocumentError(
            f"is {what}, not a ds_config", where=document.name, hint="A ds_config is one JSON object { ... }"
        )
    if _is_of_neox(data):
        raise DocumentError(
            "is a config of GPT-NeoX, not a ds_config",
            where=document.name,
            hint="Check the ds_config that GPT-NeoX makes from it and gives to DeepSpeed",
        )
    if not _TELLING.isdisjoint(data):
        return
    for keys, least, what in _OTHERS:
        if len(keys & data.keys()) >= least:
            raise DocumentError(
                f"is {what}, not a ds_config", where=document.name, hint="Name the file for DeepSpeed"
            )
    for key in _WRAPPERS:
        if looks_like_ds_config(data.get(key)):
            raise DocumentError(
                f"holds a ds_config under the key '{key}', where DeepSpeed does not look for it",
                where=document.where((key,)),
                hint=f"Put what stands under '{key}' in a file of its own",
            )
