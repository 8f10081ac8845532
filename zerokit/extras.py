"""Installed packages: those that a run depends on, and those of ``pip install 'zerokit[EXTRA]'``."""

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
    "peft": ("peft",),
    "checkpoint": ("numpy",),
    "prices": ("gpuhunt",),
}
"""The modules that each extra provides."""

PACKAGES = ("zerokit", "torch", "deepspeed", "transformers", "accelerate", "peft", "datasets", "safetensors")
"""Packages of which all machines of a run need the same version."""


def require(extra: str, *, where: str) -> None:
    """Check that the packages of an extra are installed, without importing them. ZerokitError if one is not."""
    if absent := missing_packages(extra):
        raise ZerokitError(
            f"needs the packages of zerokit[{extra}] ({', '.join(absent)} not installed)",
            where=where,
            hint=f"Run {install_command(extra)}",
        )


def install_command(extra: str) -> str:
    """The command that installs an extra, from the folder that zerokit was installed from, if any."""
    try:
        origin = json.loads(metadata.distribution("zerokit").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    editable = origin.get("dir_info", {}).get("editable", False)
    folder = Path(unquote(urlsplit(origin["url"]).path)) if "dir_info" in origin else None
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
    """The versions of the installed :data:`PACKAGES`, without importing them."""
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def version_differences(theirs: Mapping[str, str], own: Mapping[str, str], here: str) -> str:
    """The versions in which another machine differs; empty if there are none.

    Args:
        own: versions of the machine that is called `here`.
        here: name of a machine, as in ``(here 2.8.0)``.
    """
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} ({here} {own.get(name, 'missing')})"
        for name in ("python", *PACKAGES)
        if theirs.get(name) != own.get(name)
    )
