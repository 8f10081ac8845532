"""DeepSpeed's C++ extensions, compiled once per environment, without a way to get stuck.

DeepSpeed lets every rank compile an extension when it first needs it. torch guards this with a lock file that
outlives a killed compiler; every later run then waits forever. zerokit gives its environment a folder of its
own, compiles there on one rank per node under a lock that dies with its holder, and loads on all ranks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from zerokit import console
from zerokit.distributed.group import RankGroup, count_gpus
from zerokit.distributed.process_table import process_with
from zerokit.distributed.shared_memory import check_shared_memory
from zerokit.errors import LaunchError, printable
from zerokit.files import cache_folder, write_file
from zerokit.staging import open_private_file

NINJA = "ninja"
COMPILING = "compiling DeepSpeed's "
"""Beginning of the line that reports a compilation."""


def choose_extensions_folder() -> None:
    """Give this environment a folder for extensions, unless the person has chosen one, and its own ninja."""
    if not os.environ.get("TORCH_EXTENSIONS_DIR"):
        os.environ["TORCH_EXTENSIONS_DIR"] = str(own_folder())
    find_own_ninja(Path(os.environ["TORCH_EXTENSIONS_DIR"]))


def own_folder() -> Path:
    """The folder for the extensions of this environment and torch version. Environments do not share one."""
    import torch

    key = hashlib.sha256(f"{sys.prefix} {torch.__version__}".encode()).hexdigest()[:12]
    return cache_folder() / "extensions" / key


def compile_extensions(group: RankGroup, *, cpu_optimizer: str | None, async_io: bool = False) -> None:
    """Compile what this run needs: communication of CPU ranks, an optimizer on the CPU, I/O for offload.

    Args:
        cpu_optimizer: ``Adam``, ``Adagrad`` or ``Lion`` if it is offloaded.
        async_io: whether anything is offloaded to NVMe.

    Raises:
        LaunchError: no C++ compiler or Python headers, the compiler fails, or too little shared memory.
    """
    names = []
    if count_gpus() == 0:  # DeepSpeed loads it in a world of one, too
        names.append("ShareMemCommBuilder")
    if names and group.ranks.world_size > 1:
        group.together(lambda: check_shared_memory(group.ranks))
    if cpu_optimizer:
        names.append(f"CPU{cpu_optimizer}Builder")
    if async_io:
        names.append("AsyncIOBuilder")
    if names:
        group.node_main_first(lambda: _load_all(names, speaks=group.ranks.is_node_main))


def is_loaded(name: str) -> bool:
    """Whether DeepSpeed has loaded an operator, which is then not compiled."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    return name in OpBuilder._loaded_ops


def check_compiler() -> None:
    """Refuse a machine without a C++ compiler or Python's headers (LaunchError)."""
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


def _load_all(names: list[str], *, speaks: bool) -> None:
    from deepspeed.accelerator import get_accelerator

    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    with _locked(folder, speaks=speaks):
        for name in names:
            builder = get_accelerator().create_op_builder(name)
            if builder is None or is_loaded(builder.name):  # the accelerator needs none, or it is there
                continue
            target = folder / builder.name
            if _is_damaged(target):
                console.note(f"{target} is damaged: it is compiled again")
                shutil.rmtree(target)
            _check_torch_lock(target / "lock")
            if not any(target.glob("*.so")):
                check_compiler()
                console.note(f"{COMPILING}{builder.name}, once per environment: a minute or more")
            _load(builder)
            _write_digest(target)


@contextmanager
def _locked(folder: Path, *, speaks: bool) -> Iterator[None]:
    """Hold the lock of `folder`. The kernel releases it when this process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        guard = open_private_file(folder / "compiling")
    except OSError as error:
        raise LaunchError(
            f"DeepSpeed's extensions cannot be compiled in {printable(folder)}: {error.strerror}",
            where="TORCH_EXTENSIONS_DIR",
            hint="Name a folder there that you may write to",
        ) from None
    with guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            guard.seek(0)
            if speaks:
                holder = guard.read().strip() or "another process"
                console.note(f"waiting for {holder}, which compiles DeepSpeed's extensions in {folder}")
            fcntl.flock(guard, fcntl.LOCK_EX)
        guard.truncate(0)
        guard.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        guard.flush()
        yield


def _check_torch_lock(lock: Path) -> None:
    """Remove torch's lock if it was left behind; otherwise report which process torch will wait for.

    In this environment's own folder only the holder of the guard takes it, and that is this process now.
    """
    if not lock.exists():
        return
    holder = process_with(lock)
    if holder is None and lock.parent.parent == own_folder():
        lock.unlink(missing_ok=True)
        return
    whose = f"process {holder} compiles there" if holder else "remove it if no program compiles there"
    console.note(f"waiting for {lock} to go: {whose}")


_DIGEST = "zerokit.sha256"
"""File with the digest of the compiled library."""


def _digest(target: Path) -> str:
    library = max(target.glob("*.so"), key=lambda file: file.stat().st_mtime, default=None)
    if library is None:
        return ""
    with library.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _is_damaged(target: Path) -> bool:
    """Whether the library differs from the one loaded last; a truncated one would raise SIGBUS."""
    file = target / _DIGEST
    return file.is_file() and file.read_text(encoding="utf-8", errors="replace") != _digest(target)


def _write_digest(target: Path) -> None:
    if target.is_dir() and (_is_damaged(target) or not (target / _DIGEST).is_file()):
        write_file(target / _DIGEST, _digest(target))


_OF_COMPILER = re.compile(r"\berror: |exhausted: |out of memory|No space left on device", re.IGNORECASE)
"""Text in the line in which a compiler, an assembler or a linker reports its error."""
_WIDEST = 300


def _load(builder: Any) -> None:
    try:
        builder.load(verbose=False)
    except Exception as error:
        # The compiler's whole output is in it, below torch's own "Error building extension" and its command.
        lines = str(error).splitlines() or [type(error).__name__]
        cause = next((line for line in lines if _OF_COMPILER.search(line)), lines[0][:_WIDEST]).strip()
        raise LaunchError(
            f"DeepSpeed's {builder.name} cannot be built: {cause}",
            where="this machine",
            hint="Run 'zerokit doctor' to see what this machine lacks",
        ) from error


def own_ninja() -> Path | None:
    """The ninja of this Python's package, else the one next to Python; None if there is none."""
    try:
        files = metadata.files(NINJA) or []
    except metadata.PackageNotFoundError:
        files = []
    brought = [Path(str(file.locate())) for file in files if file.name == NINJA]
    programs = (one for one in (*brought, Path(sys.executable).parent / NINJA) if os.access(one, os.X_OK))
    return next((one.resolve() for one in programs), None)


def find_own_ninja(folder: Path) -> None:
    """Make this process, and those that it starts, find this environment's own ninja first.

    Puts a folder with only a link to it, inside `folder`, at the front of the PATH: its own folder may
    contain compilers that must not come first.
    """
    own, found = own_ninja(), shutil.which(NINJA)
    if own is None or (found is not None and own.samefile(found)):
        return
    linked = folder.absolute() / f"{NINJA}-{hashlib.sha256(os.fsencode(own)).hexdigest()[:12]}"
    try:
        linked.mkdir(parents=True, exist_ok=True)
        (linked / NINJA).symlink_to(own)
    except FileExistsError:
        pass
    except OSError:  # whoever compiles there says so
        return
    os.environ["PATH"] = os.pathsep.join([str(linked), os.environ.get("PATH") or os.defpath])
