"""Packages that are compiled with CUDA's toolkit, stood in for where they are not installed.

Each needs nvcc, or a wheel for a CUDA build of torch, so a machine without a GPU hardly ever has one. An
import finds the stand-in, `importlib.metadata` its version; its functions allocate what the compiled code
would and compute nothing. flash-attn is found by all who look, as libraries leave the choice of it to the
script; another package only where the script cannot do without it (`needed_packages`): a library that finds
one by chance, as transformers may find Apex, would take another way than on a cluster without.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from zerokit.rehearsal.call_sites import is_own_code
from zerokit.rehearsal.stand_ins import flash_attention
from zerokit.rehearsal.stand_ins.flash_attention_release import Release
from zerokit.rehearsal.stand_ins.needed_packages import Needed, own_line
from zerokit.whose_code import INSTALLED, is_pythons

_HERE = "zerokit.rehearsal.stand_ins"


@dataclass(frozen=True)
class Package:
    """What a distribution brings."""

    distribution: str
    version: str | None
    """That it is like; None: the release of flash-attn that the script's project asks for."""
    modules: Mapping[str, str]
    """In which file of this folder each module's contents are."""
    also_called: str = ""
    """Another name of it, in requirements."""
    is_always_found: bool = False
    hidden_from: frozenset[str] = frozenset()
    """Libraries that would choose it by themselves, without it take another kernel of the same memory, and
    refuse releases of it."""

    @property
    def top_level(self) -> frozenset[str]:
        return frozenset(module.partition(".")[0] for module in self.modules)

    @property
    def release(self) -> Release:
        return flash_attention.release() if self.version is None else Release(self.version)


PACKAGES = (
    Package(
        "flash-attn",
        None,
        {
            "flash_attn": "flash_attention_2",
            "flash_attn.flash_attn_interface": "flash_attention_2",
            "flash_attn.bert_padding": "flash_attention_layers",
            "flash_attn.layers": "flash_attention_rotary",
            "flash_attn.layers.rotary": "flash_attention_rotary",
            "flash_attn.losses": "flash_attention_norms",
            "flash_attn.losses.cross_entropy": "flash_attention_norms",
            "flash_attn.modules": "flash_attention_2",
            "flash_attn.modules.mha": "flash_attention_2",
            "flash_attn.ops": "flash_attention_layers",
            "flash_attn.ops.triton": "flash_attention_layers",
            "flash_attn.ops.triton.cross_entropy": "flash_attention_layers",
            "flash_attn.ops.triton.layer_norm": "flash_attention_norms",
            "flash_attn.utils": "flash_attention_layers",
            "flash_attn.utils.distributed": "flash_attention_layers",
        },
        is_always_found=True,
        hidden_from=frozenset({"xformers"}),
    ),
    Package(
        "flash-attn-3",
        flash_attention.VERSION_3,
        {"flash_attn_interface": "flash_attention_3"},
        is_always_found=True,
    ),
    # Of flash-attn's csrc, each built by itself.
    Package("rotary-emb", "0.1", {"rotary_emb": "compiled.rotary_emb"}),
    Package("dropout-layer-norm", "0.1", {"dropout_layer_norm": "compiled.dropout_layer_norm"}),
    Package("xentropy-cuda-lib", "0.1", {"xentropy_cuda_lib": "compiled.xentropy_cuda_lib"}),
    Package(
        "nv-grouped-gemm",
        "1.1.4.post8",
        {
            "grouped_gemm": "compiled.grouped_gemm",
            "grouped_gemm.ops": "compiled.grouped_gemm_ops",
            "grouped_gemm.backend": "compiled.grouped_gemm_backend",
        },
        also_called="grouped-gemm",
    ),
    Package(
        "apex",
        "0.1",
        {
            "apex": "compiled.apex",
            "apex.multi_tensor_apply": "compiled.apex_multi_tensor_apply",
            "apex.normalization": "compiled.apex_normalization",
            "apex.normalization.fused_layer_norm": "compiled.apex_normalization",
            "apex.optimizers": "compiled.apex_optimizers",
            "apex.transformer": "compiled.apex",
            "apex.transformer.functional": "compiled.apex_rotary",
            "amp_C": "compiled.amp_c",
            "fused_layer_norm_cuda": "compiled.fused_layer_norm_cuda",
            "fused_weight_gradient_mlp_cuda": "compiled.fused_weight_gradient_mlp_cuda",
        },
    ),
)


REFUSED = frozenset(
    {
        *(
            "causal_conv1d",
            "deep_ep",
            "deep_gemm",
            "flash_mla",
            "fused_dense_lib",
            "mamba_ssm",
            "megablocks_ops",
        ),
        *("selective_scan_cuda", "transformer_engine"),
    }
)
"""Modules of others that only a machine with CUDA's toolkit has."""


class _StoodIn:
    """What is stood in for in this process."""

    def __init__(self) -> None:
        self.needed = Needed(
            {
                package.distribution: package.top_level | {package.distribution, package.also_called} - {""}
                for package in PACKAGES
                if not package.is_always_found
            }
        )
        self.taken: dict[str, str] = {}
        """Packages that were imported, and what needed them."""
        self.lacking: dict[str, str] = {}
        """What the script looks for in them and does not find, and the line."""


_stood_in = _StoodIn()


def install() -> None:
    """Answers imports of each package of `PACKAGES`, whatever of it is not installed.

    Call before transformers is imported, which remembers what is installed.
    """
    global _stood_in
    _stood_in = _StoodIn()
    flash_attention.install()
    names = {name for package in PACKAGES for name in package.top_level}
    absent = {name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None}
    if absent:
        # At the end: a real package always goes first.
        sys.meta_path.append(_Finder(absent))


def taken() -> list[str]:
    """A line for each package that the script takes, for what one lacks, and for those it goes without."""
    taken, lacking, needed = _stood_in.taken, _stood_in.lacking, _stood_in.needed
    without = {name: line for name, line in needed.done_without.items() if needed.by(name) is None}
    return [
        *(
            f"{name} is not installed here and was stood in for, since {why}: its functions allocate what "
            "its kernels do"
            for name, why in taken.items()
        ),
        *(
            f"{name} may be there on the cluster, and its stand-in is not ({line}): what the script does "
            "without it may take other memory"
            for name, line in lacking.items()
        ),
        *(
            f"{name} is not installed here, and the script goes on without ({line}): if the cluster has it, "
            "name it in a requirements.txt beside the script, and it is stood in for"
            for name, line in without.items()
        ),
    ]


def _lacks(name: str) -> None:
    """Note what a script looks for and a stand-in does not have: it may go on another way."""
    if line := own_line():
        _stood_in.lacking.setdefault(name, line)


def told(module: str) -> tuple[str, str] | None:
    """What a module stands in for, in words, and what to do where it is not like that; None if for nothing.

    Args:
        module: its name, as scripts import it, or that of the file that implements it.
    """
    package = _of(module) if _is_stood_in(module) else _implemented_by(module)
    if package is None:
        return None
    words = f"{package.distribution} {package.release.version}"
    if package.version is not None:
        return (
            words,
            "If the package itself has what fails here, choose a setting that does without it, or measure "
            "this run on a GPU; otherwise the cluster shows what is printed above, too",
        )
    by = package.release.asked_by
    return (
        f"{words}, {f'as {by} asks' if by else 'the newest that it knows, since nothing asks for another'}",
        "If the cluster has another release, write that in a requirements.txt beside the script, such as "
        "flash-attn==2.6.3. If it has this one, it shows what is printed above, too, or the stand-in is "
        "wrong: then please report it",
    )


def _of(module: str) -> Package | None:
    top_level = module.partition(".")[0]
    return next((package for package in PACKAGES if top_level in package.top_level), None)


def _implemented_by(file: str) -> Package | None:
    if file == f"{_HERE}.flash_attention_calls":
        return PACKAGES[0]
    return next(
        (one for one in PACKAGES if file.removeprefix(f"{_HERE}.") in one.modules.values()),
        None,
    )


def _is_stood_in(module: str) -> bool:
    spec = getattr(sys.modules.get(module.partition(".")[0]), "__spec__", None)
    return spec is not None and isinstance(spec.loader, _Loader)


class _Loader(importlib.abc.Loader):
    """Fills a module with the public names of the one that implements it."""

    def __init__(self, package: Package, why: str | None) -> None:
        self._package, self._why = package, why

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from zerokit.rehearsal.stand_ins.flash_attention_calls import of_release

        package, why, name = self._package, self._why, module.__name__
        source = importlib.import_module(f"{_HERE}.{package.modules[name]}")
        names = {word: of_release(getattr(source, word), package.release) for word in source.__all__}
        module.__dict__.update({word: value for word, value in names.items() if value is not None})
        if "." not in name:
            module.__dict__["__version__"] = package.release.version
        inside = frozenset(inner for inner in package.modules if inner.startswith(f"{name}."))

        def find_inside(word: str) -> Any:
            """A module inside, which the real package imports by itself."""
            if f"{name}.{word}" in inside:
                return importlib.import_module(f"{name}.{word}")
            if why is not None and not word.startswith("__"):
                _lacks(f"{name}.{word}")
            raise AttributeError(f"module '{name}' has no attribute '{word}'", name=word, obj=module)

        if inside or why is not None:
            module.__dict__["__getattr__"] = find_inside
        if why is not None:
            words = f"{package.distribution} {package.release.version}"
            _stood_in.taken.setdefault(words, why)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the stand-in modules, and the distributions they pretend to come from."""

    def __init__(self, top_level: set[str]) -> None:
        self._top_level = top_level

    def _why(self, package: Package) -> str | None:
        """What needs a package that may be stood in for; empty if nothing has to."""
        return "" if package.is_always_found else _stood_in.needed.by(package.distribution)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = _of(name)
        if package is None or name.partition(".")[0] not in self._top_level:
            return None
        why = self._why(package)
        if why is None or (package.hidden_from and _looking_library() in package.hidden_from):
            return None
        if name not in package.modules:
            if why:
                _lacks(name)
            return None
        # With an origin, so that it is not taken for a namespace package.
        loader = _Loader(package, why or None)
        is_package = any(inner.startswith(f"{name}.") for inner in package.modules)
        return importlib.machinery.ModuleSpec(name, loader, origin=__file__, is_package=is_package)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        wanted = _normalized(context.name) if context is not None and context.name else None
        for package in PACKAGES:
            absent = sorted(package.top_level & self._top_level)
            is_wanted = wanted in (None, _normalized(package.distribution))
            if absent and is_wanted and self._why(package) is not None:
                yield _Distribution(package.distribution, package.release.version, absent)


def _looking_library() -> str | None:
    """The installed package that looks for a module; None if it is the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_own_code(path := frame.f_code.co_filename) or is_pythons(path)):
        frame = frame.f_back
    path = "" if frame is None else frame.f_code.co_filename
    inside = (path.rpartition(folder)[2] for folder in INSTALLED if folder in path)
    return next((file.partition("/")[0] for file in inside), None)


class _Distribution(importlib.metadata.Distribution):
    """Metadata of a package that has no files."""

    def __init__(self, name: str, version: str, modules: Sequence[str]) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "top_level.txt": "".join(f"{module}\n" for module in modules),
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(str(filename))

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)


def _normalized(name: str) -> str:
    return name.replace("_", "-").lower()
