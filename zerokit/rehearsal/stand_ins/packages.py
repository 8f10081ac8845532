"""Packages that compile with CUDA's toolkit and have a stand-in: their modules and versions."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from zerokit.errors import ZerokitError
from zerokit.tables import table_of

_REHEARSAL = "zerokit.rehearsal"


@dataclass(frozen=True)
class Package:
    """A distribution and the modules that it brings: a row of a packages.json."""

    distribution: str
    newest: str
    """The version that the stand-in reports if `--has` names none."""
    modules: Mapping[str, str]
    """Where in zerokit.rehearsal the contents of each module are; empty for one with only others inside."""
    oldest: str = ""
    """The first version that the stand-in knows; empty: it is the same for all."""
    alias: str = ""
    is_always_found: bool = False
    hidden_from: Sequence[str] = ()
    """Libraries that refuse some releases of it, and without it take another kernel of the same memory."""

    @property
    def top_level(self) -> frozenset[str]:
        return frozenset(module.partition(".")[0] for module in self.modules)


REFUSED = frozenset(
    (
        *("causal_conv1d", "deep_ep", "deep_gemm", "flash_mla", "fused_dense_lib", "mamba_ssm"),
        *("megablocks_ops", "selective_scan_cuda", "transformer_engine"),
    )
)
"""Modules without a stand-in that only a machine with CUDA's toolkit has."""


@functools.cache
def known_packages() -> tuple[Package, ...]:
    """All packages with a stand-in: FlashAttention, and the packages of each folder in `contrib`."""
    own = Path(__file__)
    files = [own, *sorted((own.parents[1] / "contrib").glob("*/packages.json"))]
    return tuple(Package(**row) for file in files for row in table_of(str(file)))


def packages_named(words: Iterable[str]) -> dict[str, str | None]:
    """The distributions that `--has` names, and their versions or None.

    Raises:
        ZerokitError: a word is not PKG or PKG==VERSION, or there is no such stand-in.
    """
    return dict(_package_named(word) for word in words)


def _package_named(word: str) -> tuple[str, str | None]:
    where = f"--has {word}"
    name, equals, version = (part.strip() for part in word.partition("=="))
    named = {alias: package for package in known_packages() for alias in (package.distribution, package.alias)}
    package = named.get(normalized(name))
    if package is None or not name or (equals and not version):
        known = ", ".join(package.distribution for package in known_packages())
        raise ZerokitError(
            "names no package that a rehearsal stands in for",
            where=where,
            hint=f"Write PKG or PKG==VERSION, with PKG one of {known}; others have to be installed here",
        )
    installed = _installed_version(package)
    if version and installed not in (None, version):
        raise ZerokitError(
            f"{package.distribution} {installed} is installed here, and a rehearsal uses what is installed",
            where=where,
            hint="Leave --has out, or rehearse in an environment that lacks the package",
        )
    if version and not _is_known(package, version):
        raise ZerokitError(
            f"the stand-in for {package.distribution} knows versions {package.oldest} to {package.newest}",
            where=where,
            hint="Name one of those, such as the nearest",
        )
    return package.distribution, version or None


def is_installed(module: str) -> bool:
    """Whether a top-level module is there; not if it is only a folder without code, as pip may leave."""
    spec = importlib.util.find_spec(module)
    return spec is not None and not is_folder_without_code(spec)


def is_folder_without_code(spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether Python takes folders for a package that have no module in them, nor in folders inside."""
    if spec.origin is not None or spec.submodule_search_locations is None:
        return False
    endings = tuple(importlib.machinery.all_suffixes())
    files = (
        file
        for folder in spec.submodule_search_locations
        for inside, _, files in os.walk(folder)
        if Path(inside).name != "__pycache__"
        for file in files
    )
    return not any(file.endswith(endings) for file in files)


def _installed_version(package: Package) -> str | None:
    if not any(map(is_installed, package.top_level)):
        return None
    try:
        return importlib.metadata.version(package.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_known(package: Package, version: str) -> bool:
    try:
        own = Version(version)
    except InvalidVersion:
        return False
    return not package.oldest or (Version(package.oldest) <= own and own.release <= Version(package.newest).release)


def package_of(module: str) -> Package | None:
    """The package that brings a module, or brings its parent."""
    parts = module.split(".")
    parents = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((one for name in parents for one in known_packages() if name in one.modules), None)


def package_implemented_by(file: str) -> Package | None:
    own = file.removeprefix(f"{_REHEARSAL}.")
    return next((one for one in known_packages() if own in one.modules.values()), None)


def normalized(name: str) -> str:
    """A distribution's name as pip compares it."""
    return name.replace("_", "-").lower()
