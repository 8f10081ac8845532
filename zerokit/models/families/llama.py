"""Llama and dense decoders that differ from it in biases and norms: Mistral, SmolLM3, Granite, Qwen, Gemma
without images, OLMo 2 and 3; and Phi-3 and 4.

Source: transformers' `modeling_*.py` of these model types. Qwen 2.5 is `qwen2`.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from zerokit.models.decoder import (
    attention,
    decoder,
    decoder_classes,
    decoder_sizes,
    gated_mlp,
    pre_norm_decoder,
)
from zerokit.models.keys import Keys
from zerokit.models.parts import Parts
from zerokit.models.tensors import linear, rms_norm

_BEFORE = ("input_layernorm", "post_attention_layernorm")
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
_BEFORE_AND_AFTER = (*_BEFORE, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _dense(
    keys: Keys,
    *,
    bias: bool | None = None,
    output_bias: bool | None = None,
    mlp_bias: bool = False,
    query_key_norms: Literal["head", "layer"] | None = None,
    norms: tuple[str, ...] = _BEFORE,
    heads_divide_hidden: bool = False,
) -> Parts:
    """A dense decoder.

    Args:
        keys: of the config.
        bias: of the projections of attention; None: the config's `attention_bias`.
        output_bias: of the output projection; None: like the others.
        mlp_bias: whether the config's `mlp_bias` has an effect.
        query_key_norms: whether queries and keys have norms, over each head or over all heads of a layer.
        norms: of the hidden state, before or after attention and MLP.
        heads_divide_hidden: see :func:`decoder_sizes`.
    """
    sizes = decoder_sizes(keys, heads_divide_hidden=heads_divide_hidden)
    hidden = sizes.hidden_size
    biased = keys.flag("attention_bias") if bias is None else bias
    layer = attention(sizes, bias=biased, output_bias=output_bias)
    if query_key_norms is not None:
        is_per_head = query_key_norms == "head"
        layer += rms_norm("self_attn.q_norm", sizes.head_dim if is_per_head else sizes.query_size)
        layer += rms_norm("self_attn.k_norm", sizes.head_dim if is_per_head else sizes.key_value_size)
    layer += gated_mlp(hidden, sizes.intermediate_size, bias=mlp_bias and keys.flag("mlp_bias"))
    for name in norms:
        layer += rms_norm(name, hidden)
    return Parts(sizes, decoder(sizes, layer, final_norm=rms_norm("norm", hidden)))


def _phi3(keys: Keys) -> Parts:
    """Fused projections: queries, keys and values; gate and up."""
    sizes = decoder_sizes(keys)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    fused = sizes.query_size + 2 * sizes.key_value_size
    layer = [
        *linear("self_attn.o_proj", sizes.query_size, hidden, kind="attention"),
        *linear("self_attn.qkv_proj", hidden, fused, kind="attention"),
        *linear("mlp.gate_up_proj", hidden, 2 * inner, kind="mlp"),
        *linear("mlp.down_proj", inner, hidden, kind="mlp"),
    ]
    return pre_norm_decoder(sizes, layer)


_LLAMA = partial(_dense, mlp_bias=True)
_MISTRAL = partial(_dense, bias=False)
_OLMO2 = partial(_dense, query_key_norms="layer", norms=_AFTER)
_GEMMA2 = partial(_dense, norms=_BEFORE_AND_AFTER, heads_divide_hidden=True)
_GEMMA3 = partial(_GEMMA2, query_key_norms="head")

CLASSES = {
    "llama": decoder_classes("Llama", partial(_LLAMA, heads_divide_hidden=True)),
    "smollm3": decoder_classes("SmolLM3", _LLAMA),
    "granite": decoder_classes("Granite", _LLAMA, labels=()),
    "mistral": decoder_classes("Mistral", _MISTRAL),
    "ministral3": decoder_classes("Ministral3", _MISTRAL),
    "qwen2": decoder_classes("Qwen2", partial(_dense, bias=True, output_bias=False)),
    "qwen3": decoder_classes("Qwen3", partial(_dense, query_key_norms="head")),
    "gemma": decoder_classes("Gemma", _dense),
    "gemma2": decoder_classes("Gemma2", _GEMMA2),
    "gemma3_text": {
        **decoder_classes("Gemma3", _GEMMA3, model="TextModel", labels=()),
        **decoder_classes("Gemma3Text", _GEMMA3, causal_lm=None, labels=("sequence",)),
    },
    "olmo2": decoder_classes("Olmo2", _OLMO2, labels=("sequence",)),
    "olmo3": decoder_classes("Olmo3", _OLMO2, labels=("sequence",)),
    "phi3": decoder_classes("Phi3", _phi3),
}
