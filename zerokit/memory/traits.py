"""How transformers computes a model type, where parameters do not show it.

Source: transformers' modeling and configuration files of 5.23; tests compare each trait with what autograd
saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zerokit.models import ModelShape

Norm = Literal["rms", "mixed", "gemma", "centred", "plain", "layer"]
"""``rms``: Llama's; ``mixed``: T5's, which multiplies its input by an fp32 scale; ``gemma``: computed in
fp32; ``centred``: Cohere's LayerNorm, written out in fp32; ``plain``: OLMo's, in fp32 without weights;
``layer``: torch's native LayerNorm."""

Activation = Literal["kernel", "relu", "gelu_new"]
"""``kernel``: one operation that saves its input; ``relu`` saves its output; ``gelu_new`` consists of many
operations."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of one model type; the defaults are Llama's."""

    norm: Norm | None = None
    """None: ``layer`` if the norm has a bias, else ``rms``."""
    norm_after: bool = False
    """Norms follow attention and feed-forward; attention reads the layer's input directly."""
    rotary: Literal["whole", "partial", "none"] = "whole"
    """The rotated part of each head; ``partial``: a part, which is concatenated with the rest."""
    activation: Activation | None = None
    """Activation of a feed-forward layer without gate; None: the config's key, else ``kernel``."""
    softmax: Literal["fp32", "native"] = "fp32"
    """The type in which eager attention computes probabilities: fp32 and then cast, or that of the
    activations."""
    scores_in_fp32: bool = False
    """Eager attention multiplies queries and keys in fp32."""
    score_copies: int = 2
    """Copies of the scores that eager attention makes before the softmax; BLOOM also adds positions."""
    position_bias: bool = False
    """A tensor of relative positions is added to the scores. All layers of a stack share it, and it has a
    gradient."""
    sinks: bool = False
    """Scores have one more column (attention sinks), and their maximum is subtracted."""
    torch_linear: bool = True
    """Projections are torch.nn.Linear, or save no weight. FalconLinear multiplies by a transposed view of the
    weight, which autograd saves."""
    beside: bool = False
    """Attention and feed-forward run in parallel; each has its own norm of the same input."""
    expert_parts: int = 4
    """Tensors of an expert's width that autograd saves per token."""
    router_in_fp32: bool = False
    """The router casts its input to fp32."""
    weighted_in_fp32: bool = False
    """The router's weights are fp32, and so is the product with the experts' outputs."""
    shared_first: bool = False
    """The shared expert runs before the routed experts."""
    hidden_dropout: float = 0.0
    """Default of transformers if the config has no such key; also of the next two."""
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    drops_attention_output: bool = True
    """Dropout follows attention too, not only the feed-forward layer."""
    drops_inside: bool = False
    """Dropout also follows the activation of a feed-forward layer."""
    loss_in_fp32: bool = True
    """Logits are cast before the cross entropy (ForCausalLMLoss)."""


_ENCODER = Traits(
    norm_after=True,
    rotary="none",
    softmax="native",
    hidden_dropout=0.1,
    attention_dropout=0.1,
    embedding_dropout=0.1,
    loss_in_fp32=False,
)

CHECKED: Mapping[str, Traits] = {
    "bert": _ENCODER,
    "bloom": Traits(rotary="none", score_copies=4),
    "cohere": Traits(norm="centred"),
    "cohere2": Traits(norm="centred"),
    "deepseek_v2": Traits(router_in_fp32=True, weighted_in_fp32=True),
    "deepseek_v3": Traits(router_in_fp32=True, weighted_in_fp32=True),
    "distilbert": replace(_ENCODER, drops_attention_output=False),
    "falcon": Traits(softmax="native", torch_linear=False),
    "gemma": Traits(norm="gemma"),
    "gemma2": Traits(norm="gemma"),
    "gemma3_text": Traits(norm="gemma"),
    "gpt2": Traits(
        rotary="none",
        activation="gelu_new",
        softmax="native",
        hidden_dropout=0.1,
        attention_dropout=0.1,
        embedding_dropout=0.1,
    ),
    "gpt_bigcode": Traits(rotary="none", hidden_dropout=0.1, attention_dropout=0.1, embedding_dropout=0.1),
    "gpt_neo": Traits(rotary="none", activation="gelu_new", scores_in_fp32=True),
    "gpt_neox": Traits(rotary="partial", beside=True),
    "gpt_oss": Traits(norm="gemma", softmax="native", sinks=True, expert_parts=7),
    "gptj": Traits(rotary="partial", activation="gelu_new", scores_in_fp32=True),
    "granite": Traits(),
    "granitemoe": Traits(),
    "llama": Traits(),
    "mistral": Traits(),
    "mixtral": Traits(weighted_in_fp32=True),
    "mpt": Traits(norm="layer", rotary="none"),
    "olmo": Traits(norm="plain"),
    "olmo2": Traits(norm="gemma", norm_after=True),
    "olmoe": Traits(),
    "opt": Traits(rotary="none", activation="relu", hidden_dropout=0.1),
    "phi": Traits(rotary="partial", activation="gelu_new"),
    "phi3": Traits(rotary="partial"),
    "phimoe": Traits(),
    "qwen2": Traits(),
    "qwen2_moe": Traits(shared_first=True),
    "qwen3": Traits(),
    "qwen3_moe": Traits(),
    "roberta": _ENCODER,
    "smollm3": Traits(),
    "stablelm": Traits(rotary="partial"),
    "starcoder2": Traits(),
    "xlm-roberta": _ENCODER,
}
"""Model types whose activations were compared with rehearsals."""

_T5 = Traits(
    norm="mixed",
    rotary="none",
    position_bias=True,
    hidden_dropout=0.1,
    attention_dropout=0.1,
    embedding_dropout=0.1,
    drops_inside=True,
    loss_in_fp32=False,
)

_UNCHECKED: Mapping[str, Traits] = {
    "gemma3": Traits(norm="gemma"),
    "olmo3": Traits(norm="gemma", norm_after=True),
    "t5": replace(_T5, activation="relu"),
    "mt5": _T5,
    "bart": Traits(rotary="none", softmax="native", hidden_dropout=0.1, loss_in_fp32=False),
    "deberta-v2": _ENCODER,
}


def traits_of(model_type: str) -> Traits:
    """The traits of a model type; Llama's for an unknown type."""
    return CHECKED.get(model_type) or _UNCHECKED.get(model_type) or Traits()


HIDDEN_DROPOUT = (
    *("resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout_rate", "dropout"),
    *("resid_dropout", "residual_dropout"),
)
ATTENTION_DROPOUT = ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout", "dropout_rate")
EMBEDDING_DROPOUT = ("embd_pdrop", "embed_dropout", "embedding_dropout")
"""Config keys of dropout: hidden states, attention probabilities, embeddings."""


def norm_of(model: ModelShape) -> Norm:
    """The norm of the model type, else by whether norms have biases."""
    has_bias = any(tensor.kind == "norm" and tensor.name.endswith(".bias") for tensor in model.tensors)
    return traits_of(model.model_type).norm or ("layer" if has_bias else "rms")


def activation_of(model: ModelShape) -> Activation:
    """The activation by the config's key, else transformers' default."""
    keys = ("hidden_activation", "hidden_act", "activation_function", "feed_forward_proj")
    named = next((str(model.config[key]) for key in keys if model.config.get(key)), "")
    if not named:
        return traits_of(model.model_type).activation or "kernel"
    return "gelu_new" if named in ("gelu_new", "gated-gelu") else "relu" if named == "relu" else "kernel"


def is_capped(model: ModelShape, key: str) -> bool:
    """Gemma 2 caps unless its config says null (configuration_gemma2.py)."""
    return bool(model.config.get(key, 1.0 if model.model_type == "gemma2" else None))


def drops(model: ModelShape, keys: Sequence[str], default: float) -> bool:
    """Whether there is dropout, by the first config key that is set, else transformers' default."""
    given = (model.config[key] for key in keys if isinstance(model.config.get(key), int | float))
    return float(next(given, default)) > 0


def has_alibi_mask(model: ModelShape) -> bool:
    """Falcon adds ALiBi to the mask, which all layers share (FalconModel.forward)."""
    return model.model_type == "falcon" and bool(model.config.get("alibi"))


_SLIDING_WINDOWS = {
    "cohere2": 4096,
    "gemma2": 4096,
    "gemma3": 4096,
    "gemma3_text": 4096,
    "gpt_oss": 128,
    "mistral": 4096,
    "olmo3": 4096,
}
_OPTIONAL_WINDOWS = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3")
"""These have windows only with `use_sliding_window`."""
_FULL_ATTENTION_EVERY = {"cohere2": 4, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4}
"""Every n-th layer has no window."""


def has_window(model: ModelShape, layer: int, seq: int) -> bool:
    """Whether a layer has a sliding window that is no longer than `seq` tokens.

    torch's attention then gets a mask. Source: transformers' `configuration_*.py`, and
    `_ignore_causal_mask_sdpa` in masking_utils.py, which skips the mask for longer windows.
    """
    config, kind = model.config.get("text_config", model.config), model.model_type
    window = config.get("sliding_window", _SLIDING_WINDOWS.get(kind))
    if window is None or seq < window or not config.get("use_sliding_window", kind not in _OPTIONAL_WINDOWS):
        return False
    if config.get("layer_types"):
        return bool(config["layer_types"][layer] == "sliding_attention")
    if kind in _OPTIONAL_WINDOWS:
        return bool(layer >= config.get("max_window_layers", 28))
    every = config.get("sliding_window_pattern", _FULL_ATTENTION_EVERY.get(kind))
    return every is None or bool((layer + 1) % every)
