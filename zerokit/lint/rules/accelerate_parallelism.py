"""The YAML of ``accelerate launch``: the section `parallelism_config`, which divides the processes."""

from collections.abc import Iterator
from math import prod

from zerokit.config.base import ZERO
from zerokit.config.launch_file import is_local, runs_deepspeed
from zerokit.documents import KeyPath, value_at
from zerokit.lint.launch import Launch
from zerokit.lint.rule import Hit, launch_rule

SECTION, _PREFIX = "parallelism_config", "parallelism_config_"
_SEQUENCE = (SECTION, f"{_PREFIX}sp_size")


def _sizes(launch: Launch) -> dict[str, int]:
    """The sizes of `parallelism_config`, 1 by default; empty if there are none, or one is no whole number."""
    section = launch.data.get(SECTION)
    if not is_local(launch.data) or not isinstance(section, dict) or not section:
        return {}
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
    sizes = {name: section.get(f"{_PREFIX}{name}", 1) for name in names}
    return sizes if all(type(size) is int and size > 0 for size in sizes.values()) else {}


@launch_rule("launch-parallelism")
def launch_parallelism(launch: Launch) -> Iterator[Hit]:
    """Sizes of 'parallelism_config' that do not go together"""
    if not (sizes := _sizes(launch)):
        return
    replicated, sharded, tensor, context, sequence = sizes.values()
    total = replicated * sharded * tensor * context * sequence
    processes, kind = launch.option("num_processes"), launch.data.get("distributed_type")

    def at(name: str) -> KeyPath:
        key = _PREFIX + name
        return (SECTION, key) if key in launch.data[SECTION] else (SECTION,)

    if context > 1 and sequence > 1:
        message = f"accelerate refuses 'cp_size' {context} together with 'sp_size' {sequence}"
        yield Hit(at("sp_size"), message, "Set one of them to 1")
    elif launch.fsdp_version == 2 and sharded == context == 1:
        message = "FSDP has nothing to shard over: 'dp_shard_size' and 'cp_size' are 1"
        taken = next((name for name in ("tp_size", "dp_replicate_size") if sizes[name] > 1), None)
        lower = f", and lower '{taken}' {sizes[taken]}" if taken else ""
        hint = f"Raise 'dp_shard_size'{lower}: their product is num_processes; or leave FSDP out"
        yield Hit(at("dp_shard_size"), message, hint)
    elif (tensor > 1 or context > 1) and replicated > 1 and sharded == 1:
        message = f"accelerate refuses 'dp_replicate_size' {replicated} with 'tp_size' or 'cp_size' above 1"
        message += " where 'dp_shard_size' is 1"
        yield Hit(at("dp_replicate_size"), message, "Raise 'dp_shard_size', or set 'dp_replicate_size' to 1")
    elif (kind != "DEEPSPEED" or sequence == 1) and type(processes) is int and total not in (1, processes):
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        message = f"accelerate refuses sizes whose product, {product}, is not 'num_processes' {processes}"
        yield Hit((SECTION,), message, "Change one of the sizes, such as 'dp_shard_size'")


@launch_rule("launch-tensor-parallelism")
def launch_tensor_parallelism(launch: Launch) -> Iterator[Hit]:
    """Tensor parallelism of accelerate, which does not reach DeepSpeed"""
    size = _sizes(launch).get("tp_size", 1)
    if size > 1 and runs_deepspeed(launch.data):
        message = f"'tp_size' {size} does not divide the model under DeepSpeed, only the data"
        hint = f'Write "tensor_parallel": {{"autotp_size": {size}}} into a ds_config in its place'
        yield Hit((SECTION, f"{_PREFIX}tp_size"), message, hint)


def _sequence_size(launch: Launch) -> int:
    """The `sp_size`, which accelerate refuses beside context parallelism."""
    sizes = _sizes(launch)
    return sizes["sp_size"] if sizes.get("cp_size") == 1 else 1


@launch_rule("launch-sequence-parallelism")
def launch_sequence_parallelism(launch: Launch) -> Iterator[Hit]:
    """Sequence parallelism of accelerate that does not start"""
    size, path = _sequence_size(launch), (SECTION, f"{_PREFIX}sp_attn_implementation")
    attention = str(value_at(launch.data, path, "sdpa"))
    if size > 1 and not runs_deepspeed(launch.data):
        message = f"nothing divides the sequences: 'sp_size' {size} works with DeepSpeed only"
        yield Hit(_SEQUENCE, message, "Use distributed_type DEEPSPEED, or 'cp_size' with FSDP")
    elif (
        size > 1
        and attention not in ("sdpa", "flash_attention_2", "flash_attention_3")
        and "flash-attn" not in attention
    ):
        yield Hit(path, f"accelerate refuses 'sp_attn_implementation' '{attention}'", "Use sdpa, or a flash attention")


@launch_rule("launch-sequence-parallel-stage")
def launch_sequence_parallel_stage(launch: Launch) -> Iterator[Hit]:
    """Sequence parallelism of accelerate with a ZeRO stage other than 3"""
    size = _sequence_size(launch)
    stage = launch.in_ds_config((ZERO, "stage")) if launch.names_file else launch.section.get("zero_stage", 2)
    if size > 1 and runs_deepspeed(launch.data) and stage is not None and str(stage) != "3":
        message = f"gradients are 'sp_size' {size} times too large in ZeRO stage {stage}"
        yield Hit(_SEQUENCE, message, "Use ZeRO stage 3")


@launch_rule("launch-sequence-parallel-ranks")
def launch_sequence_parallel_ranks(launch: Launch) -> Iterator[Hit]:
    """Sequence parallelism of accelerate over ranks that DeepSpeed counts otherwise"""
    if (size := _sequence_size(launch)) == 1 or not runs_deepspeed(launch.data):
        return
    sizes, processes = _sizes(launch), launch.option("num_processes")
    total = prod(sizes.values())
    if type(processes) is int and processes != total and sizes["tp_size"] == 1:
        message = f"'sp_size' {size} x data parallelism {total // size} is not 'num_processes' {processes}"
        hint = f"Write '{_PREFIX}dp_shard_size': {processes // size}"
        yield Hit(_SEQUENCE, message, f"Choose a 'sp_size' that divides {processes}" if processes % size else hint)
    if (launch.in_ds_config(("sequence_parallel_size",)) or 1) != 1:
        message = "'sequence_parallel_size' of the ds_config counts the ranks of 'sp_size' again"
        yield Hit(_SEQUENCE, message, "Remove it from the ds_config: accelerate passes the groups on")
    if (launch.in_ds_config(("tensor_parallel", "autotp_size")) or 1) != 1:
        message = "'autotp_size' of the ds_config replaces the groups of 'sp_size'"
        yield Hit(_SEQUENCE, message, "Remove one of them: the two do not go together")
