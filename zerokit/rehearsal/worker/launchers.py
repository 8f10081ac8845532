"""What a launcher would have given the script beyond the ranks: arguments, variables, a path."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zerokit.choices import Launcher
from zerokit.errors import LaunchError, ZerokitError
from zerokit.patches import Patch, declare, put, wrap
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.timing.rank_time import RankTime, rank_time

_Environment = dict[str, str]
_SET_THREADS = Patch("torch", "set_num_threads", "note how many threads the script wants")
_THREADS = "OMP_NUM_THREADS"

_DEEPSPEED, _MULTI_GPU, _SIMPLE = declare(
    "accelerate.commands.launch",
    *("deepspeed_launcher", "multi_gpu_launcher", "simple_launcher"),
    purpose="take the variables and start nothing",
)

_NOT_TAKEN = (
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"),
)
"""Variables of accelerate that belong to the rehearsal."""


def no_such_module(name: str, why: str = "no such module") -> ZerokitError:
    """The error for a module that cannot be run."""
    hint = "Name one of the current folder or of an installed package, as python -m would find it"
    return ZerokitError(why, where=f"-m {name}", hint=hint)


def check_module(name: str) -> None:
    """As ``python -m``, find a module, for which its packages are imported.

    Raises:
        ZerokitError: there is none, or it is a package that cannot be run.
    """
    try:
        found = find_spec(name)
        is_package = found is not None and found.submodule_search_locations is not None
        if is_package and find_spec(f"{name}.__main__") is None:
            raise no_such_module(name, "is a package without a module __main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # of what a package of it imports
        found = None
    if found is None:
        raise no_such_module(name)


def script_arguments(job: RehearsalJob) -> list[str]:
    """The script's arguments: `deepspeed` puts the local rank first (deepspeed/launcher/launch.py)."""
    if job.launcher != "deepspeed":
        return job.arguments
    local_rank = job.rank % job.cluster.local_ranks
    return [f"--local_rank={local_rank}", *job.arguments]


def prepare(job: RehearsalJob) -> None:
    """Set the variables of `accelerate launch`, if it is the launcher, and the threads of a rank.

    Raises:
        LaunchError: accelerate is not installed, its config cannot be read, or is not of a run on GPUs.
    """
    environment = {**os.environ}
    if job.launcher == "accelerate":
        environment |= _prepare_by_accelerate(job)
    threads = threads_of_launcher(job.launcher, job.cluster.local_ranks, environment)
    if threads is not None:
        import torch

        os.environ[_THREADS] = os.environ.get(_THREADS) or str(threads)
        torch.set_num_threads(threads)
    if (time := rank_time()) is not None:
        time.have_threads(threads)


def _prepare_by_accelerate(job: RehearsalJob) -> _Environment:
    words = f"accelerate launch {shlex.join(job.accelerate_arguments)}" if job.accelerate_arguments else None
    file = job.accelerate_config
    where = file or words or "--launcher accelerate"
    fix_words = "accelerate launch --help lists its options"
    try:
        environment = _accelerate_environment(job)
    except ImportError as error:
        message = f"accelerate cannot be imported: {error}"
        raise LaunchError(message, where=where, hint="Run pip install accelerate") from None
    except SystemExit:  # of argparse, which sees words, and nothing of a file
        message = "accelerate launch refuses this, as printed above"
        raise LaunchError(message, where=words or where, hint=fix_words) from None
    except Exception as error:
        # Without arguments the file is the reason: this one, or the one that accelerate config wrote.
        fixes = ["Fix it by accelerate config"] * bool(file or not words) + [fix_words] * bool(words)
        where = f"{file} with {words}" if file and words else where
        message = f"accelerate launch refuses this: {error}"
        raise LaunchError(message, where=where, hint="; ".join(fixes)) from None
    os.environ.update({name: value for name, value in environment.items() if name not in _NOT_TAKEN})
    for folder in environment.get("PYTHONPATH", "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    return environment


def _accelerate_environment(job: RehearsalJob) -> _Environment:
    """Let accelerate's own command decide, up to the point where it would start processes."""
    from accelerate.commands import launch
    from accelerate.utils import launch as environments

    found: _Environment = {}

    def instead(prepare_environment: Callable[[Namespace], _Environment]) -> Callable[[Namespace], None]:
        return lambda arguments: found.update(prepare_environment(arguments))

    put(_DEEPSPEED, instead(lambda given: environments.prepare_deepspeed_cmd_env(given)[1]))
    put(_MULTI_GPU, instead(environments.prepare_multi_gpu_env))
    put(_SIMPLE, instead(lambda given: environments.prepare_simple_launcher_cmd_env(given)[1]))
    launch.launch_command(launch.launch_command_parser().parse_args(_command(job)))
    if not found:
        raise ValueError("it would not start the script on GPUs")
    return found


def _command(job: RehearsalJob) -> list[str]:
    """Arguments of `accelerate launch`: options of the rehearsal take precedence over its file."""
    nodes = job.cluster.num_nodes
    config = ["--config_file", str(Path(job.accelerate_config))] if job.accelerate_config else []
    return [
        *config,
        *job.accelerate_arguments,
        *("--num_processes", f"{job.num_gpus}", "--num_machines", f"{nodes}"),
        # The port of a single machine, which accelerate tries; 0 lets it choose.
        *(("--main_process_port", "0") if nodes == 1 else ("--main_process_ip", "127.0.0.1")),
        *(("--machine_rank", f"{job.rank // job.gpus_per_node}") if nodes > 1 else ()),
        *(["--module"] if job.module else []),
        job.script,
        *job.arguments,
    ]


# ---- threads for CPU work


def threads_of_launcher(
    launcher: Launcher, local_ranks: int, environment: Mapping[str, str] = os.environ
) -> int | None:
    """The threads of a rank; None: as many as the machine has cores, however many ranks share them.

    torchrun gives each of several ranks one (torch/distributed/run.py) unless OMP_NUM_THREADS is set;
    deepspeed leaves it to OpenMP. What accelerate would set is in `environment` already.
    """
    threads = environment.get(_THREADS, "").partition(",")[0].strip()  # of nested regions the outer one
    if threads.isdecimal() and int(threads) > 0:
        return int(threads)
    return 1 if launcher == "torchrun" and local_ranks > 1 else None


def watch_threads(time: RankTime | None) -> None:
    """Have the script's own number of threads count, too.

    As many as this machine has cores are as many as the cluster's has.
    """

    def set_num_threads(really_set: Any, threads: int) -> None:
        cores = os.cpu_count() or 1
        if threads == 0 and cores < int(os.environ["LOCAL_WORLD_SIZE"]):
            threads = 1  # of cores that a script divides among ranks, this machine has too few
        really_set(threads)
        # It is of one thread alone: torch's loaders set it in those that lock their batches.
        if time is not None and threading.current_thread() is threading.main_thread():
            time.have_threads(None if threads == cores else threads)

    wrap(_SET_THREADS, set_num_threads)
