"""A cluster of virtual GPUs, seen from one of its ranks."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.errors import LaunchError
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.allocator_settings import AllocatorSettings
from zerokit.rehearsal.devices import DEFAULT, VirtualDevice, virtual_device
from zerokit.rehearsal.exchange import ObjectExchange
from zerokit.rehearsal.imports import when_imported
from zerokit.rehearsal.job import Overrides, Values
from zerokit.rehearsal.library import Backend, Model, load
from zerokit.rehearsal.sites import Sites
from zerokit.rehearsal.suppressed_writes import SuppressedWrites

if TYPE_CHECKING:
    from zerokit.rehearsal.collectives import Traffic
    from zerokit.rehearsal.engine import Watch
    from zerokit.rehearsal.recording import Recording


@dataclass
class Cluster:
    """What a rehearsal has seen so far. Made by :func:`virtual_cluster`."""

    num_gpus: int
    gpus_per_node: int
    rank: int
    backend: Backend
    sites: Sites
    suppressed: SuppressedWrites
    traffic: Traffic
    watch: Watch
    exchange: ObjectExchange
    started: float = field(default_factory=time.perf_counter)

    @property
    def steps(self) -> int:
        """Optimizer steps completed."""
        return self.watch.completed

    def recording(self, **meta: Any) -> Recording:
        """Everything up to now; `meta` is added to its meta data."""
        from zerokit.rehearsal.recorded import collect

        return collect(self, meta)


@contextlib.contextmanager
def virtual_cluster(
    num_gpus: int,
    *,
    gpus_per_node: int = 8,
    rank: int = 0,
    steps: int = 0,
    device: VirtualDevice | None = None,
    gpu_memory_bytes: int | None = None,
    overrides: Overrides | None = None,
    values: Values = "none",
    exchange_folder: Path | None = None,
    folder: Path | None = None,
) -> Iterator[Cluster]:
    """Make this process one rank of a cluster that does not exist.

    From here on `torch.cuda` finds a GPU, torch.distributed finds its peers, and DeepSpeed runs as on the
    cluster; tensors on the GPU hold nothing, and what is computed from them is made up by stated rules.
    What the process was before cannot be brought back: rehearse each configuration in a process of its own.

    Args:
        num_gpus: world size.
        gpus_per_node: GPUs, and ranks, on each machine.
        rank: the rank that this process plays.
        steps: optimizer steps after which :class:`~zerokit.rehearsal.engine.RehearsalComplete` ends the
            run; 0 for no end.
        device: the GPU; an H100 with 80 GB if not given.
        gpu_memory_bytes: memory of the GPU, instead of the device's own.
        overrides: changes to the run.
        values: "real" for a real run under the rehearsal's accounting, to check one against the other:
            tensors hold what they would, in host memory; every operator is computed on the CPU; and the ranks
            are `num_gpus` processes that meet over gloo at MASTER_ADDR and MASTER_PORT.
        exchange_folder: where ranks that are rehearsed at the same time hand each other Python objects.
        folder: for what stands in for the script's `output_dir` until the end; the system's if not given.

    Yields:
        the cluster, which collects the recording.

    Raises:
        LaunchError: torch is imported already, there is no C++ compiler, or `rank` is not one of `num_gpus`.
    """
    if not 0 <= rank < num_gpus:
        raise LaunchError(
            f"rank {rank} is not one of {num_gpus}", where="rehearsal", hint="Ranks count from 0"
        )
    if is_running():
        raise LaunchError(
            "this process plays a rank already",
            where="rehearsal",
            hint="Rehearse each configuration in a process of its own",
        )
    device = device or virtual_device(find_gpu(DEFAULT))
    local_ranks = min(num_gpus, gpus_per_node)
    _set_environment(num_gpus, local_ranks, rank, meets_others=values == "real")
    backend = load()
    backend.configure(
        own_device=rank % gpus_per_node,
        visible_devices=local_ranks,
        allocator=AllocatorSettings.of_environment(),
        capability=device.capability,
        multiprocessors=device.multiprocessors,
        compute=values == "real",
    )
    cluster = _assemble(
        backend,
        num_gpus,
        gpus_per_node,
        rank,
        steps,
        device,
        gpu_memory_bytes,
        overrides or {},
        values,
        exchange_folder,
        folder,
    )
    from zerokit.rehearsal.engine import RehearsalComplete

    # The end of the steps that were asked for is the end of the block.
    with contextlib.suppress(RehearsalComplete):
        yield cluster


def _set_environment(num_gpus: int, local_ranks: int, rank: int, *, meets_others: bool) -> None:
    if not meets_others:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", ZEROKIT_REHEARSAL="1")
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(num_gpus),
        LOCAL_RANK=str(rank % local_ranks),
        LOCAL_WORLD_SIZE=str(local_ranks),
        DS_ACCELERATOR="cuda",
        # What a launcher would say. In this process the driver is one without devices (native/no_driver.cpp).
        CUDA_VISIBLE_DEVICES=",".join(str(index) for index in range(local_ranks)),
    )
    # OpenMP threads that wait for work would spin, on the cores that the rehearsal runs on.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # What a launcher of another run may have left behind, and what asks NVML.
    for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "ACCELERATE_USE_CPU", "CROSS_RANK", "CROSS_SIZE"):
        os.environ.pop(name, None)


def _assemble(
    backend: Backend,
    num_gpus: int,
    gpus_per_node: int,
    rank: int,
    steps: int,
    device: VirtualDevice,
    gpu_memory_bytes: int | None,
    overrides: Overrides,
    values: Values,
    exchange_folder: Path | None,
    folder: Path | None,
) -> Cluster:
    import dataclasses

    import torch  # noqa: F401  after the library, which it must find

    from zerokit.rehearsal import (
        collectives,
        compiling,
        cuda,
        engine,
        extensions,
        generation,
        pretrained,
        suppressed_writes,
    )
    from zerokit.rehearsal.stand_ins import flash_attention, many_ranks

    if gpu_memory_bytes is not None:
        device = dataclasses.replace(device, total_bytes=gpu_memory_bytes)
    local_ranks = min(num_gpus, gpus_per_node)
    sites, suppressed = Sites(), SuppressedWrites()
    traffic = collectives.Traffic(backend)
    exchange = ObjectExchange(exchange_folder, rank)
    watch = engine.Watch(backend, traffic, steps=steps, overrides=overrides, folder=folder)
    cuda.install(backend, device, visible=local_ranks, index=rank % local_ranks)
    backend.take_over()
    if values == "real":
        from zerokit.rehearsal import real_collectives

        real_collectives.install(traffic, rank=rank, world_size=num_gpus)
    else:
        collectives.install(traffic, exchange, rank=rank, world_size=num_gpus)
        when_imported("transformers.modeling_utils", pretrained.install)
        when_imported("accelerate.big_modeling", pretrained.refuse_several_gpus)
        when_imported("deepspeed.runtime.zero.utils", engine.agree_with_rank_0)
        when_imported("deepspeed.runtime.comm.coalesced_collectives", many_ranks.install_reduce_scatter)
        when_imported("deepspeed.runtime.zero.partition_parameters", many_ranks.install_all_gather)
        generation.install(backend)
        flash_attention.install()
    backend.find_sites_with(sites.find)
    compiling.install()
    extensions.install()
    suppressed_writes.install(suppressed, backend)
    watch.install()
    when_imported(
        "deepspeed", functools.partial(_install_deepspeed, backend=backend, compute=values == "real")
    )
    return Cluster(num_gpus, gpus_per_node, rank, backend, sites, suppressed, traffic, watch, exchange)


def _install_deepspeed(module: Any, *, backend: Backend, compute: bool) -> None:
    """Stand-ins for what DeepSpeed compiles, once it is imported."""
    import torch

    from zerokit.rehearsal import engine, stand_ins

    def page_locked(num_bytes: int) -> Any:
        with backend.page_locking():
            return torch.empty(num_bytes, dtype=torch.uint8)

    stand_ins.install(compute=compute, page_locked=page_locked)
    engine.patch_bookkeeping(module)


def is_running() -> bool:
    """Whether this process plays a rank of a virtual cluster."""
    from zerokit.rehearsal import library

    return library._backend is not None and "torch" in sys.modules


__all__ = ["Cluster", "Model", "is_running", "virtual_cluster"]
