"""From a model's shape to its blocks: which module is what, told by the names and kinds of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.module_calls import Block, ModuleCall, Saved
from zerokit.memory.saved_tensors import (
    Activation,
    Module,
    Norm,
    attention_core,
    dropout_call,
    expert_calls,
    gated_mlp,
    linear_calls,
    norm_call,
    plain_mlp,
)
from zerokit.memory.sizes import Sizes
from zerokit.models import ModelShape

_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "o", "out_lin", "output.dense")
_DOWNS = ("down_proj", "c_proj", "fc2", "dense_4h_to_h", "wo", "fc_out", "output.dense", "lin2")
_FUSED = ("query_key_value", "c_attn", "qkv_proj", "Wqkv")


_WITHOUT_LINEAR = ("falcon",)
"""Model types whose projections multiply by a transposed view of the weight: FalconLinear. What is saved as
it is, such as the weight of GPT-2's Conv1D, follows when stage 3 takes its data away."""

_PARTLY_ROTARY = ("gpt_neox", "phi", "phi3", "stablelm")
"""Model types that rotate a part of each head and put it together again, head by head."""

_DEFAULT_ACTIVATIONS = {
    "gpt2": "gelu_new",
    "gpt_neo": "gelu_new",
    "gptj": "gelu_new",
    "phi": "gelu_new",
    "opt": "relu",
    "t5": "relu",
}
"""Of configs without the key, where the default is no single operation that saves its input."""


@dataclass(frozen=True)
class ModelCalls:
    """A model, call by call."""

    blocks: tuple[Block, ...]
    head: ModuleCall
    """The output matrix; its saved bytes are its input."""
    capped: bool
    """A tanh bounds the logits, and its result is kept."""
    known: bool
    """Whether its family's activations have been checked."""


CHECKED = frozenset(
    {
        *("falcon", "gemma", "gemma2", "gpt2", "gpt_neox", "llama", "mistral", "mixtral", "olmo2", "opt"),
        *("phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    }
)
"""Model types whose estimates are compared with rehearsals."""


def model_calls_of(model: ModelShape, layout: Layout, sizes: Sizes) -> ModelCalls:
    """The calls of one forward pass, in order."""
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
            calls = list(_layer_calls(model, list(group), sizes))
            if model.model_type in _WITHOUT_LINEAR:
                calls = [replace(call, keeps_weight=bool(call.parameters)) for call in calls]
            # The layer's own call, which comes first in either direction.
            blocks.append(Block((ModuleCall(""), *calls, ModuleCall("")), is_layer=True))
    outside = list(before)
    head = [module for module in outside if _is_head(module)]
    norms = [module for module in outside if _kind(module) == "norm"]
    tables = [module for module in outside if module not in head and module not in norms]
    first = Block(tuple(_embedding_calls(model, tables, sizes)))
    norm = _norm_of(model)
    last = Block(tuple(norm_call(sizes, one, norm, width=sizes.h, letter="h") for one in norms))
    tied = tables[0].parameters if not head and tables else ()
    owner = head[0] if head else Module(tables[0].name if tables else "", tied[:1])
    saved = (Saved("e·h", sizes.e * sizes.h),) if owner.trains else ()
    call = ModuleCall(owner.name, owner.parameters, saved, back=sizes.e * sizes.h)
    return ModelCalls(
        (first, *blocks, last),
        call,
        _is_capped(model, "final_logit_softcapping"),
        model.model_type in CHECKED,
    )


def _owner(parameter: Parameter) -> str:
    """Adapters work with the module that they adapt."""
    return parameter.module.rpartition(".lora_")[0] if parameter.adapter else parameter.module


def _layer(name: str) -> str | None:
    """``model.layers.7`` of a module in a layer; None outside."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return None


def _kind(module: Module) -> str:
    return next((parameter.kind for parameter in module.parameters if parameter.kind != "bias"), "bias")


def _is_head(module: Module) -> bool:
    return module.name.split(".")[-1] in ("lm_head", "embed_out", "score", "classifier", "qa_outputs")


def _norm_of(model: ModelShape) -> Norm:
    if model.model_type.startswith(("gemma", "olmo2", "olmo3", "gpt_oss")):
        return "gemma"
    has_bias = any(tensor.kind == "norm" and tensor.name.endswith(".bias") for tensor in model.tensors)
    return "layer" if has_bias else "rms"


def _activation_of(model: ModelShape) -> Activation:
    """By the config's key, else transformers' default."""
    keys = ("hidden_activation", "hidden_act", "activation_function", "feed_forward_proj")
    named = next((str(model.config[key]) for key in keys if model.config.get(key)), "")
    named = named or _DEFAULT_ACTIVATIONS.get(model.model_type, "")
    if named == "gelu_new":
        return "gelu_new"
    return "relu" if named == "relu" else "kernel"


def _is_capped(model: ModelShape, key: str) -> bool:
    """Gemma 2 caps unless its config says null (configuration_gemma2.py)."""
    return bool(model.config.get(key, 1.0 if model.model_type == "gemma2" else None))


def _dropout_of(model: ModelShape) -> float:
    """The probability after attention and feed-forward layers, with transformers' defaults."""
    keys = (
        "resid_pdrop",
        "hidden_dropout_prob",
        "hidden_dropout",
        "dropout_rate",
        "dropout",
        "resid_dropout",
    )
    for key in keys:
        if isinstance(model.config.get(key), int | float):
            return float(model.config[key])
    return 0.1 if model.model_type in ("gpt2", "bert", "roberta", "opt", "t5", "mt5", "bart") else 0.0


def _embedding_calls(model: ModelShape, tables: Sequence[Module], sizes: Sizes) -> Iterator[ModuleCall]:
    for number, table in enumerate(tables):
        saved = (Saved("8", 8),) if number == 0 else ()
        work = sizes.e * sizes.h
        # The gradient of a table is as large as the table; what flows into it is one hidden state.
        yield ModuleCall(table.name, table.parameters, saved, work=work, back=sizes.e * sizes.h)
    if model.model_type in ("gpt2", "bert", "roberta", "opt") and _dropout_of(model):
        yield dropout_call(sizes)


def _layer_calls(model: ModelShape, modules: Sequence[Module], sizes: Sizes) -> Iterator[ModuleCall]:
    """Norm, attention, the other norms, feed-forward: the order in which most layers call them."""
    norm, dropout = _norm_of(model), _dropout_of(model) > 0
    inner = [module for module in modules if _kind(module) == "norm" and _attention_of(module.name)]
    norms = [module for module in modules if _kind(module) == "norm" and module not in inner]
    attention = [module for module in modules if _kind(module) == "attention"]
    forward = [module for module in modules if _kind(module) in ("mlp", "router", "expert")]
    if norms:
        yield norm_call(sizes, norms[0], norm, width=sizes.h, letter="h")
    for _, group in groupby(attention, key=lambda module: _attention_of(module.name)):
        yield from _attention_calls(model, list(group), inner, sizes)
        if dropout:
            yield dropout_call(sizes)
    for one in norms[1:]:
        call = norm_call(sizes, one, norm, width=sizes.h, letter="h")
        # Attention and feed-forward side by side: both norms have, and save, the same input.
        beside = model.model_type == "gpt_neox" and model.config.get("use_parallel_residual", True)
        yield replace(call, saved=(Saved("8", 8),)) if beside else call
    shares_input = len(norms) == 1 and any(module.trains for module in attention)
    yield from _forward_calls(model, forward, sizes, kept=shares_input)
    if dropout and forward:
        yield dropout_call(sizes)


def _attention_of(name: str) -> str | None:
    """The attention that a module belongs to: the path up to the part that speaks of attention."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if "att" in part.lower() and "norm" not in part.lower():
            return ".".join(parts[: place + 1])
    return None


def _ends_in(module: Module, names: Sequence[str]) -> bool:
    return any(module.name.endswith(f".{name}") for name in names)


def _attention_calls(
    model: ModelShape, group: Sequence[Module], norms: Sequence[Module], sizes: Sizes
) -> Iterator[ModuleCall]:
    outputs = [module for module in group if _ends_in(module, _OUTPUTS)]
    inputs = [module for module in group if module not in outputs]
    fused = any(_ends_in(module, _FUSED) for module in group)
    widths = [_outputs(module, sizes.h) for module in inputs]
    yield from linear_calls(inputs, sizes, inputs=sizes.h, outputs=widths, letter="h", kept=False)
    for one in norms:
        wide = sizes.q if "q_norm" in one.name or "q_layernorm" in one.name else sizes.kv
        letter = "q" if wide == sizes.q else "kv"
        yield norm_call(sizes, one, _norm_of(model), width=wide, letter=letter, rows=sizes.a)
    rotary = model.model_type not in ("gpt2", "opt", "bert", "t5")
    yield attention_core(
        sizes,
        fused=fused,
        rotary=rotary,
        partial=model.model_type in _PARTLY_ROTARY,
        dropout=model.model_type == "gpt2",
        plain=model.model_type == "falcon" and sizes.attention == "sdpa",
        capped=_is_capped(model, "attn_logit_softcapping"),
    )
    for one in outputs:
        yield from linear_calls([one], sizes, inputs=sizes.q, outputs=[sizes.h], letter="q", kept=True)


def _outputs(module: Module, inputs: int) -> int:
    """How many numbers a linear layer makes of a token."""
    weight = max((parameter.elements for parameter in module.parameters if not parameter.adapter), default=0)
    return max(1, weight // inputs)


def _forward_calls(
    model: ModelShape, modules: Sequence[Module], sizes: Sizes, *, kept: bool
) -> Iterator[ModuleCall]:
    experts = [module for module in modules if _kind(module) == "expert"]
    routers = [module for module in modules if _kind(module) == "router"]
    dense = [module for module in modules if _kind(module) == "mlp"]
    if experts and model.experts is not None:
        width = _expert_width(experts[0], model, sizes)
        yield from expert_calls(
            sizes,
            router=routers,
            experts=experts[0],
            width=width,
            chosen=model.experts.num_experts_per_tok,
            count=model.experts.num_experts,
        )
    if not dense:
        return
    downs = [module for module in dense if _ends_in(module, _DOWNS)]
    ups = [module for module in dense if module not in downs]
    if not downs or not ups:
        yield from linear_calls(
            dense,
            sizes,
            inputs=sizes.h,
            outputs=[_outputs(one, sizes.h) for one in dense],
            letter="h",
            kept=kept,
        )
        return
    inside = _outputs(downs[0], sizes.h)
    if len(ups) == 2 or _outputs(ups[0], sizes.h) == 2 * inside:
        yield from gated_mlp(sizes, up=ups, down=downs[0], width=inside, kept=kept)
    else:
        yield from plain_mlp(sizes, up=ups[0], down=downs[0], activation=_activation_of(model), kept=kept)


def _expert_width(experts: Module, model: ModelShape, sizes: Sizes) -> int:
    """From the down projections, which are n·h·f: the smaller of the two stacks."""
    assert model.experts is not None
    stacks = sorted(parameter.elements for parameter in experts.parameters if not parameter.adapter)
    stacks = [size for size in stacks if size >= stacks[-1] // 4]
    return stacks[0] // (model.experts.num_experts * sizes.h)
