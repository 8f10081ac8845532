"""Parts that most decoders share: grouped-query attention, gated MLP, experts, heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zerokit.models.keys import Keys
from zerokit.models.parts import Build, Experts, Parts, Sizes
from zerokit.models.tensors import Tensor, embedding, linear, repeated, rms_norm, under


def decoder_sizes(keys: Keys, *, heads_divide_hidden: bool = False) -> Sizes:
    """The sizes of a decoder with Llama's config keys.

    Without key-value heads there are as many as heads; without a head size it is the hidden size divided by
    the heads. `heads_divide_hidden` requires that division to be exact even with a head size.

    Raises:
        ModelError: a size is missing or not positive, or heads do not divide evenly.
    """
    heads = keys.size("num_attention_heads")
    head_dim = keys.optional_size("head_dim")
    if head_dim is None or heads_divide_hidden:
        quotient = keys.divide("hidden_size", "num_attention_heads")
        head_dim = quotient if head_dim is None else head_dim
    key_value_heads = keys.optional_size("num_key_value_heads")
    if key_value_heads is not None:
        keys.divide("num_attention_heads", "num_key_value_heads")
    return Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size("hidden_size"),
        intermediate_size=keys.size("intermediate_size"),
        num_hidden_layers=keys.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads if key_value_heads is None else key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=keys.optional_size("max_position_embeddings"),
    )


def attention(
    sizes: Sizes, *, bias: bool = False, output_bias: bool | None = None, output: str = "o_proj"
) -> list[Tensor]:
    """Separate projections for queries, keys, values and the output, in the module `self_attn`."""
    hidden = sizes.hidden_size
    return under(
        "self_attn",
        [
            *linear("q_proj", hidden, sizes.query_size, bias=bias, kind="attention"),
            *linear("k_proj", hidden, sizes.key_value_size, bias=bias, kind="attention"),
            *linear("v_proj", hidden, sizes.key_value_size, bias=bias, kind="attention"),
            *linear(
                output,
                sizes.query_size,
                hidden,
                bias=bias if output_bias is None else output_bias,
                kind="attention",
            ),
        ],
    )


def gated_mlp(
    hidden_size: int, intermediate_size: int, *, bias: bool = False, name: str = "mlp"
) -> list[Tensor]:
    """Gate, up and down projections."""
    return under(
        name,
        [
            *linear("gate_proj", hidden_size, intermediate_size, bias=bias, kind="mlp"),
            *linear("up_proj", hidden_size, intermediate_size, bias=bias, kind="mlp"),
            *linear("down_proj", intermediate_size, hidden_size, bias=bias, kind="mlp"),
        ],
    )


def routed_experts(
    sizes: Sizes,
    *,
    num_experts: int,
    intermediate_size: int,
    name: str = "mlp",
    router: str = "gate",
    router_first: bool = True,
) -> list[Tensor]:
    """A router, and its gated experts as two stacked tensors, in the class's order."""
    hidden = sizes.hidden_size
    routers = [Tensor(f"{router}.weight", (num_experts, hidden), "router")]
    stacks = [
        Tensor("experts.gate_up_proj", (num_experts, 2 * intermediate_size, hidden), "expert"),
        Tensor("experts.down_proj", (num_experts, hidden, intermediate_size), "expert"),
    ]
    return under(name, routers + stacks if router_first else stacks + routers)


def experts(keys: Keys, num_experts: str, *, num_layers: int) -> Experts:
    """The experts of a model; `num_experts` is the config key of their number.

    Raises:
        ModelError: a number is missing, or a token uses more experts than there are.
    """
    number, chosen = keys.size(num_experts), keys.optional_size("num_experts_per_tok")
    if chosen is None:
        chosen = number  # only DeepSeek V2's default, which is none
    if chosen > number:
        keys.fail(
            "num_experts_per_tok", f"is {chosen}, of only {number} experts", f"Give at most {num_experts}"
        )
    return Experts(num_experts=number, num_experts_per_tok=chosen, num_layers=num_layers)


def decoder(
    sizes: Sizes,
    layer: Sequence[Tensor],
    *,
    final_norm: Sequence[Tensor],
    embeddings: Sequence[Tensor] | None = None,
    layers: str = "layers",
) -> list[Tensor]:
    """A decoder of equal layers without a head: embeddings, layers, final norm."""
    return [
        *(token_embedding(sizes) if embeddings is None else embeddings),
        *repeated(layers, sizes.num_hidden_layers, layer),
        *final_norm,
    ]


def pre_norm_decoder(sizes: Sizes, *blocks: Sequence[Tensor], experts: Experts | None = None) -> Parts:
    """A decoder of equal layers with an RMSNorm before attention, before the MLP and at the end."""
    hidden = sizes.hidden_size
    layer = [
        *(tensor for block in blocks for tensor in block),
        *rms_norm("input_layernorm", hidden),
        *rms_norm("post_attention_layernorm", hidden),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=rms_norm("norm", hidden)), experts=experts)


def token_embedding(sizes: Sizes, name: str = "embed_tokens") -> list[Tensor]:
    """The token embedding."""
    return embedding(name, sizes.vocab_size, sizes.hidden_size)


def decoder_classes(
    stem: str,
    backbone: Build,
    *,
    prefix: str = "model",
    causal_lm: str | None = "ForCausalLM",
    model: str = "Model",
    labels: Sequence[str] = ("sequence", "token"),
) -> Mapping[str, Build]:
    """The classes of a decoder: with language-model head, without head, with classification heads.

    Args:
        stem: of transformers' class names, such as ``Llama``.
        backbone: counts the decoder without a head.
        prefix: the module of the decoder.
        causal_lm: suffix of the class with a language-model head; None if there is none.
        model: suffix of the class without a head.
        labels: transformers' generic classification heads: sequence, token.
    """

    def language_model(keys: Keys) -> Parts:
        parts = backbone(keys)
        tied = keys.flag("tie_word_embeddings")
        sizes = parts.sizes
        head = linear("lm_head", sizes.hidden_size, sizes.vocab_size, kind="embedding")
        tensors = under(prefix, parts.tensors) + ([] if tied else head)
        return replace(parts, tensors=tensors, tied=tied)

    def classifier(keys: Keys, *, bias: bool) -> Parts:
        parts = backbone(keys)
        score = linear("score", parts.sizes.hidden_size, keys.num_labels(), bias=bias, kind="other")
        return replace(parts, tensors=under(prefix, parts.tensors) + score)

    classes: dict[str, Build] = {f"{stem}{causal_lm}": language_model} if causal_lm else {}
    classes[f"{stem}{model}"] = backbone
    if "sequence" in labels:
        classes[f"{stem}ForSequenceClassification"] = lambda keys: classifier(keys, bias=False)
    if "token" in labels:
        classes[f"{stem}ForTokenClassification"] = lambda keys: classifier(keys, bias=True)
    return classes
