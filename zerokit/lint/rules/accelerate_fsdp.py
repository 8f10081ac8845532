"""The YAML of ``accelerate launch``: FSDP, and what divides the processes (`parallelism_config`)."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.launch_file import is_local
from zerokit.documents import KeyPath
from zerokit.lint.launch import Launch
from zerokit.lint.launch_defects import LAUNCH_DEFECTS
from zerokit.lint.rule import Hit, launch_rule

_SECTION, _PREFIX = "parallelism_config", "parallelism_config_"


def _sizes(launch: Launch) -> dict[str, int]:
    """The sizes of `parallelism_config`, 1 by default; empty if there are none, or one is no whole number."""
    section = launch.data.get(_SECTION)
    if not is_local(launch.data) or not isinstance(section, dict) or not section:
        return {}
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
    sizes = {name: section.get(f"{_PREFIX}{name}", 1) for name in names}
    return sizes if all(type(size) is int and size > 0 for size in sizes.values()) else {}


@launch_rule("launch-parallelism")
def launch_parallelism(launch: Launch) -> Iterator[Hit]:
    """Sizes of 'parallelism_config' that do not go together"""
    sizes = _sizes(launch)
    if not sizes:
        return
    replicated, sharded, tensor, context, sequence = sizes.values()
    total = replicated * sharded * tensor * context * sequence
    processes, kind = launch.option("num_processes"), launch.data.get("distributed_type")

    def at(name: str) -> KeyPath:
        key = _PREFIX + name
        return (_SECTION, key) if key in launch.data[_SECTION] else (_SECTION,)

    if context > 1 and sequence > 1:
        message = f"accelerate refuses 'cp_size' {context} together with 'sp_size' {sequence}"
        yield Hit(at("sp_size"), message, "Set one of them to 1")
    elif launch.fsdp_version == 2 and sharded == context == 1:
        message = "FSDP has nothing to shard over: 'dp_shard_size' and 'cp_size' are 1"
        taken = next((name for name in ("tp_size", "dp_replicate_size") if sizes[name] > 1), None)
        lower = f", and lower '{taken}' {sizes[taken]}" if taken else ""
        hint = f"Raise 'dp_shard_size'{lower}: their product is num_processes"
        yield Hit(at("dp_shard_size"), message, f"{hint}; or leave FSDP out")
    elif (tensor > 1 or context > 1) and replicated > 1 and sharded == 1:
        message = f"accelerate refuses 'dp_replicate_size' {replicated} with 'tp_size' or 'cp_size' above 1"
        message += " where 'dp_shard_size' is 1"
        yield Hit(at("dp_replicate_size"), message, "Raise 'dp_shard_size', or set 'dp_replicate_size' to 1")
    elif kind != "DEEPSPEED" and type(processes) is int and total not in (1, processes):
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        message = f"accelerate refuses sizes whose product, {product}, is not 'num_processes' {processes}"
        yield Hit((_SECTION,), message, "Change one of the sizes, such as 'dp_shard_size'")


@launch_rule("launch-known-defect")
def launch_known_defect(launch: Launch) -> Iterator[Hit]:
    """A known defect of accelerate that this file meets"""
    if not is_local(launch.data):
        return
    for defect in LAUNCH_DEFECTS:
        if defect.is_met(launch):
            yield Hit(defect.path, defect.message, defect.advice)
