"""zerokit: plan, check and run DeepSpeed ZeRO training.

Importing this package is cheap: torch, transformers and deepspeed are imported only by the
subpackages that need them (``training``, ``generation``, ``checkpoint``, ``distributed``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerokit.ds_config import DSConfig as DSConfig
    from zerokit.estimation import estimate as estimate

__version__ = "0.1.0"

__all__ = ["DSConfig", "__version__", "estimate"]


def __getattr__(name: str) -> Any:
    # pydantic and the models take a tenth of a second, which no other use of the package should pay.
    if name == "DSConfig":
        from zerokit.ds_config import DSConfig

        return DSConfig
    if name == "estimate":
        from zerokit.estimation import estimate

        return estimate
    raise AttributeError(f"module 'zerokit' has no attribute '{name}'")
