"""Layers that see a window of the last tokens only, for which torch's attention is given a mask.

Source: transformers' `configuration_*.py`; masking_utils.py `_ignore_causal_mask_sdpa`, which does without a
mask where the window is no shorter than the sequence.
"""

from __future__ import annotations

from zerokit.models import ModelShape

_BY_DEFAULT = {
    "cohere2": 4096,
    "gemma2": 4096,
    "gemma3": 4096,
    "gemma3_text": 4096,
    "gpt_oss": 128,
    "mistral": 4096,
    "olmo3": 4096,
}
_SWITCHED_ON = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3")
"""Have windows only with `use_sliding_window`."""
_ALL_SEEING = {"cohere2": 4, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4}
"""Each so manieth layer has no window."""


def has_window(model: ModelShape, layer: int, seq: int) -> bool:
    """Whether that layer sees less than a sequence of `seq` tokens, or just as much."""
    config, kind = model.config.get("text_config", model.config), model.model_type
    window = config.get("sliding_window", _BY_DEFAULT.get(kind))
    if window is None or seq < window or not config.get("use_sliding_window", kind not in _SWITCHED_ON):
        return False
    if config.get("layer_types"):
        return bool(config["layer_types"][layer] == "sliding_attention")
    if kind in _SWITCHED_ON:
        return bool(layer >= config.get("max_window_layers", 28))
    every = config.get("sliding_window_pattern", _ALL_SEEING.get(kind))
    return every is None or bool((layer + 1) % every)
