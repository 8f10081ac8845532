"""What is installed: the packages on which a run depends, and those of ``pip install 'zerokit[EXTRA]'``."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from zerokit.errors import ZerokitError

MODULES = {
    "train": (
        *("torch", "transformers", "deepspeed", "accelerate", "datasets", "tokenizers", "safetensors"),
        *("pyarrow", "huggingface_hub", "jinja2", "ninja", "xxhash"),
    ),
    "rehearse": ("torch", "deepspeed", "numpy", "packaging"),
    "plot": ("matplotlib", "numpy"),
    "peft": ("peft",),
    "checkpoint": ("numpy",),
}
"""Extra -> what it is there to import."""

PACKAGES = ("zerokit", "torch", "deepspeed", "transformers", "accelerate", "peft", "datasets", "safetensors")
"""On which a run depends, and which all of its machines must have alike."""

_WORDS = {
    "train": "training",
    "rehearse": "rehearsal",
    "plot": "plotting",
    "peft": "peft",
    "checkpoint": "checkpoint",
}


def require(extra: str, *, where: str) -> None:
    """See that the packages of an extra are installed, without importing them.

    Args:
        extra: one of :data:`MODULES`.
        where: the command or option that needs them.

    Raises:
        ZerokitError: one is not.
    """
    if absent := missing_packages(extra):
        raise ZerokitError(
            f"needs the {_WORDS[extra]} packages ({', '.join(absent)} not installed)",
            where=where,
            hint=f"Run {install_command(extra)}",
        )


def install_command(extra: str) -> str:
    """The command that installs an extra: from the folder from which zerokit was installed, if from one."""
    try:
        told = json.loads(metadata.distribution("zerokit").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        told = {}
    editable = told.get("dir_info", {}).get("editable", False)
    folder = Path(unquote(urlsplit(told["url"]).path)) if "dir_info" in told else None
    if folder is None or not (folder / "pyproject.toml").is_file():
        return f"pip install 'zerokit[{extra}]'"
    return f"pip install {'--editable ' * editable}{shlex.quote(f'{folder}[{extra}]')}"


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [name for name in MODULES[extra] if not _is_there(name)]


def _is_there(name: str) -> bool:
    if name == "ninja" and shutil.which(name):  # a program; its package is one of the ways to get it
        return True
    return importlib.util.find_spec(name) is not None


def package_versions() -> dict[str, str]:
    """Of those of :data:`PACKAGES` that are installed, without importing them."""
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def version_differences(theirs: Mapping[str, str], own: Mapping[str, str], here: str) -> str:
    """Which versions of another machine are others, in words; empty if none is.

    Args:
        theirs: by name.
        own: those of the machine that is called `here`.
        here: as in ``(here 2.8.0)``.
    """
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} ({here} {own.get(name, 'missing')})"
        for name in ("python", *PACKAGES)
        if theirs.get(name) != own.get(name)
    )
