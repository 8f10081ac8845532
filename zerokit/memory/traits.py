"""What the parameters of a model type do not tell of how transformers computes it.

Source: transformers' modeling and configuration files, in 5.23; tests compare each with what autograd saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zerokit.models import ModelShape

Norm = Literal["rms", "mixed", "gemma", "centred", "plain", "layer"]
"""``rms``: Llama's; ``mixed``: T5's, which multiplies its input as it is by a scale in fp32; ``gemma``:
multiplied in fp32; ``centred``: Cohere's LayerNorm, written out in fp32; ``plain``: OLMo's, without weights
and in fp32; ``layer``: torch's native LayerNorm."""

Activation = Literal["kernel", "relu", "gelu_new"]
"""``kernel``: one operation that saves its input; ``relu`` saves its output; ``gelu_new`` is made of many."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Of one model type. What is left out is as in Llama."""

    norm: Norm | None = None
    """None: ``layer`` where it has a bias, else ``rms``."""
    norm_after: bool = False
    """Norms follow attention and feed-forward, so that attention reads the layer's input as it is."""
    rotary: Literal["whole", "partial", "none"] = "whole"
    """What is rotated of each head; ``partial``: a part, which is put together with the rest head by head."""
    activation: Activation | None = None
    """Of a feed-forward layer without gate; None: by the config's key, else ``kernel``."""
    softmax: Literal["fp32", "native"] = "fp32"
    """What eager attention computes probabilities in: fp32, then cast; or the type of the activations."""
    scores_in_fp32: bool = False
    """Eager attention multiplies queries and keys in fp32."""
    score_copies: int = 2
    """Of the scores, that eager attention makes on the way to the softmax; BLOOM adds positions to them."""
    position_bias: bool = False
    """Scores get relative positions by a tensor that all layers of a stack share, and that has a gradient."""
    sinks: bool = False
    """Scores have a column more, and their largest is taken off first."""
    torch_linear: bool = True
    """Projections are torch.nn.Linear, or at least save no weight as it is. FalconLinear multiplies by a
    transposed view of the weight, which autograd keeps."""
    beside: bool = False
    """Attention and feed-forward run side by side, each with a norm of its own of one input."""
    expert_parts: int = 4
    """Tensors as wide as an expert that autograd keeps of each token's way through it."""
    router_in_fp32: bool = False
    """The router casts its input."""
    weighted_in_fp32: bool = False
    """What the router says of the experts is fp32, and so is the product with what they make."""
    shared_first: bool = False
    """The shared expert runs before the routed ones."""
    hidden_dropout: float = 0.0
    """Where the config has no such key, as the two below."""
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    drops_attention_output: bool = True
    """Dropout follows attention's output, too, not only the feed-forward layer's."""
    drops_inside: bool = False
    """Dropout follows the activation of a feed-forward layer, too."""
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
"""Model types whose activations have been compared with rehearsals."""

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
    """Those of a model type; of one that nobody has looked at, Llama's."""
    return CHECKED.get(model_type) or _UNCHECKED.get(model_type) or Traits()


HIDDEN_DROPOUT = (
    *("resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout_rate", "dropout"),
    *("resid_dropout", "residual_dropout"),
)
ATTENTION_DROPOUT = ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout", "dropout_rate")
EMBEDDING_DROPOUT = ("embd_pdrop", "embed_dropout", "embedding_dropout")
"""Keys of configs: of hidden states, of attention's probabilities, of embeddings."""


def norm_of(model: ModelShape) -> Norm:
    """By the type, else by whether norms have biases."""
    has_bias = any(tensor.kind == "norm" and tensor.name.endswith(".bias") for tensor in model.tensors)
    return traits_of(model.model_type).norm or ("layer" if has_bias else "rms")


def activation_of(model: ModelShape) -> Activation:
    """By the config's key, else transformers' default."""
    keys = ("hidden_activation", "hidden_act", "activation_function", "feed_forward_proj")
    named = next((str(model.config[key]) for key in keys if model.config.get(key)), "")
    if not named:
        return traits_of(model.model_type).activation or "kernel"
    return "gelu_new" if named in ("gelu_new", "gated-gelu") else "relu" if named == "relu" else "kernel"


def is_capped(model: ModelShape, key: str) -> bool:
    """Gemma 2 caps unless its config says null (configuration_gemma2.py)."""
    return bool(model.config.get(key, 1.0 if model.model_type == "gemma2" else None))


def drops(model: ModelShape, keys: Sequence[str], default: float) -> bool:
    """Whether there is dropout, by the first of the config's keys, else transformers' default."""
    given = (model.config[key] for key in keys if isinstance(model.config.get(key), int | float))
    return float(next(given, default)) > 0


def has_alibi_mask(model: ModelShape) -> bool:
    """Falcon adds ALiBi to its mask, which all layers then share, head by head (FalconModel.forward)."""
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
