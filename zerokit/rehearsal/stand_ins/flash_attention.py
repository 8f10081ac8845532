"""The packages flash-attn (2.x) and flash-attn-3 where they are not installed, with the same allocations.

Both need nvcc, or a wheel for a CUDA build of torch, so a machine without a GPU hardly ever has them. An
import finds the stand-in, `importlib.metadata` finds its version, and the functions allocate what the CUDA
kernels would: results by torch's own flash attention operator, working memory of the backward as the
packages' C++ code does (csrc/flash_attn/flash_api.cpp, hopper/flash_api.cpp). Shapes follow flash-attn:
q [batch, sequence, heads, head size], or [tokens, heads, head size] with cumulative lengths; softmax
statistics are float32. Names, parameters and results are those of the release of flash-attn that the
script's project asks for (`flash_attention_release`).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from zerokit.rehearsal.stand_ins.flash_attention_release import NEWEST, Chosen, Release

VERSION_3 = "3.0.0"

_HERE = "zerokit.rehearsal.stand_ins"
_MODULES = {
    "flash_attn": f"{_HERE}.flash_attention_2",
    "flash_attn.flash_attn_interface": f"{_HERE}.flash_attention_2",
    "flash_attn.bert_padding": f"{_HERE}.flash_attention_layers",
    "flash_attn.layers": f"{_HERE}.flash_attention_rotary",
    "flash_attn.layers.rotary": f"{_HERE}.flash_attention_rotary",
    "flash_attn.losses": f"{_HERE}.flash_attention_norms",
    "flash_attn.losses.cross_entropy": f"{_HERE}.flash_attention_norms",
    "flash_attn.ops": f"{_HERE}.flash_attention_layers",
    "flash_attn.ops.triton": f"{_HERE}.flash_attention_layers",
    "flash_attn.ops.triton.cross_entropy": f"{_HERE}.flash_attention_layers",
    "flash_attn.ops.triton.layer_norm": f"{_HERE}.flash_attention_norms",
    "flash_attn.utils": f"{_HERE}.flash_attention_layers",
    "flash_attn.utils.distributed": f"{_HERE}.flash_attention_layers",
    "flash_attn_interface": f"{_HERE}.flash_attention_3",
}
"""Where the contents of each module come from."""
_PACKAGES = {
    "flash_attn",
    *(f"flash_attn.{name}" for name in ("layers", "losses", "ops", "ops.triton", "utils")),
}
_DISTRIBUTIONS = {"flash_attn": "flash-attn", "flash_attn_interface": "flash-attn-3"}
"""The distribution that brings each top-level module."""
_chosen: Chosen | None = None
"""The release of flash-attn, where it is stood in for."""


def install() -> None:
    """Answers imports of flash_attn and flash_attn_interface, each only if the real one is not installed.

    Call before transformers is imported, which remembers what is installed.
    """
    global _chosen
    _chosen = Chosen()
    absent = {
        name for name in _DISTRIBUTIONS if name not in sys.modules and importlib.util.find_spec(name) is None
    }
    if absent:
        # At the end: a real package always goes first.
        sys.meta_path.append(_Finder(absent))


class _Loader(importlib.abc.Loader):
    """Fills a module with the public names of the one that implements it."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = importlib.import_module(_MODULES[module.__name__])
        names = {name: getattr(source, name) for name in source.__all__}
        if module.__name__.partition(".")[0] == "flash_attn":
            from zerokit.rehearsal.stand_ins.flash_attention_calls import of_release

            names = {name: of_release(value, release()) for name, value in names.items()}
        module.__dict__.update({name: value for name, value in names.items() if value is not None})
        if module.__name__ in _DISTRIBUTIONS:
            module.__dict__["__version__"] = _version(module.__name__)


def release() -> Release:
    """The release of flash-attn that is stood in for."""
    return _chosen.release if _chosen is not None else Release(NEWEST)


def told(module: str) -> str | None:
    """What a module stands in for, in words; None if it stands in for no flash attention.

    Args:
        module: its name, as scripts import it, or that of the file that implements it.
    """
    package = module.partition(".")[0]
    if module.startswith(f"{__name__}_"):
        package = "flash_attn_interface" if module == _MODULES["flash_attn_interface"] else "flash_attn"
    else:
        spec = getattr(sys.modules.get(package), "__spec__", None)
        if spec is None or not isinstance(spec.loader, _Loader):
            return None
    words = f"{_DISTRIBUTIONS[package]} {_version(package)}"
    if package != "flash_attn":
        return words
    by = release().asked_by
    return f"{words}, {f'as {by} asks' if by else 'the newest that it knows, since nothing asks for another'}"


def _version(module: str) -> str:
    return release().version if module == "flash_attn" else VERSION_3


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the stand-in modules, and the distributions they pretend to come from."""

    def __init__(self, top_level: set[str]) -> None:
        self._top_level = top_level

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._top_level or name not in _MODULES:
            return None
        # With an origin, so that it is not taken for a namespace package.
        return importlib.machinery.ModuleSpec(name, _Loader(), origin=__file__, is_package=name in _PACKAGES)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        wanted = _normalized(context.name) if context is not None and context.name else None
        for module in sorted(self._top_level):
            name = _DISTRIBUTIONS[module]
            if wanted in (None, _normalized(name)):
                yield _Distribution(name, _version(module), module)


class _Distribution(importlib.metadata.Distribution):
    """Metadata of a package that has no files."""

    def __init__(self, name: str, version: str, module: str) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "top_level.txt": f"{module}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(str(filename))

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)


def _normalized(name: str) -> str:
    return name.replace("_", "-").lower()
