"""Checks Python, its packages, and the compiler of DeepSpeed's extensions."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerokit.distributed.extensions import NINJA, own_ninja
from zerokit.distributed.nvme import INSTALL_LIBAIO
from zerokit.distributed.process_table import process_with
from zerokit.doctor.result import CheckResult, Status, not_checked, ok
from zerokit.doctor.scripts import run_script
from zerokit.extras import install_command, package_versions

_OLDEST_COMPILER = 9
"""GCC version for the C++17 of torch's headers: torch.utils.cpp_extension.MINIMUM_GCC_VERSION."""
_PATIENCE = 120
"""Timeout in seconds for importing torch, also from a slow disk."""

_ASK_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
gpus = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())] if cuda else []
nccl = torch.cuda.nccl.version() if cuda and torch.distributed.is_nccl_available() else ()
print("zerokit:" + json.dumps({
    "build": torch.version.cuda or torch.version.hip or "",
    "gpus": [[gpu.name, gpu.total_memory, f"sm_{gpu.major}{gpu.minor}"] for gpu in gpus],
    "arches": torch.cuda.get_arch_list() if cuda else [],
    "nccl": ".".join(map(str, nccl)),
}))
"""

_ASK_ASYNC_IO = """
import json, deepspeed
from zerokit.distributed.nvme import has_async_io
from zerokit.errors import LaunchError
try:
    answer = {"has_async_io": has_async_io()}
except LaunchError as error:
    answer = {"problem": error.message}
except Exception as error:
    answer = {"problem": f"DeepSpeed failed to look for it: {type(error).__name__}: {error}"}
print("zerokit:" + json.dumps(answer))
"""


def packages() -> Iterator[CheckResult]:
    """Name the Python, and check the packages of a run."""
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    found = package_versions()
    missing = [name for name in ("torch", "deepspeed", "transformers", "accelerate") if name not in found]
    if missing:
        message = f"{', '.join(missing)} not installed"
        yield CheckResult("packages", "error", message, f"Run {install_command('train')}")
    else:
        yield ok("packages", ", ".join(f"{name} {version}" for name, version in found.items()))


def ask_torch() -> dict[str, Any] | str:
    """What torch reports of this machine, or why it cannot be asked."""
    return _ask(_ASK_TORCH, "torch")


def _ask(script: str, package: str) -> dict[str, Any] | str:
    """The answer of a script in a separate process, or the reason of its failure."""
    try:
        found = run_script(script, patience=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"asking {package} took more than {_PATIENCE} s"
    answer: dict[str, Any] | None = found.value
    return f"asking {package} failed: {found.error}" if answer is None else answer


def gpus(answer: dict[str, Any] | str) -> Iterator[CheckResult]:
    """Check that torch can use the GPUs; `answer` is from :func:`ask_torch`."""
    if isinstance(answer, str):
        if "torch" not in package_versions():
            return  # packages() says so
        yield CheckResult("torch", "error", answer, "Install it anew: pip install --force-reinstall torch")
        return
    build = answer["build"]
    if not answer["gpus"]:
        if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
            message = "there is an NVIDIA driver, but torch sees no GPU" + (
                "" if build else ": it is a build for CPUs"
            )
            yield CheckResult(
                "GPUs", "error", message, "Install a torch for CUDA that suits the driver; see nvidia-smi"
            )
        else:
            yield not_checked("GPUs", "none here: runs on the CPU, over gloo")
        return
    capabilities = {capability for _, _, capability in answer["gpus"]}
    lacking = {one for one in capabilities if not any(_runs_on(arch, one) for arch in answer["arches"])}
    names = ", ".join(sorted({name for name, _, _ in answer["gpus"]}))
    if lacking:
        message = f"torch's build has no code for {', '.join(sorted(lacking))} ({names})"
        yield CheckResult("GPUs", "error", message, "Install a torch whose torch.cuda.get_arch_list() has it")
    else:
        yield ok("GPUs", f"{len(answer['gpus'])} of {names}, CUDA {build}")
    if len({(name, memory) for name, memory, _ in answer["gpus"]}) > 1:
        yield CheckResult("GPUs", "warning", f"of several kinds: {names}", "Choose some by CUDA_VISIBLE_DEVICES")
    if answer["nccl"]:
        yield ok("NCCL", answer["nccl"])
    else:
        yield CheckResult("NCCL", "error", "torch has none", "Install a torch for CUDA from pytorch.org")


def _runs_on(arch: str, capability: str) -> bool:
    """Whether code for `arch` runs on a GPU: sm_80 also on sm_86, PTX of compute_80 on all later ones.

    Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch)
    own = re.fullmatch(r"sm_(\d+)(\d)", capability)
    if match is None or own is None:
        return False
    code, gpu = (int(match[2]), int(match[3])), (int(own[1]), int(own[2]))
    return code <= gpu and (match[1] == "compute" or code[0] == gpu[0])


def compiler(*, needed: bool) -> Iterator[CheckResult]:
    """Check that DeepSpeed's extensions can be compiled; `needed`: whether this run compiles one."""
    status: Status = "error" if needed else "warning"
    why = "which this run needs for DeepSpeed's extensions" if needed else "which DeepSpeed's extensions need"
    name = os.environ.get("CXX") or "c++"
    path = shutil.which(name) or shutil.which("g++")
    if path is None:
        fix = "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora)"
        yield CheckResult("compiler", status, f"no C++ compiler, {why}", fix)
    else:
        yield _compiler_age(path, status)
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        yield CheckResult("headers", status, f"Python's C headers are missing, {why}", "apt install python3-dev")
    if own_ninja() is None and shutil.which(NINJA) is None:
        yield CheckResult("ninja", status, f"no ninja, {why}", "pip install ninja")


def _compiler_age(path: str, status: Status) -> CheckResult:
    try:
        command = [path, "-dumpfullversion", "-dumpversion"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult("compiler", status, f"{path} does not run: {error}", "Name another one by CXX")
    match = re.match(r"(\d+)(?:\.\d+)*", done.stdout.strip())
    if match is None:
        return CheckResult("compiler", status, f"{path} does not say its version", "Name GCC or clang by CXX")
    if int(match[1]) < _OLDEST_COMPILER:
        return CheckResult(
            "compiler",
            status,
            f"{path} is {match[0]}, and torch's headers need GCC {_OLDEST_COMPILER} or later",
            f"apt install g++-{_OLDEST_COMPILER + 4}, then CXX=g++-{_OLDEST_COMPILER + 4}",
        )
    return ok("compiler", f"{path} {match[0]}")


def locks() -> Iterator[CheckResult]:
    """Find locks of killed compilers, for which torch waits forever without a message."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [cache / "torch_extensions"]
    if os.environ.get("TORCH_EXTENSIONS_DIR"):
        folders.append(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
    # torch: FOLDER/py311_cpu/NAME/lock, or FOLDER/NAME/lock. zerokit removes stale locks of its own folders.
    found = [lock for folder in folders for depth in ("*", "*/*") for lock in folder.glob(f"{depth}/lock")]
    left = [lock for lock in found if process_with(lock) is None]
    for lock in left:
        quoted = str(lock).replace("'", r"'\''")  # the line is to be pasted into a shell
        yield CheckResult(
            "extensions",
            "error",
            f"no process of this machine has {lock}: torch waits for it forever",
            f"rm '{quoted}', unless another machine that shares this folder compiles",
        )
    if not left:
        yield ok("extensions", "no stale build lock")


def libaio() -> CheckResult:
    """Check libaio for NVMe offload; a separate process asks DeepSpeed."""
    answer = _ask(_ASK_ASYNC_IO, "deepspeed")
    if isinstance(answer, str) or "problem" in answer:
        return not_checked("libaio", answer if isinstance(answer, str) else answer["problem"])
    if not answer["has_async_io"]:
        message = "not found, or not its headers, which offload to NVMe needs"
        return CheckResult("libaio", "error", message, INSTALL_LIBAIO)
    return ok("libaio", "found")
