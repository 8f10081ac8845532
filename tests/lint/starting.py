"""Whether a run starts with the text of a ds_config, as far as its readers decide, and what they read.

The readers are the installed ones: `json` and transformers and accelerate, or hjson, and then
`DeepSpeedConfig`. No engine is built, so that what needs a model or several ranks is not seen.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import hjson
from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys
from pydantic import BaseModel

from tests.resolving.handing_over import by_accelerate, by_the_trainer, parsed, without_an_engine
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.documents import leaves, value_at
from zerokit.resolving.arguments import TRAINER_DEFAULTS, Arguments
from zerokit.resolving.auto_word import Target
from zerokit.resolving.filled_keys import FILLED

WORLDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_ALIASES = {"zero_config": "zero_optimization", "bfloat16_config": "bf16", "float16_config": "fp16"}


class Start(dict[str, Any]):
    """Every value that DeepSpeed read, by its dotted path."""


def run_of(data: Any, target: Target) -> Iterator[tuple[int, Arguments]]:
    """Runs for which the config may have been written: its own numbers, on this or that number of GPUs."""
    fixed = isinstance(value_at(data, (TRAIN,)), int)
    for world in WORLDS if fixed else WORLDS[:1]:
        yield world, Arguments(target, dict(_given(data, target, world)))


def started(text: str, target: Target, world: int, arguments: Arguments) -> Start | str:
    """What DeepSpeed reads, or why nothing starts."""
    try:
        with without_an_engine(), contextlib.redirect_stdout(io.StringIO()):
            config = _read(text, target)
            if target == "trainer":
                config = by_the_trainer(config, arguments, world)["config_params"]
            elif target == "accelerate":
                config = by_accelerate(config, arguments, world)["config_params"]
            return Start(_settings(parsed(config, world)))
    except Exception as error:  # whatever stops them
        return f"{type(error).__name__}: {error}"


def _read(text: str, target: Target) -> Any:
    if target == "deepspeed":
        return hjson.loads(text, object_pairs_hook=dict_raise_error_on_duplicate_keys, use_decimal=False)
    return json.loads(text)


def _given(data: Any, target: Target, world: int) -> Iterator[tuple[str, Any]]:
    """The arguments of which the config speaks, as it has them, and enough of the others."""
    numbers = {key: value_at(data, (key,)) for key in (TRAIN, MICRO, STEPS)}
    micro, steps = numbers[MICRO], numbers[STEPS]
    if target == "accelerate":
        precision = [name for name in ("bf16", "fp16") if _on(value_at(data, (name, "enabled")))]
        yield "mixed_precision", precision[0] if precision else "no"
        yield "batch_size", micro if isinstance(micro, int) else 1
        yield "total_num_steps", 100
        return
    if target == "deepspeed":
        return
    total = value_at(data, ("scheduler", "params", "total_num_steps"))
    yield "max_steps", int(total) if isinstance(total, int | float) else 100
    for filled in FILLED.values():
        written = value_at(data, filled.path)
        if filled.adopted and written is not None and written != "auto":
            for name, value in filled.as_arguments(written).items():
                like = TRAINER_DEFAULTS[name]
                yield name, _on(value) if isinstance(like, bool) else value
    if isinstance(numbers[TRAIN], int):
        micro = micro if isinstance(micro, int) else max(1, numbers[TRAIN] // world)
        yield "per_device_train_batch_size", micro
        if not isinstance(steps, int):
            yield "gradient_accumulation_steps", max(1, numbers[TRAIN] // (micro * world))


def _on(value: Any) -> bool:
    return str(value).lower() in ("true", "1")


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(config).items():
        if name in ("mpu", "_param_dict", "mesh_device"):
            continue
        data = value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value
        inner = leaves(data) if isinstance(data, Mapping) and data else [((), data)]
        for path, leaf in inner:
            shown = leaf if isinstance(leaf, int | float | str | list | None) else repr(leaf).split(" at 0x")[0]
            yield ".".join(map(str, (_ALIASES.get(name, name), *path))), shown
