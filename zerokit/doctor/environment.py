"""What a bug report needs of a machine, without private information."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from zerokit.doctor.software import ask_torch
from zerokit.errors import visible
from zerokit.extras import package_versions
from zerokit.hardware.host_memory import host_memory_bytes
from zerokit.units import format_bytes

_SHOWN = re.compile(
    r"(?:NCCL|GLOO|CUDA|TORCH|PYTORCH|DS|OMP|MKL|ACCELERATE)_\w+|TOKENIZERS_PARALLELISM|CXX|CC|HF_HUB_OFFLINE|HF_HOME"
    r"|WORLD_SIZE|LOCAL_WORLD_SIZE|LD_LIBRARY_PATH"
)
"""Variables that change a run. No others are printed."""
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@\s]+@")


def environment_report() -> dict[str, Any]:
    """Versions, the system, GPUs and variables."""
    answer = ask_torch()
    return {
        "packages": {"python": platform.python_version(), **package_versions()},
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "host memory": format_bytes(host_memory_bytes()),
        "torch": visible(answer) if isinstance(answer, str) else _torch(answer),
        "environment": _without_owner(sys.prefix),
        "variables": {
            name: _without_owner(value)
            for name, value in sorted(os.environ.items())
            if _SHOWN.fullmatch(name) and not _SECRET.search(name.removeprefix("TOKENIZERS_"))
        },
    }


def _torch(answer: dict[str, Any]) -> dict[str, Any]:
    gpus = [f"{name}, {format_bytes(memory)}, {capability}" for name, memory, capability in answer["gpus"]]
    return {"CUDA": answer["build"] or "a build for CPUs", "NCCL": answer["nccl"] or "-", "GPUs": gpus or "none"}


def _without_owner(text: str) -> str:
    """Text without the home folder's name, and without users in addresses."""
    home = str(Path.home())
    text = text.replace(home, "~") if len(home) > 1 else text
    return visible(_USER.sub("...@", text))
