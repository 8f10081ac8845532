"""Modules that a checkpoint had whole, which transformers would make anew under ZeRO-3.

Once weights are loaded, `from_pretrained` has each module initialised, and only what writes a tensor leaves
those alone that were loaded. What reads their sizes first (Pegasus' positions, Funnel's embeddings) finds
none under stage 3, where transformers gathers only those that were not loaded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from zerokit.patches import Patch, wrap

if TYPE_CHECKING:
    import torch

_INITIALIZE = Patch(
    "transformers.modeling_utils:PreTrainedModel",
    "_initialize_weights",
    "leave modules alone that are loaded",
)


@functools.cache  # once a process
def leave_loaded_modules() -> None:
    """Have transformers initialise no module under ZeRO-3 of which it has loaded all."""
    wrap(_INITIALIZE, _unless_loaded)


def _unless_loaded(initialize: Any, model: Any, module: torch.nn.Module, *more: Any, **given: Any) -> None:
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    # Buffers that no checkpoint has are among them, and yet to be made.
    tensors = [*module.parameters(), *module.buffers()]
    is_loaded = bool(tensors) and all(getattr(tensor, "_is_hf_initialized", False) for tensor in tensors)
    if not (is_loaded and is_deepspeed_zero3_enabled()):
        initialize(model, module, *more, **given)
