"""Whole weights of a model in training, so that each rank generates alone; partitioned again afterwards.

Under ZeRO-3 hooks of modules gather each parameter from all ranks for each token. Here all parameters are gathered
once and DeepSpeed's hooks do not run, so its order of modules, its prefetching and its clocks know nothing of it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate, groupby
from typing import Any

from zerokit import console
from zerokit.distributed.ranks import read_ranks
from zerokit.distributed.run_policy import RunPolicy
from zerokit.errors import RankError, ZerokitError
from zerokit.generation.mode import Work, free_memory, shape_of
from zerokit.hardware.cluster import Cluster
from zerokit.memory.generation import GenerationRun, generation_memory
from zerokit.patches import Patch, PrivateAttribute, replace
from zerokit.units import format_bytes

for _name in ("_forward_pre_hooks", "_compiled_call_impl"):
    PrivateAttribute("torch.nn:Module", _name, "generate without the hooks of DeepSpeed")
_ZERO3 = PrivateAttribute(
    "transformers.integrations.deepspeed",
    "_hf_deepspeed_config_weak_ref",
    "have generate() of transformers not wait for other ranks",
)
LIVE_MODES = ("auto", "replicated", "gathered", "sharded")
"""Modes of a model that is loaded."""
_LINEAR = Patch("torch.nn.functional", "linear", "use torch's own, not that of ZeRO-3, which takes twice as long")
PrivateAttribute(
    "deepspeed.runtime.zero.partition_parameters:InsertPostInitMethodToModuleSubClasses",
    "linear_bk",
    "generate with torch's own linear()",
)
_SHARE = 0.8
"""Share of the free memory that gathered weights may take if the size of the KV cache is not known."""
_BUCKET = 50_000_000
"""Elements that one collective gathers, about: DeepSpeed copies them out of its buffer."""


@contextmanager
def gathered(engine: Any, *, mode: str = "auto", work: Work | None = None) -> Iterator[Any]:
    """The model of an engine, in eval mode and with whole weights, to generate with on each rank alone.

    Every rank must enter. Afterwards partitions, order of modules, random states, and modes are as before.

    Args:
        engine: a DeepSpeed engine of any ZeRO stage, or a model, also one in an engine.
        mode: ``gathered`` or ``replicated``: whatever the free memory. ``sharded``: parameters stay partitioned,
            and ranks must make the same forward passes (:func:`steps_with_others`). ``auto``: that where a
            rank's memory is too small.
        work: what this rank decodes at once, for ``auto``; None: not known.

    Raises:
        RankError: another rank has failed inside. A rank that fails raises its own exception.
    """
    model = unwrap(engine)
    parts = _partitioned(model)
    with _kept_state(model), ExitStack() as stack:
        if mode != "sharded" and (mode != "auto" or _fits(model, parts, work)):
            stack.enter_context(_without_hooks(model))
            if parts:
                stack.enter_context(_whole(model))
            # The last: a rank that fails to gather must end, as the others wait for it in another collective.
            stack.enter_context(_failing_together())
        yield model


def unwrap(engine: Any) -> Any:
    """The model in an engine or another wrapper."""
    while hasattr(engine, "module"):
        engine = engine.module
    return engine


def steps_with_others(model: Any) -> bool:
    """Whether each forward pass gathers parameters from other ranks, so that all must make it."""
    return num_ranks() > 1 and any(parameter.numel() == 0 for parameter in _partitioned(model))


def num_ranks() -> int:
    """Ranks of the open process group."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _partitioned(model: Any) -> list[Any]:
    """Parameters that ZeRO-3 has partitioned now, in the same order on all ranks; persistent ones are not."""
    from_zero = (parameter for parameter in model.parameters() if hasattr(parameter, "ds_tensor"))
    return sorted((each for each in from_zero if each.ds_status.name != "AVAILABLE"), key=lambda each: each.ds_id)


def _fits(model: Any, parts: Sequence[Any], work: Work | None) -> bool:
    """Whether all ranks have memory for whole weights; all return the same, and rank 0 prints a no."""
    if not parts:
        return True
    ranks = read_ranks({**os.environ})
    free = -_largest(-free_memory(ranks).device_bytes)
    need: int = sum(part.ds_numel * part.element_size() for part in parts)
    most = int(_SHARE * free)
    if work is not None and (shape := shape_of(model.config)) is not None:
        run = GenerationRun(
            model=shape,
            cluster=Cluster(ranks.world_size, ranks.local_world_size),
            mode="gathered",
            prompt_tokens=work.prompt_tokens,
            new_tokens=work.new_tokens,
            batch_size=work.sequences,
            precision="fp32" if parts[0].element_size() == 4 else "bf16",
        )
        with suppress(ZerokitError):  # no text model
            memory = generation_memory(run)
            # Not its weights: it knows neither quantized ones nor adapters.
            need = (need + memory.kv_cache + memory.workspace) * memory.fragmented // memory.peak
            most = free
    if need > most and ranks.is_main:
        size = f"gathered: needs {format_bytes(need)} of {format_bytes(most)}"
        console.note(f"zerokit: generates under ZeRO-3, all ranks together: {size}")
    return need <= most


def _largest(value: int) -> int:
    """The largest value of all ranks."""
    import torch
    import torch.distributed as dist

    if num_ranks() == 1 or not RunPolicy.current().has_values:
        return value
    device = f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
    found = torch.tensor(value, dtype=torch.int64, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return int(found)


@contextmanager
def _failing_together() -> Iterator[None]:
    """Raise on all ranks if one fails: else the others would wait for it in their next collective."""
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    number = read_ranks({**os.environ}).rank + 1
    last = _largest(number if failed is not None else 0)
    if failed is not None:
        raise failed
    if last:
        raise RankError("has failed while generating", where=f"rank {last - 1}", hint="See what that rank has said")


@contextmanager
def _whole(model: Any) -> Iterator[None]:
    """Give partitioned parameters their whole data. For DeepSpeed they stay partitioned."""
    import torch
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses

    for part in _partitioned(model):
        if part.ds_status.name == "INFLIGHT":  # prefetched
            model.ds_inflight_param_registry[part].wait()
    parts, whole = _partitioned(model), []
    for group in _groups(parts):
        group[0].all_gather_coalesced(group, quantize=hasattr(group[0].ds_tensor, "ds_quant_scale")).wait()
        # Swapping in from NVMe takes a buffer, which the next parameter uses again.
        whole += [part.data.clone() if part.nvme_swapper is not None else part.data for part in group]
        group[0].partition(param_list=group)
    placeholders = [part.data for part in parts]
    usual = torch.nn.functional.linear
    own = getattr(InsertPostInitMethodToModuleSubClasses, "linear_bk", usual)
    try:
        replace(torch.nn.functional, _LINEAR.name, lambda _: own)
        for part, data in zip(parts, whole, strict=True):
            part.data = data
        del whole
        yield
    finally:
        replace(torch.nn.functional, _LINEAR.name, lambda _: usual)
        for part, data in zip(parts, placeholders, strict=True):
            part.data = data


def _groups(parts: Sequence[Any]) -> Iterator[list[Any]]:
    """Parameters to gather in one collective: one if on NVMe (few buffers) or quantized (several stay int8)."""
    ends = accumulate(part.ds_numel for part in parts)

    def kind(item: tuple[int, Any]) -> tuple[Any, ...]:
        end, part = item
        is_single = part.nvme_swapper is not None or hasattr(part.ds_tensor, "ds_quant_scale")
        return is_single, part.ds_id if is_single else end // _BUCKET, part.ds_secondary_tensor is None

    for _, group in groupby(zip(ends, parts, strict=True), kind):
        yield [part for _, part in group]


@contextmanager
def _without_hooks(model: Any) -> Iterator[None]:
    """Remove DeepSpeed's hooks, and code that was compiled with them, and put them back in their order."""
    from transformers.integrations import deepspeed as integration

    kept = [
        (module, module._compiled_call_impl, [(table, list(table.items())) for table in _hooks_of(module)])
        for module in model.modules()
    ]
    reference = getattr(integration, _ZERO3.name)
    config = None if reference is None else reference()
    try:
        integration.unset_hf_deepspeed_config()
        for module, _, tables in kept:
            module._compiled_call_impl = None
            for table, items in tables:
                for key, hook in items:
                    if str(getattr(hook, "__module__", "")).startswith("deepspeed."):
                        del table[key]
        yield
    finally:
        for module, compiled, tables in kept:
            module._compiled_call_impl = compiled
            for table, items in tables:
                table.clear()
                table.update(items)
        if config is not None:
            integration.set_hf_deepspeed_config(config)


def _hooks_of(module: Any) -> tuple[dict[int, Any], ...]:
    return module._forward_pre_hooks, module._forward_hooks


@contextmanager
def _kept_state(model: Any) -> Iterator[None]:
    """Switch to eval mode without gradients; restore modes and random states."""
    import numpy
    import torch

    modes = [(each, each.training) for each in model.modules()]
    states = random.getstate(), numpy.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            model.eval()
            yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        for module, training in modes:
            module.training = training
