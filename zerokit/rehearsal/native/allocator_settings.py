"""What PYTORCH_ALLOC_CONF asks of PyTorch's caching allocator."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from zerokit.errors import LaunchError

_MIB = 2**20
_SETTING = re.compile(r"\s*([A-Za-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,\[]*?)\s*(?:,|$)")
_SIZES = ("max_split_size_mb", "large_segment_size_mb", "max_non_split_rounding_mb")
_WITHOUT_EFFECT = ("garbage_collection_threshold",)
"""It acts together with torch.cuda.set_per_process_memory_fraction alone."""


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings that the models of the allocator follow. The defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_size_bytes: int = -1
    """Blocks of at least this size are not split; -1: all may be."""
    large_segment_size_bytes: int = 20 * _MIB
    max_non_split_rounding_bytes: int = -1
    """-1: as `large_segment_size_bytes`."""
    roundup_power2_divisions: int = 0
    """Sizes are rounded up to so many steps between powers of two; 0: they are not."""
    passed_over: tuple[str, ...] = ()
    """Settings that the models do not follow."""

    @classmethod
    def of_environment(cls) -> AllocatorSettings:
        """From PYTORCH_ALLOC_CONF, or from its older name, PYTORCH_CUDA_ALLOC_CONF.

        The order is that of the constructor in c10/core/AllocatorConfig.cpp.

        Raises:
            LaunchError: a setting or value that PyTorch would refuse.
        """
        for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            text = os.environ.get(variable)
            if text:
                return cls.parse(text, variable)
        return cls()

    @classmethod
    def parse(cls, text: str, variable: str = "PYTORCH_ALLOC_CONF") -> AllocatorSettings:
        """Read ``"expandable_segments:True,max_split_size_mb:128"``.

        Raises:
            LaunchError: a setting or value that PyTorch would refuse.
        """
        followed: dict[str, Any] = {}
        passed_over = []
        for name, value in _split(text, variable).items():
            if name == "expandable_segments":
                followed[name] = _flag(value, variable)
            elif name in _SIZES:
                followed[name.replace("_mb", "_bytes")] = _number(value, variable) * _MIB
            elif name == "roundup_power2_divisions" and not value.startswith("["):
                followed[name] = _number(value, variable)
            elif name not in _WITHOUT_EFFECT and (name, value) != ("backend", "native"):
                passed_over.append(f"{name}:{value}")
        settings = cls(**followed, passed_over=tuple(passed_over))
        if problem := settings._problem():
            raise LaunchError(problem, where=variable, hint="PyTorch would refuse it, too")
        return settings

    def _problem(self) -> str | None:
        """The first setting that PyTorch refuses (c10/core/AllocatorConfig.cpp)."""
        divisions, large = self.roundup_power2_divisions, self.large_segment_size_bytes
        if divisions & (divisions - 1):
            return f"roundup_power2_divisions has to be a power of two, not {divisions}"
        if large <= 10 * _MIB:
            return "large_segment_size_mb has to be more than 10"
        for name in ("max_split_size", "max_non_split_rounding"):
            if -1 < getattr(self, f"{name}_bytes") < large:
                return f"{name}_mb has to be at least {large // _MIB}, which is large_segment_size_mb"
        return None


def _split(text: str, variable: str) -> dict[str, str]:
    found, place = {}, 0
    while place < len(text.rstrip()):
        match = _SETTING.match(text, place)
        if match is None:
            raise LaunchError(
                f"'{text[place:].strip()}' is not NAME:VALUE",
                where=variable,
                hint="Write it like expandable_segments:True,max_split_size_mb:128",
            )
        found[match[1]] = match[2]
        place = match.end()
    return found


def _flag(text: str, variable: str) -> bool:
    if text not in ("True", "False"):
        raise LaunchError(
            f"'{text}' is neither True nor False", where=variable, hint="PyTorch takes these two words alone"
        )
    return text == "True"


def _number(text: str, variable: str) -> int:
    if not text.isdecimal():
        raise LaunchError(f"'{text}' is not a whole number", where=variable, hint="Write it like 128")
    return int(text)
