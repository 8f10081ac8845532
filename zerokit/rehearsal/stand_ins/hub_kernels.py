"""Kernels of the Hub (package `kernels`): flash attention gets the stand-ins of the packages.

A machine without a GPU cannot load the Hub's CUDA builds. Other kernels are loaded as they are, and those in
Triton launched. A script may fall back if a kernel cannot be loaded, so the report names it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.context import note, rank_context
from zerokit.rehearsal.errors import script_line
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.tables import table_of

_GET_LATEST = Patch("kernels", "get_kernel", "stand in for flash attention of the Hub", until="0.15")
_GET = Patch("kernels", "get_kernel", "stand in for flash attention of the Hub", since="0.15")
_HAS = Patch("kernels", "has_kernel", "find flash attention of the Hub", since="0.4.4")
_VERSIONS: dict[str, int] = table_of(__file__)
"""Which flash attention a repository holds, by its name without the owner's."""


_OTHERWISE = "what the script does without it may take other memory than on the cluster"
_NOT_LOADED = f"the Hub's kernel {{what}} could not be loaded here ({{why}}): {_OTHERWISE}"
_LACKING = f"the Hub's kernel may have {{what}}, and its stand-in does not ({{why}}): {_OTHERWISE}"


class _Modules(dict[str, ModuleType]):
    """Stand-ins by repository."""


@stand_in("kernels.get_kernel", "kernels.has_kernel")
def install(setup: RankSetup) -> None:
    """Replace the functions of the package `kernels`, if it is installed."""
    wrap(_GET_LATEST, _kernel)
    wrap(_GET, _pinned_kernel)
    wrap(_HAS, lambda has, repo_id, *given, **named: _is_known(repo_id) or has(repo_id, *given, **named))


def _pinned_kernel(get: Any, repo_id: str, *given: Any, **named: Any) -> Any:
    """Let the package report a missing version or revision."""
    is_pinned = bool(given) or any(named.get(word) is not None for word in ("revision", "version"))
    return _kernel(get, repo_id, *given, **named) if is_pinned else get(repo_id, **named)


def _kernel(get: Any, repo_id: str, *given: Any, **named: Any) -> Any:
    if _is_known(repo_id):
        modules = rank_context().state(_Modules)
        if repo_id not in modules:
            modules[repo_id] = flash_attention(repo_id)
        return modules[repo_id]
    try:
        return get(repo_id, *given, **named)
    except Exception as error:
        note(_NOT_LOADED, repo_id, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise


def _is_known(repo_id: str) -> bool:
    return _name(repo_id) in _VERSIONS


def _name(repo_id: str) -> str:
    return repo_id.rpartition("/")[2].replace("_", "-").lower()


class _Kernel(ModuleType):
    """A kernel's module, which keeps names that it lacks for the report."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            note(_LACKING, f"{self.__name__}.{name}", script_line())
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'", name=name, obj=self)


def flash_attention(repo_id: str) -> ModuleType:
    """The module that a repository of flash attention holds."""
    name = _name(repo_id)
    source = importlib.import_module(f"zerokit.rehearsal.stand_ins.flash_attention_{_VERSIONS[name]}")
    functions = {word: getattr(source, word) for word in source.__all__}
    if name == "vllm-flash-attn3":
        functions = {word: _with_sinks(function) for word, function in functions.items()}
    kernel = _Kernel(name.replace("-", "_"), f"Stands in for {repo_id}.")
    interface = _Kernel(f"{kernel.__name__}.flash_attn_interface")
    interface.__dict__.update(functions)
    kernel.__dict__.update(functions, flash_attn_interface=interface)
    return kernel


def _with_sinks(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with a parameter more, `s_aux`, which the kernel reads and which takes no memory."""

    @functools.wraps(function)
    def call(*given: Any, s_aux: Any = None, **named: Any) -> Any:
        return function(*given, **named)

    sinks = inspect.Parameter("s_aux", inspect.Parameter.KEYWORD_ONLY, default=None)
    signature = inspect.signature(function)
    call.__dict__["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), sinks])
    return call
