"""Whether a model keeps documents apart that lie in one row, told by positions that begin at 0 again.

transformers makes the mask of attention from these positions (``find_packed_sequence_indices`` in
masking_utils.py; for flash attention, ``_is_packed_sequence`` in modeling_flash_attention_utils.py), if a
model's code has it made there and hands on the positions. What else carries a token to the next ones, such as
the state of a recurrence or a convolution, knows nothing of them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CACHE_NAMES = ("past_key_values", "cache")
"""What models of transformers call the keys and values that they are given, before release 5.24 and since."""
_MASKS = ("create_causal_mask", "create_sliding_window_causal_mask", "create_masks_for_generate")
_BY_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


def why_mixed(
    model: Any, config: PretrainedConfig, attention: str | None, seq_len: int, *, one_row: bool = False
) -> str | None:
    """Why documents of one row would see each other; None where the model keeps them apart.

    Args:
        model: its class; None where its code is not transformers' own.
        config: the model's.
        attention: the implementation that is asked for; None leaves it to transformers.
        seq_len: the longest sequence.
        one_row: whether rows go on beyond it, with all that a micro batch has.
    """
    if model is None:
        return "its code comes with the checkpoint"
    text = config.get_text_config(decoder=True)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "its forward() takes no position_ids"
    layers = getattr(text, "layer_types", None) or ()
    if model._is_stateful or not set(layers) <= set(_BY_ATTENTION):
        return "it has layers other than attention, which carry on from token to token"
    if not _masks_by_position(sys.modules[model.__module__]):
        return "its code makes masks without regard to positions"
    if attention not in (None, "eager", "sdpa", "flex_attention") and "flash" not in attention:
        return f"attention by {attention} is not known to tell them apart"
    if getattr(text, "output_router_logits", False):
        return "it balances its experts over a whole row"
    if _turns_by_row(text, seq_len):
        return "its rotary embeddings depend on the longest document beside one"
    # Llama 4 scales the queries of layers without rotary embeddings by places in a row (arXiv:2501.19399).
    without = not all(getattr(text, "no_rope_layers", ()))
    if (
        without
        and getattr(text, "attn_temperature_tuning", None)
        and (one_row or seq_len >= text.floor_scale)
    ):
        return "its attention's temperature depends on where in a row a token is"
    return None


def _masks_by_position(module: ModuleType) -> bool:
    """Whether all causal masks that a module has transformers make are made from positions, too.

    Their functions are called by several names, with keywords or with one dictionary of them for all.
    """
    arguments: list[set[Any]] = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call):
            arguments.append({keyword.arg for keyword in node.keywords})
        elif isinstance(node, ast.Dict):
            arguments.append({key.value for key in node.keys if isinstance(key, ast.Constant)})
    of_masks = [
        names
        for names in arguments
        if names >= {"config", "attention_mask"} and not names.isdisjoint(CACHE_NAMES)
    ]
    imported = any(hasattr(module, name) for name in _MASKS)
    return imported and bool(of_masks) and all("position_ids" in names for names in of_masks)


def _turns_by_row(config: Any, seq_len: int) -> bool:
    """Whether all positions of a batch are turned by the factors of its longest sequence."""
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(each for each in rope.values() if isinstance(each, dict))):
        kept = one.get("original_max_position_embeddings") or config.max_position_embeddings
        if one.get("rope_type") in ("longrope", "dynamic") and seq_len > kept:
            return True
    return False
