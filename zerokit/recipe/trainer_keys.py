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
}
"""Arguments with a section of their own, or that contradict what zerokit runs, and what to do instead."""

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
