"""What transformers, accelerate and DeepSpeed themselves do with a ds_config, without an engine."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import deepspeed
import torch
import transformers
from accelerate import Accelerator, ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, DeepSpeedSequenceParallelConfig, DummyOptim, DummyScheduler
from deepspeed.runtime import config as ds_config
from deepspeed.runtime.sequence_parallel import ulysses_sp
from transformers.integrations import deepspeed as integration

from zerokit.resolving.arguments import TRAINER_DEFAULTS, Arguments

HIDDEN = 64
"""Of the model that they are given."""


class _HandedOverError(Exception):
    """Raised in place of building an engine; carries what DeepSpeed is handed."""


@contextmanager
def without_an_engine() -> Iterator[None]:
    """No process group, no engine, no optimizer for the host, which is compiled, and nothing left behind."""

    def initialize(**options: Any) -> None:
        raise _HandedOverError(options)

    with (
        patch.object(deepspeed, "initialize", initialize),
        patch.object(deepspeed, "tp_model_init", lambda model, **options: model),
        patch("torch.distributed.device_mesh.init_device_mesh"),
        patch.object(ulysses_sp.UlyssesSPAttentionHF, "register_with_transformers"),
        patch.object(ulysses_sp, "UlyssesSPDataLoaderAdapter"),
        patch("accelerate.accelerator.map_pytorch_optim_to_deepspeed", lambda optimizer: optimizer),
        patch("accelerate.accelerator.logger", logging.getLogger("accelerate without its state")),
    ):
        yield
    integration.unset_hf_deepspeed_config()


def hand_over(
    plugin: DeepSpeedPlugin, world_size: int, accumulation: int, *objects: Any, sequence: int = 1
) -> dict[str, Any]:
    """What `Accelerator._prepare_deepspeed` gives to `deepspeed.initialize`: `config_params`, `optimizer`.

    Args:
        sequence: ranks that share each sequence.
    """
    parallelism = None
    if sequence > 1:
        parallelism = ParallelismConfig(
            sp_size=sequence, dp_shard_size=world_size // sequence, sp_handler=DeepSpeedSequenceParallelConfig()
        )
    accelerator = SimpleNamespace(
        fp8_backend=None,
        deepspeed_plugin=plugin,
        parallelism_config=parallelism,
        state=SimpleNamespace(),
        split_batches=False,
        gradient_accumulation_steps=accumulation,
        num_processes=world_size,
        _prepare_one=lambda loader, first_pass: loader,
        device=torch.device("cpu"),
    )
    try:
        Accelerator._prepare_deepspeed(accelerator, *objects)
    except _HandedOverError as handed:
        return handed.args[0]  # type: ignore[no-any-return]
    raise AssertionError("the config was not handed over")


def by_the_trainer(
    config: Mapping[str, Any], arguments: Arguments, world_size: int, sequence: int = 1
) -> dict[str, Any]:
    """The steps of `TrainingArguments.__post_init__` and `Trainer._prepare_for_training`.

    Returns:
        What `deepspeed.initialize` is handed.

    Raises:
        ValueError, AttributeError, TypeError: one of them stops.
    """
    names = (*TRAINER_DEFAULTS, "save_on_each_node")
    values = {name: arguments[name] if name in TRAINER_DEFAULTS else False for name in names}
    args = SimpleNamespace(**values, world_size=world_size, get_process_log_level=lambda: 30)
    args.get_warmup_steps = lambda steps: transformers.TrainingArguments.get_warmup_steps(args, steps)
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(hidden_size=HIDDEN)
    hf_config = integration.HfTrainerDeepSpeedConfig(copy.deepcopy(dict(config)))
    hf_config.trainer_config_process(args)
    plugin = DeepSpeedPlugin(hf_ds_config=hf_config)
    plugin.set_mixed_precision(arguments.mixed_precision)
    trainer = SimpleNamespace(
        model=model,
        args=args,
        accelerator=SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin)),
        create_optimizer=lambda: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    optimizer, scheduler = integration.deepspeed_init(trainer, num_training_steps=arguments["max_steps"])
    objects = (item for item in (model, optimizer, scheduler) if item)
    return hand_over(plugin, world_size, 1, *objects, sequence=sequence)


def by_accelerate(
    config: Mapping[str, Any], arguments: Arguments, world_size: int, sequence: int = 1
) -> dict[str, Any]:
    """The same of a script that prepares a data loader, a model, an optimizer and a schedule."""
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(hidden_size=HIDDEN)
    plugin = DeepSpeedPlugin(hf_ds_config=copy.deepcopy(dict(config)))
    plugin.set_mixed_precision(arguments["mixed_precision"])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=arguments["lr"])
    if "optimizer" in config:
        optimizer = DummyOptim(model.parameters(), lr=arguments["lr"], weight_decay=arguments["weight_decay"])
    objects = [torch.utils.data.DataLoader([0], batch_size=arguments["batch_size"]), model, optimizer]
    if "scheduler" in config:
        steps = (arguments["total_num_steps"], arguments["warmup_num_steps"])
        objects.append(DummyScheduler(optimizer, *steps))
    steps = arguments["gradient_accumulation_steps"]
    return hand_over(plugin, world_size, steps, *objects, sequence=sequence)


def parsed(config: Mapping[str, Any], world_size: int, sequence: int = 1) -> ds_config.DeepSpeedConfig:
    """The config as DeepSpeed reads it on one of `world_size` ranks; raises what it raises."""
    # With sequence parallelism accelerate passes groups on, of the module `parallel_state_sp`.
    mpu = None if sequence == 1 else SimpleNamespace(get_sequence_parallel_world_size=lambda: sequence)
    with (
        patch.object(ds_config.dist, "get_rank", lambda: 0),
        patch.object(ds_config.dist, "get_world_size", lambda: world_size),
    ):
        return ds_config.DeepSpeedConfig(copy.deepcopy(dict(config)), mpu=mpu)
