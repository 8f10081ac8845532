"""The fields of transformers' TrainingArguments, read without importing them."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

OWNED = {
    "deepspeed": "Put it in the section 'deepspeed' of the recipe",
    "fsdp": "zerokit runs DeepSpeed ZeRO; remove it",
    "fsdp_config": "zerokit runs DeepSpeed ZeRO; remove it",
    "local_rank": "The launcher sets it; remove it",
    "ddp_timeout": "Remove it: ranks wait 30 minutes for each other in a step, and days for downloads",
    "use_cpu": "Train on CPU with DS_ACCELERATOR=cpu deepspeed launch/train.py ...",
    "push_to_hub": "Upload the finished model with --push-to-hub OWNER/NAME; remove it",
    "hub_token": "Log in with 'hf auth login'; remove it: run.json and checkpoints keep the recipe",
    "save_on_each_node": "Save to a folder that all nodes see; remove it",
    "accelerator_config": "It would change how examples are shared among ranks; remove it",
    "bf16_full_eval": "Evaluation runs in the precision of training; remove it",
    "fp16_full_eval": "Evaluation runs in the precision of training; remove it",
    # What transformers 4 had.
    "overwrite_output_dir": "Replace an earlier run with --force; remove it",
    "no_cuda": "Train on CPU with DS_ACCELERATOR=cpu deepspeed launch/train.py ...",
    "logging_dir": "Remove it: TENSORBOARD_LOGGING_DIR names the folder of tensorboard",
    "save_safetensors": "Remove it: weights are always saved as safetensors",
    "include_tokens_per_second": "Remove it: each log has tokens per second",
    **dict.fromkeys(
        (
            *("fp16_backend", "half_precision_backend", "fp16_opt_level", "use_ipex", "use_mps_device"),
            *("jit_mode_eval", "torchdynamo", "tpu_num_cores", "tpu_metrics_debug", "past_index"),
            *("mp_parameters", "ray_scope", "use_legacy_prediction_loop", "include_inputs_for_metrics"),
            *("dispatch_batches", "split_batches", "push_to_hub_model_id", "push_to_hub_organization"),
            *("push_to_hub_token", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"),
        ),
        "Remove it: transformers 5 has no such argument",
    ),
}
"""Arguments with a section of their own, or that contradict what zerokit runs, and what to do instead."""

_NO_PREDICTIONS = "Remove it: an evaluation keeps losses and scores, no predictions"
_NO_UPLOADS = "Upload the finished model with --push-to-hub OWNER/NAME; remove it"
_NO_DDP = "Remove it: DeepSpeed does not use DistributedDataParallel"
WITHOUT_EFFECT: Mapping[str, tuple[Any, str]] = {
    "do_train": (True, "Remove it: 'zerokit train' trains; --preview COUNT shows examples instead"),
    "do_eval": (
        True,
        "Remove it: what data.eval or data.eval_fraction holds out is evaluated before and after training",
    ),
    "do_predict": (False, "Remove it: 'zerokit generate' runs the trained model"),
    "auto_find_batch_size": (
        False,
        "Set per_device_train_batch_size: 'zerokit estimate' says what fits. Remove it",
    ),
    "disable_tqdm": (True, "Remove it: zerokit shows its own progress"),
    "prediction_loss_only": (True, _NO_PREDICTIONS),
    "eval_do_concat_batches": (True, _NO_PREDICTIONS),
    "eval_use_gather_object": (False, _NO_PREDICTIONS),
    "eval_accumulation_steps": (None, _NO_PREDICTIONS),
    "include_for_metrics": ([], _NO_PREDICTIONS),
    "batch_eval_metrics": (False, _NO_PREDICTIONS),
    "enable_jit_checkpoint": (
        False,
        "Remove it: a run that is asked to stop saves a checkpoint anyway (--save-within)",
    ),
    "hub_model_id": (None, _NO_UPLOADS),
    "hub_strategy": ("every_save", _NO_UPLOADS),
    "hub_always_push": (False, _NO_UPLOADS),
    "hub_revision": (None, _NO_UPLOADS),
    "restore_callback_states_from_checkpoint": (False, "Remove it: no callback here has a state to restore"),
    "parallelism_config": (None, "Remove it: 'zerokit train' divides a model by ZeRO only"),
    "remove_unused_columns": (False, "Remove it: the task makes the columns that the model needs"),
    "label_names": (None, "Remove it: the task names its labels"),
    "length_column_name": ("length", "Remove it: zerokit counts the tokens itself"),
    "use_cache": (False, "Remove it: training needs no cache of keys and values"),
    "ddp_find_unused_parameters": (False, _NO_DDP),
    "ddp_bucket_cap_mb": (None, _NO_DDP),
    "ddp_broadcast_buffers": (None, _NO_DDP),
    "ddp_static_graph": (None, _NO_DDP),
    "ddp_backend": (None, "Remove it: ranks use NCCL on GPUs and gloo on CPUs"),
}
"""Arguments that change nothing here: the value that is what zerokit does anyway, and what to do instead."""


def is_free(name: str) -> bool:
    """Whether a recipe may set an argument, and it changes something."""
    return name not in OWNED and name not in WITHOUT_EFFECT


_CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")  # the newer name
_WORKERS = ("dataloader_num_workers",)
_OFF = (None, False, 0, "no")
_ON_BY_DEFAULT = ("save_strategy",)
NEEDS: Mapping[str, tuple[str, ...]] = {
    "gradient_checkpointing_kwargs": _CHECKPOINTING,
    "activation_checkpointing_kwargs": _CHECKPOINTING,
    "liger_kernel_config": ("use_liger_kernel",),
    "dataloader_persistent_workers": _WORKERS,
    "dataloader_prefetch_factor": _WORKERS,
    "dataloader_multiprocessing_context": _WORKERS,
    "eval_delay": ("eval_strategy",),
    "save_total_limit": ("save_strategy",),
}
"""Arguments that change nothing without one of others."""


def is_on(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an argument is set, or on by default, and not off: ``no``, 0 or false."""
    value = arguments.get(name)
    if value is None:
        return name in _ON_BY_DEFAULT
    return getattr(value, "value", value) not in _OFF


_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "None": None}


@functools.cache
def installed_types() -> Mapping[str, Any] | None:
    """The fields of the installed TrainingArguments from their source, which imports nothing.

    Returns:
        None where transformers is not installed. Names of classes that a text chooses from are ``str``.
    """
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).with_name("training_args.py").read_text(encoding="utf-8")
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    arguments = next(node for node in classes if node.name == "TrainingArguments")
    return {
        field.target.id: _type(field.annotation)
        for field in arguments.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _type(annotation: ast.expr) -> Any:
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            return functools.reduce(operator.or_, (_type(left), _type(right)))
        # As older releases write them.
        case ast.Subscript(ast.Name("Optional"), kind):
            return _type(kind) | None
        case ast.Subscript(ast.Name("Union"), ast.Tuple(kinds)):
            return functools.reduce(operator.or_, map(_type, kinds))
        case ast.Subscript(ast.Name("Literal"), ast.Constant(value)):
            return Literal[value]
        case ast.Subscript(ast.Name(name)) | ast.Name(name):
            return _TYPES.get(name, str)
    return None
