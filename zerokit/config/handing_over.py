"""What the Trainer, accelerate and a plain script do to a ds_config before DeepSpeed gets it.

One function for each of theirs, in their order; `resolution.py` names the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from zerokit.config.auto import FILLED_BY, FREE_TEXT, autos
from zerokit.config.base import AUTO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.config.places import canonical, sections
from zerokit.config.resolution_steps import Steps
from zerokit.config.resolve import OVERRIDES, PAIRS
from zerokit.documents import dotted

_ZERO = "zero_optimization"
_GATHER = f"{_ZERO}.stage3_gather_16bit_weights_on_model_save"


def as_the_trainer(steps: Steps) -> None:
    _notice_lost_arguments(steps)
    _trainer_process(steps)
    if not _plugin(steps):
        return
    _mixed_precision(steps)
    _trainer_finalize(steps)
    if "optimizer" not in steps.config:
        _allow_untested(steps, "the Trainer builds the optimizer")
    _prepare(steps, {})


def _trainer_process(steps: Steps) -> None:
    arguments, match = steps.arguments, steps.match
    micro, accumulation = arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]
    match(MICRO, micro, "per_device_train_batch_size")
    match(STEPS, accumulation, "gradient_accumulation_steps")
    match(
        TRAIN,
        steps.run.world_size * micro * accumulation,
        *("per_device_train_batch_size", "gradient_accumulation_steps"),
    )
    match("gradient_clipping", arguments["max_grad_norm"], "max_grad_norm")
    match("optimizer.params.lr", arguments["learning_rate"], "learning_rate")
    betas = [arguments["adam_beta1"], arguments["adam_beta2"]]
    match("optimizer.params.betas", betas, "adam_beta1", "adam_beta2")
    match("optimizer.params.eps", arguments["adam_epsilon"], "adam_epsilon")
    match("optimizer.params.weight_decay", arguments["weight_decay"], "weight_decay")
    steps.fill("scheduler.params.warmup_min_lr", 0, "the Trainer writes 0")
    match("scheduler.params.warmup_max_lr", arguments["learning_rate"], "learning_rate")
    for name in ("fp16", "bf16"):
        match(f"{name}.enabled", arguments[name] or arguments[f"{name}_full_eval"], name)


def _plugin(steps: Steps) -> bool:
    """`DeepSpeedPlugin.__post_init__`. False if it raises."""
    if STEPS not in steps.config:
        steps.write(STEPS, 1, "accelerate writes 1 where the key is absent")
    if not isinstance(steps.config.get(_ZERO), dict):
        steps.refused.append(f"accelerate insists on a section {_ZERO}")
        return False
    told = "accelerate, which was told nothing else"
    steps.fill(f"{_ZERO}.stage", 2, told)
    for key in ("offload_optimizer", "offload_param"):
        steps.fill(f"{_ZERO}.{key}.device", "none", told)
        steps.fill(f"{_ZERO}.{key}.nvme_path", "none", told)
    steps.fill(_GATHER, False, told)
    if steps.config.get("steps_per_print") is not None:
        steps.lose("steps_per_print", "accelerate overwrites it, so that DeepSpeed prints nothing")
    steps.write("steps_per_print", math.inf, "accelerate writes infinity, so that DeepSpeed prints nothing")
    return True


def _mixed_precision(steps: Steps) -> None:
    """`DeepSpeedPlugin.set_mixed_precision`."""
    chosen = steps.arguments.mixed_precision
    name = "mixed_precision" if steps.arguments.target == "accelerate" else chosen
    where = steps.arguments.origin(name) if chosen != "no" else "no mixed precision is asked for"
    other = {"fp16": "bf16", "bf16": "fp16"}.get(chosen)
    if chosen != "no" and chosen not in steps.config:
        steps.config[chosen] = {}
        steps.write(f"{chosen}.enabled", True, f"accelerate, from {where}")
        if chosen == "fp16":
            steps.write("fp16.auto_cast", True, "accelerate, where the section is absent")
    if other is not None and str(steps.get(f"{other}.enabled")).lower() == "true":
        steps.refused.append(f"{other}.enabled is true, but {where} asks for {chosen}")
    for section in ("fp16", "bf16"):
        if section not in steps.config:
            steps.config[section] = {}
            steps.write(f"{section}.enabled", False, "accelerate, where the section is absent")
        steps.fill(f"{section}.enabled", section == chosen, f"accelerate, from {where}")
    if chosen != "no" and steps.get(f"{chosen}.enabled") is False and chosen not in steps.origins:
        written = dotted((chosen, "enabled")) not in steps.origins
        if written and steps.arguments.target == "accelerate":
            steps.lose("mixed_precision", f"{chosen} is asked for, but {chosen}.enabled is false in the file")


def _trainer_finalize(steps: Steps) -> None:
    hidden, arguments = steps.run.hidden_size, steps.arguments
    sizes = _sizes(steps)
    steps.fill(f"{_ZERO}.reduce_bucket_size", *sizes["reduce_bucket_size"])
    if steps.get(f"{_ZERO}.stage") == 3:
        for key in ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
            steps.fill(f"{_ZERO}.{key}", *sizes[key])
    elif hidden is None:
        # accelerate fills them later, by the same rule.
        pass
    total = arguments.num_training_steps()
    if steps.get("scheduler.params.total_num_steps") is not None:
        if total is None:
            steps.fill(
                "scheduler.params.total_num_steps", None, "the steps of the run, which the data decide"
            )
        steps.match("scheduler.params.total_num_steps", total, "max_steps")
    warmup = arguments.warmup_steps()
    if warmup is None:
        why = f"{arguments.origin('warmup_steps')}, a share of steps that the data decide"
        steps.fill("scheduler.params.warmup_num_steps", None, why)
    else:
        steps.match("scheduler.params.warmup_num_steps", warmup, "warmup_steps")


def _sizes(steps: Steps) -> dict[str, tuple[int | None, str]]:
    hidden = steps.run.hidden_size
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


def as_accelerate(steps: Steps) -> None:
    if not _plugin(steps):
        return
    _mixed_precision(steps)
    arguments = steps.arguments
    accumulation = arguments["gradient_accumulation_steps"]
    steps.fill(STEPS, accumulation, arguments.origin("gradient_accumulation_steps"))
    if steps.get(STEPS) != accumulation and "gradient_accumulation_steps" in arguments.given:
        steps.lose(
            "gradient_accumulation_steps",
            f"Accelerator was told {accumulation}, but the config's {steps.get(STEPS)} is used",
        )
    if "optimizer" not in steps.config:
        _allow_untested(steps, "the script builds the optimizer")
    _prepare(steps, _of_the_script(steps))


def _of_the_script(steps: Steps) -> Mapping[str, tuple[Any, str]]:
    """What `_prepare_deepspeed` reads off the data loader, `DummyOptim` and `DummyScheduler`."""
    arguments = steps.arguments
    found: dict[str, tuple[Any, str]] = {}
    batch = arguments["batch_size"]
    found[MICRO] = (batch, arguments.origin("batch_size") if batch else "the batch size of the data loader")
    micro, accumulation = batch if steps.get(MICRO) == AUTO else steps.get(MICRO), steps.get(STEPS)
    if isinstance(micro, int) and isinstance(accumulation, int):
        found[TRAIN] = (micro * accumulation * steps.run.world_size, "micro batch x accumulation x ranks")
    elif TRAIN in steps.own_autos and MICRO in steps.own_autos:
        found[TRAIN] = (None, "micro batch x accumulation x ranks, of which the first is not known")
    if "optimizer" in steps.config:
        for name in ("lr", "weight_decay"):
            found[f"optimizer.params.{name}"] = (arguments[name], f"DummyOptim: {arguments.origin(name)}")
    if "scheduler" in steps.config:
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
            each = math.ceil(total / steps.run.world_size)
            why = f"DummyScheduler: {arguments.origin('total_num_steps')}, divided by the ranks"
            found["scheduler.params.total_num_steps"] = (each, why)
    return found


def _allow_untested(steps: Steps, why: str) -> None:
    if steps.config.get("zero_allow_untested_optimizer") is False:
        steps.lose("zero_allow_untested_optimizer", f"it is overwritten with true, because {why}")
    steps.write("zero_allow_untested_optimizer", True, why)


def _prepare(steps: Steps, of_the_script: Mapping[str, tuple[Any, str]]) -> None:
    """`Accelerator._prepare_deepspeed`: the last to fill, and the one to refuse what is left."""
    filled = {
        "gradient_clipping": (1.0, "accelerate's own default"),
        _GATHER: (False, "accelerate, which was told nothing else"),
        **of_the_script,
    }
    sizes = {f"{_ZERO}.{key}": size for key, size in _sizes(steps).items()}
    wanted = [name for name in sizes if steps.get(name) == AUTO and not steps.is_unknown(name)]
    if wanted and steps.run.hidden_size_is_nested:
        steps.refused.append(
            f'accelerate finds no hidden size in the model, by which "auto" is filled in {", ".join(wanted)}'
        )
    else:
        filled |= sizes
    for name, (value, why) in filled.items():
        steps.fill(name, value, why)
    if steps.config.get(STEPS, 1) is None and steps.get(MICRO) is not None:
        steps.refused.append(f"{STEPS} is null, by which accelerate multiplies {MICRO}")
    for path in autos(steps.config):
        if not steps.is_unknown(dotted(path)) and not any(isinstance(key, int) for key in path):
            if dotted(path) in wanted:
                continue
            steps.refused.append(f'{dotted(path)} is "auto", which nobody fills, and accelerate refuses it')


def as_deepspeed(steps: Steps) -> None:
    for path in list(autos(steps.config)):
        name = dotted(path)
        if name in FILLED_BY["deepspeed"] | FREE_TEXT:
            continue
        model = sections().get(canonical(path[:-1]))
        if model is not None and model.read_by == "model":  # deepspeed/runtime/config_utils.py
            section, key = steps.node(name)
            if section is not None:
                del section[key]
            steps.lose(name, '"auto" is dropped, and DeepSpeed\'s default applies')
        else:
            steps.refused.append(f'{name} is "auto", which DeepSpeed takes for a value')


def _notice_lost_arguments(steps: Steps) -> None:
    """Arguments of the Trainer that were set and that the config has no key for."""
    given, config = steps.arguments.given, steps.config
    for section, argument in OVERRIDES:
        if section in config and argument in given:
            steps.lose(argument, f"the section '{section}' of the ds_config replaces it")
    for pair in PAIRS:
        first, *below = pair.ds_path
        if first in ("bf16", "fp16") or (below and first not in config):
            continue
        if steps.get(pair.ds_name) is not None or (pair.ds_name == MICRO and TRAIN not in config):
            continue
        if _does_without(pair.ds_name, config):
            continue
        for argument in pair.arguments:
            if argument in given:
                steps.lose(argument, f"'{pair.ds_name}' is absent, so DeepSpeed's own applies")


def _does_without(name: str, config: Mapping[str, Any]) -> bool:
    """Whether the schedule that `config` names has no such parameter."""
    kind = (config.get("scheduler") or {}).get("type")
    if name == "scheduler.params.warmup_max_lr":
        # Absent, WarmupLR takes the optimizer's rate; only WarmupDecayLR has a number of its own.
        return kind != "WarmupDecayLR"
    return name.startswith("scheduler.") and kind not in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
