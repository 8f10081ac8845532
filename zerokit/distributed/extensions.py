"""The C++ extensions that DeepSpeed compiles on first use, compiled once and without a way to get stuck.

DeepSpeed lets every rank compile when it first needs an extension. torch guards that with a lock file that
outlives a killed compiler, upon which every later run waits forever without a word. zerokit gives its
environment a folder of its own, compiles there on one rank per node under a lock that dies with its holder,
and says plainly when a compiler is missing, before the model is loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit import console
from zerokit.distributed.group import count_gpus
from zerokit.errors import LaunchError

if TYPE_CHECKING:
    from zerokit.distributed.group import RankGroup


def choose_extensions_folder() -> None:
    """Give this environment a folder for extensions, unless the person has chosen one."""
    if not os.environ.get("TORCH_EXTENSIONS_DIR"):
        os.environ["TORCH_EXTENSIONS_DIR"] = str(own_folder())


def own_folder() -> Path:
    """The folder for the extensions of this environment and torch version.

    In one that environments share, each would compile again what another has compiled.
    """
    import torch

    key = hashlib.sha256(f"{sys.prefix} {torch.__version__}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "zerokit" / "extensions" / key


def compile_extensions(group: RankGroup, *, cpu_optimizer: bool) -> None:
    """Compile what this run needs: communication of CPU ranks, and Adam on the CPU for offload.

    Args:
        group: all ranks; one per node compiles.
        cpu_optimizer: whether the optimizer is offloaded.

    Raises:
        LaunchError: there is no C++ compiler or no Python headers, or the compiler fails.
    """
    names = []
    if count_gpus() == 0 and group.ranks.world_size > 1:
        names.append("ShareMemCommBuilder")
    if cpu_optimizer:
        names.append("CPUAdamBuilder")
    group.together(lambda: _compile(names) if names and group.ranks.is_node_main else None)


def check_compiler() -> None:
    """Check for what compiling an extension takes.

    Raises:
        LaunchError: there is no C++ compiler, or Python's headers are missing.
    """
    if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("g++") is None:
        raise LaunchError(
            "no C++ compiler, with which DeepSpeed builds its extensions",
            where="this machine",
            hint="Install one: 'apt install g++' on Debian and Ubuntu, 'dnf install gcc-c++' on Fedora",
        )
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise LaunchError(
            "Python's C headers are missing, which DeepSpeed needs to build its extensions",
            where="this machine",
            hint="Install them: 'apt install python3-dev' on Debian and Ubuntu",
        )


def _compile(names: list[str]) -> None:
    from deepspeed.accelerator import get_accelerator

    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "compiling").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # the kernel releases it when this process ends, however it ends
        for name in names:
            builder = get_accelerator().create_op_builder(name)
            if builder is None:  # this accelerator has none, and needs none
                continue
            target = folder / builder.name
            if folder == own_folder():
                # Whoever compiles here holds the guard, so a lock that is still there was left behind.
                (target / "lock").unlink(missing_ok=True)
            if not any(target.glob("*.so")):
                check_compiler()
                console.note(f"compiling DeepSpeed's {builder.name}, once per environment: about a minute")
            _load(builder)


def _load(builder: Any) -> None:
    try:
        builder.load(verbose=False)
    except Exception as error:
        # The compiler's whole output is in it: the first line that names an error is the cause.
        lines = str(error).splitlines() or [type(error).__name__]
        cause = next((line for line in lines if "error" in line.lower()), lines[0])
        raise LaunchError(
            f"DeepSpeed's {builder.name} cannot be built: {cause}",
            where="this machine",
            hint="Run 'ds_report' to see what DeepSpeed finds",
        ) from error
