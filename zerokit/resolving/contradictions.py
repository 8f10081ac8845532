"""Make a ds_config and transformers' TrainingArguments agree before anything is loaded.

Both can set the same thing. A key that is absent from the ds_config silently loses the Trainer's argument,
and a key with another value stops the run only after the model is loaded. zerokit lets either of them set
both, and refuses two different values. `filled_keys.py` has the keys and arguments that mean the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerokit.config.base import ZERO
from zerokit.documents import ABSENT, value_at
from zerokit.errors import ConfigError
from zerokit.hardware.cluster import DATA_PARALLEL, Parallelism
from zerokit.models import ModelShape
from zerokit.resolving.arguments import TRAINER_DEFAULTS
from zerokit.resolving.filled_keys import FILLED, REPLACED_ARGUMENTS, FilledKey
from zerokit.resolving.nvme_buffers import NvmeBuffers

_MICRO = "per_device_train_batch_size"
_GATHER = "stage3_gather_16bit_weights_on_model_save"


@dataclass(frozen=True)
class Resolved:
    """A ds_config and TrainingArguments that agree. Left-over "auto"s are ones that the Trainer fills."""

    ds_config: dict[str, Any]
    training: dict[str, Any]

    def nvme_buffers(self, model: ModelShape, ranks: int) -> NvmeBuffers:
        """What the model takes of buffers for parameters on NVMe."""
        element_bytes = 2 if any(self.training.get(name) for name in ("bf16", "fp16")) else 4
        return NvmeBuffers.under(self.ds_config, model, ranks, element_bytes)

    def with_nvme_buffers(self, model: ModelShape, ranks: int) -> Resolved:
        """The same with what the ds_config leaves open of the buffers for parameters on NVMe."""
        if not (missing := self.nvme_buffers(model, ranks).missing(self.ds_config)):
            return self
        zero = self.ds_config[ZERO]
        zero = {**zero, "offload_param": {**zero["offload_param"], **missing}}
        return replace(self, ds_config={**self.ds_config, ZERO: zero})


def resolve_for_trainer(
    ds_config: Mapping[str, Any],
    training: Mapping[str, Any],
    *,
    default_precision: str,
    world_size: int,
    parallelism: Parallelism = DATA_PARALLEL,
    ds_where: str = "ds_config",
    where: Callable[[str], str] = "training.{}".format,
) -> Resolved:
    """Make a ds_config agree with the TrainingArguments that a person set.

    Args:
        training: the arguments that were set; an absent one takes the ds_config's value.
        default_precision: ``bf16``, ``fp16`` or ``fp32``, used when neither side names one.
        parallelism: the recipe's; its tensor parallelism is written into the ds_config.

    Raises:
        ConfigError: both sides set something, differently.
    """
    reconciler = _Reconciler(copy.deepcopy(dict(ds_config)), dict(training), ds_where, where)
    for filled in FILLED.values():
        if filled.adopted:
            reconciler.settle_key(filled)
    reconciler.check_replaced_arguments()
    reconciler.check_total_steps()
    reconciler.settle_precision(default_precision)
    reconciler.settle_train_batch_size(world_size, parallelism)
    if parallelism.group_size > 1 and "train_batch_size" in reconciler.config:
        reconciler.config["train_batch_size"] = "auto"  # transformers compares it with the product of all ranks
    reconciler.settle_tensor_parallelism(parallelism.tensor)
    reconciler.gather_on_save()
    return Resolved(reconciler.config, reconciler.arguments)


@dataclass
class _Reconciler:
    """Makes a ds_config and training arguments agree; each method raises where they differ."""

    config: dict[str, Any]
    arguments: dict[str, Any]
    ds_where: str
    where: Callable[[str], str]

    def settle_key(self, filled: FilledKey) -> None:
        """Take a value of the ds_config over into the arguments."""
        ds_value = value_at(self.config, filled.path, ABSENT)
        if ds_value == "auto":
            return
        if ds_value is ABSENT:
            if filled.added:
                self.config[filled.name] = "auto"
            return
        for name, value in filled.conflicts(ds_value, self.arguments):
            argument = f"{self.arguments[name]}" + (f" ({name})" if name != filled.name else "")
            raise ConfigError(
                f"{self.ds_where} has {filled.name} {value}, TrainingArguments {argument}",
                where=self.where(name),
                hint=f'Make them equal, or write "auto" for {filled.name} in {self.ds_where}',
            )
        for name, value in filled.as_arguments(ds_value).items():
            self.arguments.setdefault(name, value)

    def check_replaced_arguments(self) -> None:
        """Refuse an argument that a section replaces."""
        for section, argument in REPLACED_ARGUMENTS.items():
            if section in self.config and argument in self.arguments:
                raise ConfigError(
                    f"{argument} would have no effect: {self.ds_where} has a section '{section}', which replaces it",
                    where=self.where(argument),
                    hint=f"Remove one of the two; without '{section}' in the ds_config the argument applies",
                )

    def check_total_steps(self) -> None:
        """Compare the schedule's steps with the Trainer's, which the data decide unless max_steps does."""
        total = value_at(self.config, ("scheduler", "params", "total_num_steps"), ABSENT)
        steps = self.arguments.get("max_steps", -1)
        if total in (ABSENT, "auto", steps):
            return
        reason = f"max_steps is {steps}"
        if steps <= 0:
            reason = "the number of examples and epochs decides the steps"
        raise ConfigError(
            f"scheduler.params.total_num_steps in {self.ds_where} is {total}, but {reason}",
            where=self.where("max_steps"),
            hint='Write "auto" for scheduler.params.total_num_steps',
        )

    def settle_precision(self, default: str) -> None:
        """Make exactly one of bf16, fp16 and fp32 explicit on both sides."""
        config, arguments = self.config, self.arguments
        chosen = [name for name in ("bf16", "fp16") if arguments.get(name)]
        if len(chosen) == 2:
            from_config = [name for name in chosen if value_at(config, (name, "enabled")) is True]
            raise ConfigError(
                "both bf16 and fp16 are on"
                + (f" ({' and '.join(from_config)} in {self.ds_where})" * bool(from_config)),
                where=self.where(next((name for name in chosen if name not in from_config), chosen[0])),
                hint="Choose one: bf16 where the GPUs have it",
            )
        if not chosen and not {"bf16", "fp16"} & arguments.keys():
            chosen = [name for name in ("bf16", "fp16") if name == default]
        for name in ("bf16", "fp16"):
            arguments[name] = name in chosen
            if name in chosen or name in config:
                config[name] = {**config.get(name, {}), "enabled": name in chosen}

    def settle_tensor_parallelism(self, size: int) -> None:
        """Write the recipe's `parallel.tensor` as DeepSpeed reads it."""
        section = self.config.get("tensor_parallel") or {}
        if max(section.get("autotp_size") or size, 1) != size:
            raise ConfigError(
                f"tensor_parallel.autotp_size is {section['autotp_size']}, but the run has groups of {size}",
                where=self.ds_where,
                hint="Remove autotp_size: the run decides it",
            )
        if size > 1:
            # With tied embeddings DeepSpeed would leave each rank a part of the logits.
            self.config["tensor_parallel"] = {**section, "autotp_size": size, "vocab_parallel_lm_head": False}

    def settle_train_batch_size(self, world_size: int, parallelism: Parallelism) -> None:
        """Make the accumulation steps follow from the batch sizes, where they are absent."""
        total, arguments = self.config.get("train_batch_size", "auto"), self.arguments
        if total == "auto":
            return
        ranks = parallelism.data_ranks(world_size)
        micro = arguments.get(_MICRO, TRAINER_DEFAULTS[_MICRO])
        if "gradient_accumulation_steps" not in arguments and total % (micro * ranks) == 0:
            arguments["gradient_accumulation_steps"] = total // (micro * ranks)
        steps = arguments.get("gradient_accumulation_steps", 1)
        if total != micro * steps * ranks:
            raise ConfigError(
                f"train_batch_size is {total}, but {micro} per GPU x {steps} accumulation steps x "
                f"{parallelism.describe_data_ranks(ranks)} is {micro * steps * ranks}",
                where=self.ds_where,
                hint="Remove train_batch_size: the other three decide it",
            )

    def gather_on_save(self) -> None:
        """Have stage 3 save whole weights."""
        zero = self.config.setdefault("zero_optimization", {})
        if zero.get("stage") == 3 and zero.setdefault(_GATHER, True) is not True:
            raise ConfigError(
                "the trained model would not be saved, only DeepSpeed's own checkpoint of it",
                where=f"{self.ds_where} (zero_optimization.{_GATHER})",
                hint="Set it to true, or remove it",
            )
