"""Makes this process one rank of a cluster of virtual GPUs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerokit.choices import DEFAULT_PORT
from zerokit.errors import LaunchError
from zerokit.garbage import paused_collection
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.devices import DEFAULT, VirtualDevice, virtual_device
from zerokit.rehearsal.job import Overrides
from zerokit.rehearsal.native import backend as native
from zerokit.rehearsal.native.allocator_settings import AllocatorSettings
from zerokit.rehearsal.scratch import scratch_folder
from zerokit.rehearsal.timing.rank_time import RankTime
from zerokit.rehearsal.watching.steps import RehearsalComplete
from zerokit.rehearsal.worker.virtual_rank import VirtualRank


@contextlib.contextmanager
def virtual_cluster(
    num_gpus: int,
    *,
    gpus_per_node: int = GPUS_PER_NODE,
    rank: int = 0,
    steps: int = 0,
    scan_seconds: float = 0.0,
    device: VirtualDevice | None = None,
    overrides: Overrides | None = None,
    exchange_folder: Path | None = None,
    folder: Path | None = None,
    costs: CardCosts | None = None,
    real_time: bool = False,
    has: Mapping[str, str | None] | None = None,
) -> Iterator[VirtualRank]:
    """Make this process one rank of a cluster that does not exist.

    From here on `torch.cuda` finds a GPU, torch.distributed finds its peers, and DeepSpeed runs as on the
    cluster; tensors on the GPU hold no values. The process stays changed: rehearse each configuration in a
    process of its own.

    Args:
        gpus_per_node: GPUs, and ranks, on each machine.
        steps: optimizer steps after which the run ends, and with it the block; 0 for no end.
        scan_seconds: how long to look for the largest batches of the data, which are rehearsed after `steps`.
        device: the GPU; an H100 with 80 GB if not given.
        exchange_folder: of ranks that are rehearsed at the same time, for the values that they exchange.
        folder: for the script's `output_dir` and files of compilers; the system's if not given.
        has: distributions that the cluster has and this machine does not, and their versions; None for the
            newest one that the stand-in knows.

    Yields:
        the rank, which collects the recording.

    Raises:
        ZerokitError: torch is imported already, there is no C++ compiler, or no such rank.
    """
    cluster = Cluster(num_gpus, gpus_per_node)
    cluster.check_rank(rank)
    if is_running():
        hint = "Rehearse each configuration in a process of its own"
        raise LaunchError("this process plays a rank already", where="rehearsal", hint=hint)
    local_ranks = cluster.local_ranks
    _set_environment(num_gpus, local_ranks, rank)
    device = device or virtual_device(find_gpu(DEFAULT))
    backend = native.load()
    time = None
    if costs is not None:
        time = RankTime(backend, costs, cluster, beside_others=exchange_folder is not None)
    backend.configure(
        own_device=rank % gpus_per_node,
        visible_devices=local_ranks,
        allocator=AllocatorSettings.of_environment(),
        capability=device.capability,
        multiprocessors=device.multiprocessors,
    )
    with paused_collection():
        import torch  # noqa: F401  after the library, which it must find

        from zerokit.rehearsal.stand_ins import torch_cuda
        from zerokit.rehearsal.stand_ins.registry import RankSetup, install_all
        from zerokit.rehearsal.worker.launchers import watch_threads

    torch_cuda.install(backend, device, visible=local_ranks, index=rank % local_ranks)
    backend.take_over()
    with scratch_folder(folder) as generated:
        output_dir = generated / "output_dir"
        output_dir.mkdir()
        virtual_rank = VirtualRank(
            backend,
            num_gpus,
            gpus_per_node,
            rank,
            steps=steps,
            scan_seconds=scan_seconds,
            overrides=overrides or {},
            exchange_folder=exchange_folder,
            output_dir=output_dir,
            time=time,
        )
        install_all(RankSetup(virtual_rank, device, generated, has or {}))
        backend.find_sites_with(virtual_rank.call_sites.find)
        watch_threads(time)
        if time is not None:
            from zerokit.rehearsal.timing import script_clocks

            if not real_time:
                script_clocks.install(time.clock)
            time.count_host_work()
        # The end of the requested steps is the end of the block.
        with contextlib.suppress(RehearsalComplete):
            yield virtual_rank


def _set_environment(num_gpus: int, local_ranks: int, rank: int) -> None:
    os.environ.update(
        ZEROKIT_REHEARSAL="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(DEFAULT_PORT),
        RANK=str(rank),
        WORLD_SIZE=str(num_gpus),
        LOCAL_RANK=str(rank % local_ranks),
        LOCAL_WORLD_SIZE=str(local_ranks),
        DS_ACCELERATOR="cuda",
        # In this process the driver is one without devices (native/no_driver.cpp).
        CUDA_VISIBLE_DEVICES=",".join(str(index) for index in range(local_ranks)),
    )
    # OpenMP threads that wait for work would spin on the cores that the rehearsal runs on.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Variables of another launcher, and one that has torch ask NVML.
    for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "ACCELERATE_USE_CPU", "CROSS_RANK", "CROSS_SIZE"):
        os.environ.pop(name, None)


def is_running() -> bool:
    """Whether this process plays a rank of a virtual cluster."""
    return native.is_loaded() and "torch" in sys.modules
