"""The module calls of a model, derived from the names and kinds of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.module_calls import Block, ModuleCall, Saved
from zerokit.memory.saved_tensors import (
    Module,
    PositionBias,
    attention_core,
    dropout_call,
    exchanged,
    expert_calls,
    gated_mlp,
    latent_attention_core,
    linear_calls,
    norm_call,
    plain_mlp,
    position_bias,
    ulysses_core,
)
from zerokit.memory.sizes import Sizes
from zerokit.memory.tensor_parallel import DOWNS, OUTPUTS
from zerokit.memory.traits import (
    ATTENTION_DROPOUT,
    EMBEDDING_DROPOUT,
    HIDDEN_DROPOUT,
    activation_of,
    drops,
    has_alibi_mask,
    has_window,
    is_capped,
    norm_of,
    traits_of,
    window_of,
)
from zerokit.models import ModelShape

_FUSED = ("query_key_value", "c_attn", "qkv_proj", "Wqkv")


@dataclass(frozen=True, eq=False)
class ModelCalls:
    """The module calls of a model."""

    whole: ModuleCall
    """The call of the model itself and of its body, which have no parameters of their own."""
    blocks: tuple[Block, ...]
    head: ModuleCall
    """The output matrix; its saved bytes are its input."""
    capped: bool
    """A tanh bounds the logits, and its result is saved."""
    loss_in_fp32: bool
    """Logits are cast before the cross entropy."""
    drops: bool
    """Dropout follows feed-forward layers."""
    known: bool
    """Whether the activations of the model type were compared with rehearsals."""


def model_calls_of(
    model: ModelShape, layout: Layout, sizes: Sizes, *, replaces_linear: bool = True, checkpointing: bool = False
) -> ModelCalls:
    """The calls of one forward pass in order; for `replaces_linear` see :class:`Settings`."""
    traits = traits_of(model.model_type)
    sizes = replace(sizes, keeps_inputs=replaces_linear and traits.torch_linear)
    modules = [
        Module(name, tuple(parameters))
        for name, parameters in groupby(layout.parameters, key=lambda parameter: _owner(parameter))
    ]
    blocks: list[Block] = []
    before: list[Module] = []
    for place, group in groupby(modules, key=lambda module: _layer(module.name)):
        if place is None:
            before.extend(group)
        else:
            number = int(place.rpartition(".")[2])
            masked = _is_in_blocks(model, number, sizes) or (
                sizes.sequence == 1 and (sizes.packed or has_window(model, number, sizes.seq))
            )
            calls = list(_layer_calls(model, list(group), sizes, masked=masked, checkpointing=checkpointing))
            if not sizes.keeps_inputs:
                calls = [replace(call, keeps_weight=bool(call.parameters)) for call in calls]
            # The call of the layer itself, which comes first in both directions.
            keeps_input = traits.norm_after or norm_of(model) in ("layer", "mixed") or sizes.e == 4
            own = ModuleCall("", within=tuple(one for call in calls for one in call.parameters))
            blocks.append(Block((own, *calls, ModuleCall("")), is_layer=True, keeps_input=keeps_input))
    outside = list(before)
    head = [module for module in outside if _is_head(module)]
    norms = [module for module in outside if _kind(module) == "norm"]
    transforms = [module for module in outside if _kind(module) == "other"]
    tables = [module for module in outside if module not in (*head, *norms, *transforms)]
    decoder = [number for number, block in enumerate(blocks) if _is_of(block.calls, "decoder")]
    if decoder and decoder[0]:  # an encoder comes first, and uses the same token table
        its_tables = [table for table in tables if not _is_of([table], "encoder")]
        blocks.insert(
            decoder[0],
            Block(tuple(_embedding_calls(model, its_tables, sizes, biases=2 * checkpointing)), is_embedding=True),
        )
        tables = [table for table in tables if not _is_of([table], "decoder")]
    words_in = _embedding_calls(model, tables, sizes, biases=1 * checkpointing)
    first = Block(tuple(words_in), is_embedding=True)
    norm = norm_of(model)
    final = norms or ([Module("", ())] if norm == "plain" else [])
    last = Block(
        (
            *_transform_calls(transforms, sizes),
            *(norm_call(sizes, one, norm, width=sizes.h, letter="h") for one in final),
        )
    )
    # The token table; there may also be position tables, or an image encoder.
    words = sizes.vocabulary * sizes.h
    table = min(tables, key=lambda one: abs(one.parameters[0].elements - words), default=Module("", ()))
    owner = head[0] if head else Module(table.name, table.parameters[:1])
    saved = (Saved("e·h", sizes.e * sizes.h),) if owner.trains or sizes.keeps_inputs else ()
    call = ModuleCall(owner.name, owner.parameters, saved, back=sizes.e * sizes.h)
    return ModelCalls(
        ModuleCall("", within=layout.parameters),
        (first, *blocks, last),
        call,
        is_capped(model, "final_logit_softcapping"),
        traits.loss_in_fp32,
        drops(model, HIDDEN_DROPOUT, traits.hidden_dropout),
        traits.checked,
    )


def _transform_calls(modules: Sequence[Module], sizes: Sizes) -> Iterator[ModuleCall]:
    """The transform of a masked-LM head before its norm: a linear layer and an activation."""
    for module in modules:
        yield from linear_calls([module], sizes, inputs=sizes.h, outputs=[sizes.h], letter="h", kept=False)
        yield ModuleCall("", (), (Saved("e·h", sizes.e * sizes.h),), back=2 * sizes.e * sizes.h)


def _owner(parameter: Parameter) -> str:
    """Adapters belong to the module that they adapt."""
    return parameter.module.rpartition(".")[0] if parameter.adapter else parameter.module


def _layer(name: str) -> str | None:
    """``model.layers.7`` for a module in a layer; None outside."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return None


def _kind(module: Module) -> str:
    return next((parameter.kind for parameter in module.parameters if parameter.kind != "bias"), "bias")


def _is_head(module: Module) -> bool:
    """Whether it is the output matrix; RoBERTa's `lm_head` has only a bias of its own."""
    return _kind(module) != "bias" and module.name.split(".")[-1] in (
        "lm_head",
        "embed_out",
        "score",
        "classifier",
        "qa_outputs",
    )


def _embedding_calls(
    model: ModelShape, tables: Sequence[Module], sizes: Sizes, *, biases: int
) -> Iterator[ModuleCall]:
    """`biases`: position tensors that checkpointed layers get from the first layer."""
    for number, table in enumerate(tables):
        saved = (Saved("8", 8),) if number == 0 else ()
        work = sizes.e * sizes.h
        # The gradient of a table is as large as the table; the incoming gradient is one hidden state.
        yield ModuleCall(table.name, table.parameters, saved, work=work, back=sizes.e * sizes.h)
    if drops(model, EMBEDDING_DROPOUT, traits_of(model.model_type).embedding_dropout):
        yield dropout_call(sizes, sizes.h, "h")
    if has_alibi_mask(model):
        yield ModuleCall("", (), (Saved("e·a·s", sizes.e * sizes.a * sizes.seq),))
    if biases and traits_of(model.model_type).position_bias:
        yield ModuleCall("", (), (position_bias(sizes, biases),))
    if any(_is_in_blocks(model, layer, sizes) for layer in range(model.num_hidden_layers or 0)):
        window = window_of(model) or 0  # its mask, which all layers share: sequence_parallel.py `_window_mask`
        yield ModuleCall("", (), (Saved(f"2e·{window}²/(b·s)", 2 * sizes.e * window**2 // sizes.tokens),))
    yield ModuleCall("")  # of positions, or a dropout of nothing: no parameters, but a call


def _is_in_blocks(model: ModelShape, layer: int, sizes: Sizes) -> bool:
    """Whether a layer goes through sequences that ranks share in blocks of its window: sequence_parallel.py."""
    return sizes.sequence > 1 and has_window(model, layer, sizes.seq * sizes.sequence - 1)


def _is_of(modules: Sequence[Module] | Sequence[ModuleCall], stack: str) -> bool:
    names = (one.name if isinstance(one, Module) else one.module for one in modules)
    return any(stack in name.split(".") for name in names)


def _layer_calls(
    model: ModelShape, modules: Sequence[Module], sizes: Sizes, *, masked: bool, checkpointing: bool
) -> Iterator[ModuleCall]:
    """Norm, attention, other norms, feed-forward: the order in most layers."""
    traits, norm = traits_of(model.model_type), norm_of(model)
    dropout = drops(model, HIDDEN_DROPOUT, traits.hidden_dropout)
    inner = [module for module in modules if _kind(module) == "norm" and _is_within_attention(module.name)]
    norms = [module for module in modules if _kind(module) == "norm" and module not in inner]
    attention = [module for module in modules if _kind(module) == "attention"]
    forward = [module for module in modules if _kind(module) in ("mlp", "router", "expert")]
    if norm == "plain" and not norms:
        norms = [Module("", ())] * 2
    if norms:
        yield norm_call(sizes, norms[0], norm, width=sizes.h, letter="h")
    tables = [module for module in attention if module.name.endswith(".relative_attention_bias")]
    linear = [module for module in attention if module not in tables]
    for table in tables:
        yield ModuleCall(table.name, table.parameters)
    for _, group in groupby(linear, key=lambda module: _attention_of(module.name)):
        own = list(group)
        bias = None
        if traits.position_bias:
            bias = PositionBias(
                is_made=bool(tables),
                of_zeros="EncDecAttention" in own[0].name,
                causal=_is_of(own, "decoder") and "EncDecAttention" not in own[0].name,
                checkpointing=checkpointing,
            )
        yield from _attention_calls(model, own, inner, sizes, masked=masked, bias=bias)
        if dropout and traits.drops_attention_output:
            yield dropout_call(sizes, sizes.h, "h")
    for one in norms[1:]:
        call = norm_call(sizes, one, norm, width=sizes.h, letter="h")
        # Both norms save the same input.
        beside = traits.beside and model.config.get("use_parallel_residual", True)
        yield replace(call, saved=(Saved("8", 8),)) if beside else call
    shares_input = len(norms) == 1 and any(module.trains for module in attention)
    yield from _forward_calls(model, forward, sizes, kept=shares_input)
    if dropout and forward:
        yield dropout_call(sizes, sizes.h, "h")


def _attention_of(name: str) -> str | None:
    """The attention module that a module belongs to."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if "att" in part.lower() and "norm" not in part.lower():
            return ".".join(parts[: place + 1])
    return None


def _is_within_attention(name: str) -> bool:
    """Norms of queries, keys or latent vectors, not the norm after attention."""
    return any("norm" in part and part.startswith(("q_", "k_", "kv_")) for part in name.split("."))


def _ends_in(module: Module, names: Sequence[str]) -> bool:
    return any(module.name.endswith(f".{name}") for name in names)


def _attention_calls(
    model: ModelShape,
    group: Sequence[Module],
    norms: Sequence[Module],
    sizes: Sizes,
    *,
    masked: bool,
    bias: PositionBias | None,
) -> Iterator[ModuleCall]:
    traits = traits_of(model.model_type)
    outputs = [module for module in group if _ends_in(module, OUTPUTS)]
    if isinstance(model.config.get("kv_lora_rank"), int):
        yield from _latent_attention_calls(model, group, norms, sizes)
        return
    inputs = [module for module in group if module not in outputs]
    fused = any(_ends_in(module, _FUSED) for module in group)
    widths = [_outputs(module, sizes.h) for module in inputs]
    yield from linear_calls(inputs, sizes, inputs=sizes.h, outputs=widths, letter="h", kept=False)
    for of_queries, ones in groupby(norms, key=lambda one: "q_norm" in one.name or "q_layernorm" in one.name):
        each = list(ones)  # one for all heads, or one for each
        width, letter = (sizes.q, "q") if of_queries else (sizes.kv, "kv")
        letter = letter if len(each) == 1 else f"{letter}/{len(each)}"
        for one in each:
            kind, rows = norm_of(model), sizes.a if len(each) == 1 else 1
            yield norm_call(sizes, one, kind, width=width // len(each), letter=letter, rows=rows)
    if sizes.sequence > 1:
        yield ulysses_core(sizes, fused=fused, window=window_of(model) if masked else None)
        for call in linear_calls(outputs, sizes, inputs=sizes.q, outputs=[sizes.h], letter="q", kept=False):
            yield replace(call, work=call.work + exchanged(sizes, fused=fused))
        return
    yield attention_core(
        sizes,
        replace(traits, rotary="none") if has_alibi_mask(model) else traits,
        fused=fused,
        dropout=drops(model, ATTENTION_DROPOUT, traits.attention_dropout),
        plain=not traits.torch_linear and sizes.attention == "sdpa" and sizes.kv == sizes.q // sizes.a,
        capped=is_capped(model, "attn_logit_softcapping"),
        masked=masked,
        bias=bias,
    )
    for one in outputs:
        yield from linear_calls([one], sizes, inputs=sizes.q, outputs=[sizes.h], letter="q", kept=True)


def _latent_attention_calls(
    model: ModelShape, group: Sequence[Module], norms: Sequence[Module], sizes: Sizes
) -> Iterator[ModuleCall]:
    """Projections down to latent vectors, their norms, and projections up: queries, then keys and values."""
    values = sizes.a * int(model.config["v_head_dim"])
    by_name = {module.name.split(".")[-1]: module for module in (*group, *norms)}
    kept = False
    for stem in ("q", "kv"):
        down = by_name.get("q_a_proj") if stem == "q" else by_name["kv_a_proj_with_mqa"]
        if down is None:
            whole = by_name["q_proj"]
            yield from linear_calls([whole], sizes, inputs=sizes.h, outputs=[sizes.q], letter="h", kept=kept)
            kept = kept or whole.trains
            continue
        width = _outputs(down, sizes.h)
        yield from linear_calls([down], sizes, inputs=sizes.h, outputs=[width], letter="h", kept=kept)
        kept = kept or down.trains
        norm, up = by_name[f"{stem}_a_layernorm"], by_name[f"{stem}_b_proj"]
        rank = sum(parameter.elements for parameter in norm.parameters)
        yield norm_call(sizes, norm, "rms", width=rank, letter=str(rank))
        made = _outputs(up, rank)
        yield from linear_calls([up], sizes, inputs=rank, outputs=[made], letter=str(rank), kept=False)
    yield latent_attention_core(sizes, values=values, expanded=_outputs(by_name["kv_b_proj"], rank))
    yield from linear_calls(
        [by_name["o_proj"]], sizes, inputs=values, outputs=[sizes.h], letter=str(values), kept=True
    )


def _outputs(module: Module, inputs: int) -> int:
    """The outputs of a linear layer."""
    weight = max((parameter.elements for parameter in module.parameters if not parameter.adapter), default=0)
    return max(1, weight // inputs)


def _forward_calls(model: ModelShape, modules: Sequence[Module], sizes: Sizes, *, kept: bool) -> Iterator[ModuleCall]:
    dense = [module for module in modules if _kind(module) == "mlp"]
    shared = list(_dense_calls(model, dense, sizes, kept=kept)) if dense else []
    routed = list(_routed_calls(model, modules, sizes))
    yield from (*shared, *routed) if traits_of(model.model_type).shared_first else (*routed, *shared)


def _routed_calls(model: ModelShape, modules: Sequence[Module], sizes: Sizes) -> Iterator[ModuleCall]:
    experts = [module for module in modules if _kind(module) == "expert"]
    if experts and model.experts is not None:
        yield from expert_calls(
            sizes,
            traits_of(model.model_type),
            router=[module for module in modules if _kind(module) == "router"],
            experts=experts[0],
            width=_expert_width(experts[0], model, sizes),
            chosen=model.experts.num_experts_per_tok,
            count=model.experts.num_experts,
        )


def _dense_calls(model: ModelShape, dense: Sequence[Module], sizes: Sizes, *, kept: bool) -> Iterator[ModuleCall]:
    downs = [module for module in dense if _ends_in(module, DOWNS)]
    ups = [module for module in dense if module not in downs]
    if not downs or not ups:
        yield from linear_calls(
            dense, sizes, inputs=sizes.h, outputs=[_outputs(one, sizes.h) for one in dense], letter="h", kept=kept
        )
        return
    inside = _outputs(downs[0], sizes.h)
    traits = traits_of(model.model_type)
    dropout = traits.drops_inside and drops(model, HIDDEN_DROPOUT, traits.hidden_dropout)
    activation = activation_of(model)
    if len(ups) == 2 or _outputs(ups[0], sizes.h) == 2 * inside:
        yield from gated_mlp(
            sizes, up=ups, down=downs[0], width=inside, activation=activation, dropout=dropout, kept=kept
        )
    else:
        yield from plain_mlp(sizes, up=ups[0], down=downs[0], activation=activation, dropout=dropout, kept=kept)


def _expert_width(experts: Module, model: ModelShape, sizes: Sizes) -> int:
    """From the down projections, n·h·f: the smaller of the two stacks."""
    assert model.experts is not None
    stacks = sorted(parameter.elements for parameter in experts.parameters if not parameter.adapter)
    stacks = [size for size in stacks if size >= stacks[-1] // 4]
    return stacks[0] // (model.experts.num_experts * sizes.h)
