"""Checks of this machine: memory, limits, disks, and its network name."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from zerokit.choices import DEFAULT_PORT
from zerokit.distributed.ranks import free_port
from zerokit.distributed.shared_memory import BYTES_PER_RANK, SHARED_MEMORY
from zerokit.doctor.interfaces import is_itself
from zerokit.doctor.result import CheckResult, Status, not_checked, ok
from zerokit.errors import LaunchError
from zerokit.hardware.host_memory import host_memory_bytes
from zerokit.units import GIB, MIB, format_bytes

FINDS_ITSELF = "so other machines would connect to themselves"
NAME_ITS_ADDRESS = (
    "Set its network address in /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to "
    "the interface that 'ip route get OTHER_HOST' names"
)
_LEAST_FILES, _ENOUGH_FILES = 256, 1024
_LEAST_DISK, _ENOUGH_DISK = GIB, 10 * GIB
_SLOW_BYTES_PER_SECOND = 20 * MIB
"""Below this, a checkpoint of a model with 1B parameters takes more than ten minutes."""
_PROBE_BYTES = 16 * MIB
_LAST_PORT = 65535
_RUN_BYTES = 4 * GIB
"""Host memory of torch with CUDA, its libraries, and a small model."""


def shared_memory(folder: Path = SHARED_MEMORY) -> CheckResult:
    """Check /dev/shm, which data loaders, NCCL and CPU ranks of a machine use."""
    try:
        space = os.statvfs(folder)
    except OSError as error:
        return not_checked("shared memory", f"{folder}: {error.strerror}")
    free, whole = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    message = f"{folder} has {format_bytes(free)} of {format_bytes(whole)} free"
    fix = "Remove what earlier runs left there; for a container set --shm-size=16g or --ipc=host"
    if free < 2 * BYTES_PER_RANK:
        return CheckResult("shared memory", "error", message, fix)
    return CheckResult("shared memory", "warning", message, fix) if free < GIB else ok("shared memory", message)


def limits() -> Iterator[CheckResult]:
    """Check the limits of this process, which a run inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    message = f"{soft} can be open at once"
    if soft < _ENOUGH_FILES and soft != resource.RLIM_INFINITY:
        status: Status = "error" if soft < _LEAST_FILES else "warning"
        most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        how = f"ulimit -n {most}" if most >= _ENOUGH_FILES else "Raise nofile in /etc/security/limits.conf"
        yield CheckResult("open files", status, message, f"{how}, before the run")
    else:
        yield ok("open files", message if soft != resource.RLIM_INFINITY else "no limit")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if any(Path("/sys/class/infiniband").glob("*")) and 0 <= locked < GIB:
        message = f"{format_bytes(locked)} can be locked, and InfiniBand locks its buffers"
        yield CheckResult("locked memory", "warning", message, "ulimit -l unlimited, or --ulimit memlock=-1")


def memory(root: Path = Path("/")) -> CheckResult:
    """Check host memory, or the limit of control groups. `root` is the system's root folder."""
    size = host_memory_bytes(root)
    if size < _RUN_BYTES:
        fix = "Raise the container's or the job's limit (--memory, --mem, resources.limits.memory)"
        return CheckResult("host memory", "error", f"{format_bytes(size)} in all, for all ranks here", fix)
    return ok("host memory", format_bytes(size))


def disk(output: Path) -> Iterator[CheckResult]:
    """Check that the output folder can be written, by writing a file of 16 MiB; it need not exist."""
    folder = output.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    fix = "Name another one as training.output_dir"
    try:
        space = os.statvfs(folder)
        seconds = _seconds_to_write(folder)
    except OSError as error:
        yield CheckResult("output", "error", f"{output} cannot be written: {error.strerror}", fix)
        return
    free = space.f_bavail * space.f_frsize
    message = f"{folder} has {format_bytes(free)} free"
    if free < _ENOUGH_DISK:
        status: Status = "error" if free < _LEAST_DISK else "warning"
        yield CheckResult("output", status, message, f"Make room: a checkpoint takes 14 bytes per parameter. {fix}")
    else:
        yield ok("output", message)
    speed = _PROBE_BYTES / max(seconds, 1e-9)
    if speed < _SLOW_BYTES_PER_SECOND:
        message = f"{folder} writes {format_bytes(speed)} per second"
        yield CheckResult("output", "warning", message, "Write to a local disk, and copy the results")


def _seconds_to_write(folder: Path) -> float:
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = time.monotonic()
        file.write(b"\1" * _PROBE_BYTES)
        file.flush()
        os.fsync(file.fileno())
        return time.monotonic() - begin


def network(*, several: bool) -> CheckResult:
    """Check the address of this machine's name, which gloo and DeepSpeed's launcher tell other machines."""
    name = socket.gethostname()
    status: Status = "error" if several else "warning"
    try:
        found = sorted({str(one[4][0]) for one in socket.getaddrinfo(name, None)})
    except OSError as error:
        fix = "Add its address and name to /etc/hosts"
        return CheckResult("host name", status, f"'{name}' leads nowhere: {error.strerror or error}", fix)
    message = f"'{name}' leads to {', '.join(found)}"
    if any(map(is_itself, found)):
        if not several and len(found) == 1 and found[0] in ("127.0.0.1", "::1"):
            return ok("host name", f"{message}: enough for one machine")
        return CheckResult("host name", status, f"{message}, {FINDS_ITSELF}", NAME_ITS_ADDRESS)
    return ok("host name", message)


def port(number: int) -> CheckResult:
    """Check the port of the rendezvous."""
    try:
        free_port(number)
    except LaunchError as error:
        another = number + 11 if number + 11 <= _LAST_PORT else DEFAULT_PORT + 11
        fix = f"Give the launcher another: --master_port {another}; 'ss -ltnp' shows the process"
        return CheckResult("port", "warning", error.message, fix)
    return ok("port", f"{number} is free")
