"""What the Trainer, accelerate and a plain script do to a ds_config before DeepSpeed gets it.

One function for each of theirs, in their order; `trace.py` names the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from zerokit.config.base import AUTO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.config.key_index import canonical, sections
from zerokit.documents import dotted
from zerokit.resolving.auto import FILLED_BY, FREE_TEXT, autos
from zerokit.resolving.filling import Filling
from zerokit.resolving.settle import OVERRIDES, PAIRS

_ZERO = "zero_optimization"
_GATHER = f"{_ZERO}.stage3_gather_16bit_weights_on_model_save"


def as_the_trainer(filling: Filling) -> None:
    _notice_lost_arguments(filling)
    _trainer_process(filling)
    if not _plugin(filling):
        return
    _mixed_precision(filling)
    _trainer_finalize(filling)
    if "optimizer" not in filling.config:
        _allow_untested(filling, "the Trainer builds the optimizer")
    _prepare(filling, {})


def _trainer_process(filling: Filling) -> None:
    arguments, match = filling.arguments, filling.match
    micro, accumulation = arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]
    match(MICRO, micro, "per_device_train_batch_size")
    match(STEPS, accumulation, "gradient_accumulation_steps")
    match(
        TRAIN,
        filling.run.world_size * micro * accumulation,
        *("per_device_train_batch_size", "gradient_accumulation_steps"),
    )
    match("gradient_clipping", arguments["max_grad_norm"], "max_grad_norm")
    match("optimizer.params.lr", arguments["learning_rate"], "learning_rate")
    betas = [arguments["adam_beta1"], arguments["adam_beta2"]]
    match("optimizer.params.betas", betas, "adam_beta1", "adam_beta2")
    match("optimizer.params.eps", arguments["adam_epsilon"], "adam_epsilon")
    match("optimizer.params.weight_decay", arguments["weight_decay"], "weight_decay")
    filling.fill("scheduler.params.warmup_min_lr", 0, "the Trainer writes 0")
    match("scheduler.params.warmup_max_lr", arguments["learning_rate"], "learning_rate")
    for name in ("fp16", "bf16"):
        match(f"{name}.enabled", arguments[name] or arguments[f"{name}_full_eval"], name)


def _plugin(filling: Filling) -> bool:
    """`DeepSpeedPlugin.__post_init__`. False if it raises."""
    if STEPS not in filling.config:
        filling.write(STEPS, 1, "accelerate writes 1 where the key is absent")
    if not isinstance(filling.config.get(_ZERO), dict):
        filling.refused.append(f"accelerate insists on a section {_ZERO}")
        return False
    told = "accelerate, which was told nothing else"
    filling.fill(f"{_ZERO}.stage", 2, told)
    for key in ("offload_optimizer", "offload_param"):
        filling.fill(f"{_ZERO}.{key}.device", "none", told)
        filling.fill(f"{_ZERO}.{key}.nvme_path", "none", told)
    filling.fill(_GATHER, False, told)
    if filling.config.get("steps_per_print") is not None:
        filling.lose("steps_per_print", "accelerate overwrites it, so that DeepSpeed prints nothing")
    filling.write("steps_per_print", math.inf, "accelerate writes infinity, so that DeepSpeed prints nothing")
    return True


def _mixed_precision(filling: Filling) -> None:
    """`DeepSpeedPlugin.set_mixed_precision`."""
    chosen = filling.arguments.mixed_precision
    name = "mixed_precision" if filling.arguments.target == "accelerate" else chosen
    where = filling.arguments.origin(name) if chosen != "no" else "no mixed precision is asked for"
    other = {"fp16": "bf16", "bf16": "fp16"}.get(chosen)
    if chosen != "no" and chosen not in filling.config:
        filling.config[chosen] = {}
        filling.write(f"{chosen}.enabled", True, f"accelerate, from {where}")
        if chosen == "fp16":
            filling.write("fp16.auto_cast", True, "accelerate, where the section is absent")
    if other is not None and str(filling.get(f"{other}.enabled")).lower() == "true":
        filling.refused.append(f"{other}.enabled is true, but {where} asks for {chosen}")
    for section in ("fp16", "bf16"):
        if section not in filling.config:
            filling.config[section] = {}
            filling.write(f"{section}.enabled", False, "accelerate, where the section is absent")
        filling.fill(f"{section}.enabled", section == chosen, f"accelerate, from {where}")
    if chosen != "no" and filling.get(f"{chosen}.enabled") is False and chosen not in filling.origins:
        written = dotted((chosen, "enabled")) not in filling.origins
        if written and filling.arguments.target == "accelerate":
            filling.lose(
                "mixed_precision", f"{chosen} is asked for, but {chosen}.enabled is false in the file"
            )


def _trainer_finalize(filling: Filling) -> None:
    hidden, arguments = filling.run.hidden_size, filling.arguments
    sizes = _sizes(filling)
    filling.fill(f"{_ZERO}.reduce_bucket_size", *sizes["reduce_bucket_size"])
    if filling.get(f"{_ZERO}.stage") == 3:
        for key in ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
            filling.fill(f"{_ZERO}.{key}", *sizes[key])
    elif hidden is None:
        # accelerate fills them later, by the same rule.
        pass
    total = arguments.num_training_steps()
    if filling.get("scheduler.params.total_num_steps") is not None:
        if total is None:
            filling.fill(
                "scheduler.params.total_num_steps", None, "the steps of the run, which the data decide"
            )
        filling.match("scheduler.params.total_num_steps", total, "max_steps")
    warmup = arguments.warmup_steps()
    if warmup is None:
        why = f"{arguments.origin('warmup_steps')}, a share of steps that the data decide"
        filling.fill("scheduler.params.warmup_num_steps", None, why)
    else:
        filling.match("scheduler.params.warmup_num_steps", warmup, "warmup_steps")


def _sizes(filling: Filling) -> dict[str, tuple[int | None, str]]:
    hidden = filling.run.hidden_size
    rules: dict[str, tuple[str, Callable[[int], int]]] = {
        "reduce_bucket_size": ("hidden size squared", lambda size: size * size),
        "stage3_prefetch_bucket_size": ("0.9 x hidden size squared", lambda size: int(0.9 * size * size)),
        "stage3_param_persistence_threshold": ("10 x hidden size", lambda size: 10 * size),
    }
    if hidden is None:
        return {
            key: (None, f"{rule} of the model, which is not given (--model)")
            for key, (rule, _) in rules.items()
        }
    return {key: (size(hidden), f"{rule}, of {hidden}") for key, (rule, size) in rules.items()}


def as_accelerate(filling: Filling) -> None:
    if not _plugin(filling):
        return
    _mixed_precision(filling)
    arguments = filling.arguments
    accumulation = arguments["gradient_accumulation_steps"]
    filling.fill(STEPS, accumulation, arguments.origin("gradient_accumulation_steps"))
    if filling.get(STEPS) != accumulation and "gradient_accumulation_steps" in arguments.given:
        filling.lose(
            "gradient_accumulation_steps",
            f"Accelerator was told {accumulation}, but the config's {filling.get(STEPS)} is used",
        )
    if "optimizer" not in filling.config:
        _allow_untested(filling, "the script builds the optimizer")
    _prepare(filling, _of_the_script(filling))


def _of_the_script(filling: Filling) -> Mapping[str, tuple[Any, str]]:
    """What `_prepare_deepspeed` reads off the data loader, `DummyOptim` and `DummyScheduler`."""
    arguments = filling.arguments
    found: dict[str, tuple[Any, str]] = {}
    batch = arguments["batch_size"]
    found[MICRO] = (batch, arguments.origin("batch_size") if batch else "the batch size of the data loader")
    micro, accumulation = batch if filling.get(MICRO) == AUTO else filling.get(MICRO), filling.get(STEPS)
    if isinstance(micro, int) and isinstance(accumulation, int):
        found[TRAIN] = (micro * accumulation * filling.run.world_size, "micro batch x accumulation x ranks")
    elif TRAIN in filling.own_autos and MICRO in filling.own_autos:
        found[TRAIN] = (None, "micro batch x accumulation x ranks, of which the first is not known")
    if "optimizer" in filling.config:
        for name in ("lr", "weight_decay"):
            found[f"optimizer.params.{name}"] = (arguments[name], f"DummyOptim: {arguments.origin(name)}")
    if "scheduler" in filling.config:
        found |= {
            "scheduler.params.warmup_min_lr": (0, "accelerate writes 0"),
            "scheduler.params.warmup_max_lr": (arguments["lr"], f"the optimizer: {arguments.origin('lr')}"),
            "scheduler.params.warmup_num_steps": (
                max(1, arguments["warmup_num_steps"]),
                f"DummyScheduler: {arguments.origin('warmup_num_steps')}",
            ),
        }
        total = arguments["total_num_steps"]
        if total is not None:
            each = math.ceil(total / filling.run.world_size)
            why = f"DummyScheduler: {arguments.origin('total_num_steps')}, divided by the ranks"
            found["scheduler.params.total_num_steps"] = (each, why)
    return found


def _allow_untested(filling: Filling, why: str) -> None:
    if filling.config.get("zero_allow_untested_optimizer") is False:
        filling.lose("zero_allow_untested_optimizer", f"it is overwritten with true, because {why}")
    filling.write("zero_allow_untested_optimizer", True, why)


def _prepare(filling: Filling, of_the_script: Mapping[str, tuple[Any, str]]) -> None:
    """`Accelerator._prepare_deepspeed`: the last to fill, and the one to refuse what is left."""
    filled = {
        "gradient_clipping": (1.0, "accelerate's own default"),
        _GATHER: (False, "accelerate, which was told nothing else"),
        **of_the_script,
    }
    sizes = {f"{_ZERO}.{key}": size for key, size in _sizes(filling).items()}
    wanted = [name for name in sizes if filling.get(name) == AUTO and not filling.is_unknown(name)]
    if wanted and filling.run.hidden_size_is_nested:
        filling.refused.append(
            f'accelerate finds no hidden size in the model, by which "auto" is filled in {", ".join(wanted)}'
        )
    else:
        filled |= sizes
    for name, (value, why) in filled.items():
        filling.fill(name, value, why)
    if filling.config.get(STEPS, 1) is None and filling.get(MICRO) is not None:
        filling.refused.append(f"{STEPS} is null, by which accelerate multiplies {MICRO}")
    for path in autos(filling.config):
        if not filling.is_unknown(dotted(path)) and not any(isinstance(key, int) for key in path):
            if dotted(path) in wanted:
                continue
            filling.refused.append(f'{dotted(path)} is "auto", which nobody fills, and accelerate refuses it')


def as_deepspeed(filling: Filling) -> None:
    for path in list(autos(filling.config)):
        name = dotted(path)
        if name in FILLED_BY["deepspeed"] | FREE_TEXT:
            continue
        model = sections().get(canonical(path[:-1]))
        if model is not None and model.read_by == "model":  # deepspeed/runtime/config_utils.py
            section, key = filling.node(name)
            if section is not None:
                del section[key]
            filling.lose(name, '"auto" is dropped, and DeepSpeed\'s default applies')
        else:
            filling.refused.append(f'{name} is "auto", which DeepSpeed takes for a value')


def _notice_lost_arguments(filling: Filling) -> None:
    """Arguments of the Trainer that were set and that the config has no key for."""
    given, config = filling.arguments.given, filling.config
    for section, argument in OVERRIDES:
        if section in config and argument in given:
            filling.lose(argument, f"the section '{section}' of the ds_config replaces it")
    for pair in PAIRS:
        first, *below = pair.ds_path
        if first in ("bf16", "fp16") or (below and first not in config):
            continue
        if filling.get(pair.ds_name) is not None or (pair.ds_name == MICRO and TRAIN not in config):
            continue
        if _does_without(pair.ds_name, config):
            continue
        for argument in pair.arguments:
            if argument in given:
                filling.lose(argument, f"'{pair.ds_name}' is absent, so DeepSpeed's own applies")


def _does_without(name: str, config: Mapping[str, Any]) -> bool:
    """Whether the schedule that `config` names has no such parameter."""
    kind = (config.get("scheduler") or {}).get("type")
    if name == "scheduler.params.warmup_max_lr":
        # Absent, WarmupLR takes the optimizer's rate; only WarmupDecayLR has a number of its own.
        return kind != "WarmupDecayLR"
    return name.startswith("scheduler.") and kind not in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
