"""zerokit: plan, check and run DeepSpeed ZeRO training.

Importing this package is cheap: its names are imported at their first use, and torch, transformers and
deepspeed only by the subpackages that need them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerokit.ds_config import DSConfig as DSConfig
    from zerokit.ds_config import check as check
    from zerokit.estimation.api import estimate as estimate
    from zerokit.generation.api import generate as generate
    from zerokit.rehearsal.parent.rehearse import rehearse as rehearse

__version__ = "0.1.0"

__all__ = ["DSConfig", "__version__", "check", "estimate", "generate", "rehearse"]

_HOMES = {
    "DSConfig": "zerokit.ds_config",
    "check": "zerokit.ds_config",
    "estimate": "zerokit.estimation.api",
    "generate": "zerokit.generation.api",
    "rehearse": "zerokit.rehearsal.parent.rehearse",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'zerokit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__") and name not in __all__)]
