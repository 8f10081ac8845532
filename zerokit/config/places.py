"""Where keys belong: the hints for keys that nobody reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from zerokit.config.base import Section, second_names
from zerokit.config.root import DeepSpeedConfig
from zerokit.documents import KeyPath, dotted
from zerokit.errors import nearest

_MEANT: Mapping[str, str] = {
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "batch_size": "train_batch_size",
    "global_batch_size": "train_batch_size",
    "max_grad_norm": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "grad_clip": "gradient_clipping",
    "mixed_precision": "bf16.enabled",
    "bfp16": "bf16",
    "lr_scheduler": "scheduler",
    "learning_rate": "optimizer.params.lr",
    "fp32_allreduce": "communication_data_type",
    "zero": "zero_optimization",
    "zero_stage": "zero_optimization.stage",
    "thread_count": "aio.intra_op_parallelism",
    "check_overflow": "bf16.check_grad_overflow",
    "use_data_before_expert_parallel": "use_data_before_expert_parallelism",
}
"""What the key was most likely meant to be: other tools' words, and DeepSpeed's old or misprinted ones."""

_NOT_OURS: Mapping[str, str] = {
    "gradient_checkpointing": "Remove it: it is an argument of the Trainer, not of DeepSpeed",
    "msamp": "Remove it: accelerate writes it by itself",
}

_OPTIMIZER_PARAMS = (
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "adam_w_mode",
    "torch_adam",
    "momentum",
    "bias_correction",
)
_SCHEDULER_PARAMS = (
    "warmup_min_lr",
    "warmup_max_lr",
    "warmup_num_steps",
    "warmup_type",
    "warmup_min_ratio",
    "cos_min_ratio",
    "total_num_steps",
)


@cache
def sections() -> dict[KeyPath, type[Section]]:
    """Every modelled section by its path; ``()`` is the whole config."""
    found: dict[KeyPath, type[Section]] = {}

    def walk(path: KeyPath, model: type[Section]) -> None:
        found[path] = model
        for name, field in model.model_fields.items():
            inner = _section_in(field.annotation)
            if inner is not None:
                walk((*path, name), inner)

    walk((), DeepSpeedConfig)
    return found


def canonical(path: KeyPath) -> KeyPath:
    """The path with keys' second names (`bfloat16`, `prefetch_bucket_size`) replaced by the first ones."""
    result: KeyPath = ()
    for key in path:
        model = sections().get(result)
        names = {other: name for name, other in second_names(model).items()} if model else {}
        result = (*result, names.get(key, key) if isinstance(key, str) else key)
    return result


def as_written(path: KeyPath, data: Any) -> KeyPath:
    """The path in `data`, which may use a key's second name where `path` has the first."""
    result: KeyPath = ()
    for key in path:
        model = sections().get(canonical(result))
        other = second_names(model).get(key) if model and isinstance(key, str) else None
        if other is not None and isinstance(data, Mapping) and key not in data and other in data:
            key = other
        data = data.get(key) if isinstance(data, Mapping) else None
        result = (*result, key)
    return result


def hint_for_unknown(path: KeyPath) -> str:
    """What to do about a key that DeepSpeed does not read at `path`."""
    *parents, key = path
    section = canonical(tuple(parents))
    name = str(key)
    places = _places_of(name)
    if places and section not in places and len(places) <= 3:
        return f"It belongs {_choice(places)}"
    if name in _NOT_OURS:
        return _NOT_OURS[name]
    if name in _MEANT:
        return f"Did you mean '{_MEANT[name]}'?"
    close = nearest(name, _keys_of(section))
    if close is not None:
        return f"Did you mean '{close}'?"
    elsewhere = nearest(name, [known for known in _index() if len(known) > 4])
    if elsewhere is not None and len(name) > 4 and len(_places_of(elsewhere)) == 1:
        return f"Did you mean '{dotted((*_places_of(elsewhere)[0], elsewhere))}'?"
    return f"Remove it, or call it '_{name}' to keep it as a comment"


def _keys_of(path: KeyPath) -> list[str]:
    model = sections().get(path)
    return [*model.model_fields, *second_names(model).values()] if model else []


def _places_of(name: str) -> list[KeyPath]:
    return _index().get(name, [])


@cache
def _index() -> dict[str, list[KeyPath]]:
    index: dict[str, list[KeyPath]] = defaultdict(list)
    for path in sections():
        for name in _keys_of(path):
            index[name].append(path)
    for name in _OPTIMIZER_PARAMS:
        index[name].append(("optimizer", "params"))
    for name in _SCHEDULER_PARAMS:
        index[name].append(("scheduler", "params"))
    return dict(index)


def _choice(places: list[KeyPath]) -> str:
    return " or ".join(f"in '{dotted(place)}'" if place else "at the top of the file" for place in places)


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for part in get_args(annotation):
        inner = _section_in(part)
        if inner is not None:
            return inner
    return None
