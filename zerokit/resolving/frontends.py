"""What the Trainer, accelerate and a plain script do to a ds_config before DeepSpeed gets it.

One function for each of theirs, in their order: `trainer_config_process`, `trainer_config_finalize` and
`deepspeed_optim_sched` of transformers `integrations/deepspeed.py`, `DeepSpeedPlugin.__post_init__` and
`set_mixed_precision` of accelerate `utils/dataclasses.py`, `_prepare_deepspeed` of `accelerator.py`.
"""

import json
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.documents import dotted
from zerokit.resolving.auto_word import DEEPSPEEDS_OWN_WORD, FREE_TEXT, autos, is_dropped
from zerokit.resolving.filled_keys import (
    FILLED,
    FINALIZE,
    PLUGIN,
    PRECISION,
    PREPARE,
    PROCESS,
    REPLACED_ARGUMENTS,
    SIZE_RULES,
    Source,
)
from zerokit.resolving.filling import Filling

_STAGE = f"{ZERO}.stage"


def as_the_trainer(filling: Filling) -> None:
    _notice_lost_arguments(filling)
    _fill(filling, PROCESS)
    if not _plugin(filling):
        return
    _mixed_precision(filling)
    _fill(filling, FINALIZE)
    if "optimizer" not in filling.config:
        _allow_untested(filling, "the Trainer builds the optimizer")
    _prepare(filling)


def _fill(filling: Filling, step: str) -> None:
    """What one of their functions fills, in the order of the table."""
    for name, filled in FILLED.items():
        source = filled.trainer if step in (PROCESS, FINALIZE) else filled.accelerate
        if source is None or source.step != step or filled.other == "replaced":
            continue
        if step == FINALIZE and source.size and source.size.stage_3_only and filling.get(_STAGE) != 3:
            continue  # accelerate fills it later, by the same rule
        written, wanted = filling.get(name), filling.wants(name)
        if step == PREPARE and source.size and filling.run.hidden_size_is_nested:
            continue
        if wanted and step == PREPARE and name == TRAIN:
            filling.fill(name, _batch_of_all(filling), source.words)
        elif wanted:
            filling.fill(name, source.value(filling.run), source.why(filling.run))
        elif written is not None and filled.trainer is source and filled.other == "refused":
            _insist(filling, name, source)


def _insist(filling: Filling, name: str, source: Source) -> None:
    """`fill_match` of transformers, where the file has a value."""
    written, value = filling.get(name), source.value(filling.run)
    if value is not None and written != value:
        named = "" if source.arguments == (name,) else f" ({' and '.join(source.arguments)})"
        spelled = json.dumps(written), json.dumps(value, default=str)
        message = f"the ds_config has {name} {spelled[0]}, TrainingArguments {spelled[1]}{named}"
        filling.refuse(name, message, 'Make them equal, or write "auto" in the ds_config')


def _batch_of_all(filling: Filling) -> Any:
    """accelerate multiplies what the config says by then; an "auto" stays where there is no micro batch."""
    micro, accumulation = filling.get(MICRO), filling.get(STEPS)
    groups, left = divmod(filling.run.world_size, filling.run.batch_group())
    if not left and isinstance(micro, int) and isinstance(accumulation, int):
        return micro * accumulation * groups
    return None if left or filling.is_unknown(MICRO) else AUTO


def _plugin(filling: Filling) -> bool:
    """`DeepSpeedPlugin.__post_init__`. False if it raises."""
    if STEPS not in filling.config:
        filling.write(STEPS, 1, "accelerate writes 1 where the key is absent")
    if not isinstance(filling.config.get(ZERO), dict):
        filling.refuse("", f"accelerate requires a section {ZERO}")
        return False
    _fill(filling, PLUGIN)
    for name, filled in FILLED.items():
        if filled.other == "replaced" and filled.accelerate is not None:
            if filling.get(name) is not None:
                filling.lose(name, "accelerate overwrites it, so that DeepSpeed prints nothing")
            filling.write(name, filled.accelerate.value(filling.run), filled.accelerate.words)
    return True


def _mixed_precision(filling: Filling) -> None:
    """`DeepSpeedPlugin.set_mixed_precision`."""
    chosen = filling.arguments.mixed_precision
    name = "mixed_precision" if filling.arguments.target == "accelerate" else chosen
    where = filling.arguments.origin(name) if chosen != "no" else "no mixed precision is requested"
    other = {"fp16": "bf16", "bf16": "fp16"}.get(chosen)
    if chosen != "no" and chosen not in filling.config:
        filling.config[chosen] = {}
        filling.write(f"{chosen}.enabled", True, f"accelerate, from {where}")
        if chosen == "fp16":
            filling.write("fp16.auto_cast", True, "accelerate, where the section is absent")
    if other is not None and str(filling.get(f"{other}.enabled")).lower() == "true":
        filling.refuse(f"{other}.enabled", f"{other}.enabled is true, but {where} requests {chosen}")
    for section in ("fp16", "bf16"):
        if section not in filling.config:
            filling.config[section] = {}
            filling.write(f"{section}.enabled", False, "accelerate, where the section is absent")
    _fill(filling, PRECISION)
    key = f"{chosen}.enabled"
    off = filling.get(key) is False and key not in filling.origins
    if off and filling.arguments.target == "accelerate":
        filling.lose("mixed_precision", f"{chosen} is requested, but {key} is false in the file")


def as_accelerate(filling: Filling) -> None:
    if not _plugin(filling):
        return
    _mixed_precision(filling)
    if "optimizer" not in filling.config:
        _allow_untested(filling, "the script builds the optimizer")
    _prepare(filling)
    steps = filling.arguments.given.get(STEPS)
    if steps is not None and filling.get(STEPS) != steps:
        message = f"Accelerator was given {steps}, but the config's {filling.get(STEPS)} is used"
        filling.lose(STEPS, message)


def _allow_untested(filling: Filling, why: str) -> None:
    if filling.config.get("zero_allow_untested_optimizer") is False:
        filling.lose("zero_allow_untested_optimizer", f"it is overwritten with true, because {why}")
    filling.write("zero_allow_untested_optimizer", True, why)


def _prepare(filling: Filling) -> None:
    """`Accelerator._prepare_deepspeed`: the last to fill, and the one to refuse what is left."""
    wanted = [f"{ZERO}.{key}" for key in SIZE_RULES if filling.wants(f"{ZERO}.{key}")]
    if wanted and filling.run.hidden_size_is_nested:
        for name in wanted:
            filling.refuse(name, f'accelerate finds no hidden size in the model for {name}, which is "auto"')
    _fill(filling, PREPARE)
    if filling.run.parallelism.sequence > 1 and isinstance(total := _batch_of_all(filling), int):
        if TRAIN not in filling.origins and filling.get(TRAIN) not in (None, total):
            filling.lose(TRAIN, f"accelerate overwrites it with {total}: ranks that share a sequence count once")
        filling.write(TRAIN, total, "accelerate, for ranks that share a sequence")
    if filling.config.get(STEPS, 1) is None and filling.get(MICRO) is not None:
        filling.refuse(STEPS, f"{STEPS} is null, by which accelerate multiplies {MICRO}")
    for path in autos(filling.config):
        name = dotted(path)
        known = not filling.is_unknown(name) and name not in wanted
        if known and not any(isinstance(key, int) for key in path):
            filling.refuse(name, f'{name} is "auto", which is not filled in, and accelerate refuses it')


def as_deepspeed(filling: Filling) -> None:
    for path in list(autos(filling.config)):
        name = dotted(path)
        if name in DEEPSPEEDS_OWN_WORD | FREE_TEXT:
            continue
        if is_dropped(path):
            section, key = filling.node(name)
            if section is not None:
                del section[key]
            filling.lose(name, '"auto" is dropped, and DeepSpeed\'s default applies')
        else:
            filling.refuse(name, f'{name} is "auto", which DeepSpeed takes for a value')


def _notice_lost_arguments(filling: Filling) -> None:
    """Arguments of the Trainer that were set and that the config has no key for."""
    given, config = filling.arguments.given, filling.config
    for section, argument in REPLACED_ARGUMENTS.items():
        if section in config and argument in given:
            filling.lose(argument, f"the section '{section}' of the ds_config replaces it")
    kind = (config.get("scheduler") or {}).get("type")
    for name, filled in FILLED.items():
        section, *below = filled.path
        if not filled.lost or (below and section not in config) or filling.get(name) is not None:
            continue
        if (filled.schedules and kind not in filled.schedules) or (name == MICRO and TRAIN not in config):
            continue
        assert filled.trainer is not None
        for argument in filled.trainer.arguments:
            if argument in given:
                filling.lose(argument, f"'{name}' is absent, so DeepSpeed's own applies")
