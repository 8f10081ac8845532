"""How transformers computes a model type, where parameters do not show it.

Source: transformers' modeling and configuration files of 5.23; tests compare each trait with what autograd
saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from zerokit.models import ModelShape
from zerokit.tables import table_of

Norm = Literal["rms", "mixed", "gemma", "centred", "plain", "layer"]
"""``rms``: Llama's; ``mixed``: T5's, which multiplies its input by an fp32 scale; ``gemma``: computed in
fp32; ``centred``: Cohere's LayerNorm, written out in fp32; ``plain``: OLMo's, in fp32 without weights;
``layer``: torch's native LayerNorm."""

Activation = Literal["kernel", "relu", "gelu_new"]
"""``kernel``: one operation that saves its input; ``relu`` saves its output; ``gelu_new`` consists of many
operations."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of one model type, a row of `traits.json`; the defaults are Llama's."""

    checked: bool = True
    """Whether the activations of the model type were compared with rehearsals."""
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
    sliding_window: int | None = None
    """Default of `sliding_window` in tokens."""
    window_is_optional: bool = False
    """There are windows only with `use_sliding_window`."""
    full_attention_every: int | None = None
    """Every n-th layer has no window."""


@cache
def all_traits() -> Mapping[str, Traits]:
    """The rows of `traits.json` by model type."""
    return {model_type: Traits(**row) for model_type, row in table_of(__file__).items()}


def traits_of(model_type: str) -> Traits:
    """The traits of a model type; Llama's, unchecked, for an unknown type."""
    return all_traits().get(model_type) or Traits(checked=False)


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


def window_of(model: ModelShape) -> int | None:
    """Tokens of the sliding window of layers that have one."""
    config = model.config.get("text_config", model.config)
    window: int | None = config.get("sliding_window", traits_of(model.model_type).sliding_window)
    return window


def has_window(model: ModelShape, layer: int, seq: int) -> bool:
    """Whether a layer has a sliding window that is no longer than `seq` tokens.

    torch's attention then gets a mask. Source: transformers' `configuration_*.py`, and
    `_ignore_causal_mask_sdpa` in masking_utils.py, which skips the mask for longer windows.
    """
    config, traits = model.config.get("text_config", model.config), traits_of(model.model_type)
    window = window_of(model)
    is_used = config.get("use_sliding_window", not traits.window_is_optional)
    if window is None or seq < window or not is_used:
        return False
    if config.get("layer_types"):
        return bool(config["layer_types"][layer] == "sliding_attention")
    if traits.window_is_optional:
        return bool(layer >= config.get("max_window_layers", 28))
    every = config.get("sliding_window_pattern", traits.full_attention_every)
    return every is None or bool((layer + 1) % every)
