"""What autograd saves of each part of a layer, per token, in transformers 5.23.

Each function returns the calls of one part in order. For letters see :class:`~zerokit.memory.sizes.Sizes`. A
tensor that two operations save counts once, with the first one that keeps it. The input of a linear layer is
saved only if its weight or adapter is trained, or under stage 3 (:attr:`Sizes.keeps_inputs`).

Source: saved tensors of transformers' modeling files; tests count them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zerokit.memory.adapters import AdapterPart
from zerokit.memory.layout import Parameter
from zerokit.memory.module_calls import ModuleCall, Saved
from zerokit.memory.sizes import Sizes
from zerokit.memory.traits import Activation, Norm, Traits


@dataclass(frozen=True)
class Module:
    """A module of a layer with its parameters."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def trains(self) -> bool:
        """Whether it, or its adapter, has a gradient that needs the input."""
        return any(one.trainable and one.adapter != "outputs" for one in self.parameters)


def norm_call(sizes: Sizes, module: Module, kind: Norm, *, width: int, letter: str, rows: int = 1) -> ModuleCall:
    """A norm of `width` numbers per token in `rows` rows."""
    e = sizes.e
    if kind == "layer":
        saved = [Saved(f"e·{letter} + {8 * rows}", e * width + 8 * rows)]
        return ModuleCall(module.name, module.parameters, tuple(saved), back=e * 2 * width)
    times = "·" if letter.isdigit() else ""
    if kind == "centred":
        saved = [Saved(f"12{letter} + {4 * rows}", 12 * width + 4 * rows)]
    elif kind == "plain":
        saved = [Saved(f"4{letter} + {8 * rows}", 4 * width + 8 * rows)]
    else:
        saved = [Saved(f"4{times}{letter} + {4 * rows}", 4 * width + 4 * rows)]
    if kind == "mixed":
        saved.append(Saved(f"e·{letter}", e * width))
    if module.trains and kind in ("rms", "mixed", "gemma"):
        saved.append(Saved(f"4{letter}", 4 * width) if kind == "gemma" else Saved(f"e·{letter}", e * width))
    casts = 4 if e == 2 else 0
    return ModuleCall(module.name, module.parameters, tuple(saved), work=4 * width, back=(12 + casts) * width)


def linear_calls(
    modules: Sequence[Module], sizes: Sizes, *, inputs: int, outputs: Sequence[int], letter: str, kept: bool
) -> list[ModuleCall]:
    """Linear layers with the same input; the first one that needs it saves it, unless it is `kept` anyway."""
    calls = []
    for module, width in zip(modules, outputs, strict=True):
        saved = []
        parts = {one.adapter: one.elements for one in module.parameters if one.adapter}
        keeps = sizes.keeps_inputs and not any(one.packed for one in module.parameters)
        drops = "dropped A" in parts
        if (keeps or (module.trains and not drops)) and not kept:
            saved.append(Saved(f"e·{letter}", sizes.e * inputs))
            kept = True
        if keeps and "inputs" in parts:  # what IA3 has made of them
            saved.append(Saved(f"e·{letter}", sizes.e * inputs))
        if drops:  # what is left of the input, of its own, and the mask
            saved.append(Saved(f"(e + 1)·{letter}", (sizes.e + 1) * inputs))
        traffic = sizes.e * (inputs + width)
        call = ModuleCall(module.name, module.parameters, tuple(saved), work=sizes.e * width, back=traffic)
        calls.append(_with_adapter(call, parts, sizes, inputs=inputs, width=width) if parts else call)
    return calls


def _with_adapter(
    call: ModuleCall, parts: Mapping[AdapterPart, int], sizes: Sizes, *, inputs: int, width: int
) -> ModuleCall:
    """A linear layer's call with its adapter; `parts`: elements of the adapter's parts.

    IA3 saves what it multiplies. DoRA saves the outputs of the layer and of LoRA, which share a factor per
    output. It makes LoRA's weight from an identity, adds it to the layer's weight in 16 bits, and takes the
    norm. With dropout it computes the layer's output again.

    Source: peft tuners/ia3/layer.py Linear.forward, tuners/lora/dora.py DoraLinearLayer, variants.py.
    """
    e, saved, work, back, made, waits = sizes.e, list(call.saved), call.work, call.back, 0, 0
    product = parts.get("A", 0) + parts.get("dropped A", 0)
    if product:
        rank, waits = product // inputs, e * inputs
        saved.append(Saved(f"e·{rank}", e * rank))
    if "magnitude" in parts:
        saved.append(Saved(f"2e·{width}", 2 * e * width))
        work, back = work + 2 * e * width, back + 2 * e * width
        unpacked = sum(one.elements for one in call.parameters if one.packed)
        made = inputs * inputs + product + inputs * width + unpacked
        if "dropped A" in parts:
            work += e * width
    if "outputs" in parts:
        saved.append(Saved(f"e·{width}", e * width))
        back += e * width
    if "inputs" in parts:
        back += e * inputs
    return replace(call, saved=tuple(saved), work=work, back=back, made=made, waits=waits)


def attention_core(
    sizes: Sizes,
    traits: Traits,
    *,
    fused: bool,
    dropout: bool = False,
    plain: bool = False,
    capped: bool = False,
    masked: bool = False,
    bias: PositionBias | None = None,
) -> ModuleCall:
    """Attention between its projections.

    A fused projection is saved whole if a part of it is used directly: all of it without rotary embeddings,
    only the values with them. With partial rotary embeddings queries and the result are stored head by head,
    and the result is copied into token order.

    Args:
        sizes: of the micro-batch.
        traits: of the model type.
        fused: one projection for queries, keys and values.
        dropout: the probabilities go through dropout.
        plain: torch has no kernel for the call and uses plain operations.
        capped: a tanh bounds the scores.
        masked: torch gets a mask. It copies the mask to the type of the activations in each layer, and keys
            and values are repeated for all heads (transformers integrations/sdpa_attention.py
            use_gqa_in_sdpa).
        bias: a tensor of positions instead of a mask, one for all sequences of a batch.
    """
    e, q, kv, a, s = sizes.e, sizes.q, sizes.kv, sizes.a, sizes.seq
    repeats = kv < q
    if sizes.attention == "eager":
        return _eager_core(sizes, traits, fused=fused, dropout=dropout, capped=capped)
    masked = masked and sizes.attention == "sdpa"
    if plain or (e == 4 and repeats and sizes.attention == "sdpa" and not masked):
        # No kernel takes fp32 with grouped queries: torch falls back to plain operations in fp32. For a batch
        # of one, a single head of keys and values is repeated as a view.
        keys, letter = (kv, "kv") if plain and sizes.batch == 1 else (q, "q")
        saved = [Saved(f"(4 + e)·q + 8{letter} + 4a·s", (4 + e) * q + 8 * keys + 4 * a * s)]
        return ModuleCall("", (), tuple(saved), work=8 * a * s, back=8 * a * s)
    if fused and traits.rotary != "none":
        projections = Saved("e·(2q + 3kv)", e * (2 * q + 3 * kv))
    else:
        projections = Saved("e·(q + 2kv)", e * (q + 2 * kv))
    saved = [projections, Saved("e·q + 4a", e * q + 4 * a)]
    if traits.rotary == "partial":
        saved.append(Saved("e·q", e * q))
    if masked:
        saved.append(Saved("e·s", e * s))
        if repeats and kv > q // a:  # one head is repeated as a view
            saved.append(Saved("2e·(q - kv)", 2 * e * (q - kv)))
    expanded = 2 * e * q if repeats else 0
    back = e * (2 * q + 2 * kv) + 4 * q + 4 * a + expanded
    if bias is not None:
        saved += bias.saved(sizes)
        back += bias.back(sizes)
    return ModuleCall("", (), tuple(saved), work=e * (q + kv), back=back)


def exchanged(sizes: Sizes, *, fused: bool) -> int:
    """Bytes of a rank's queries, keys and values, which the layer holds while DeepSpeed exchanges them."""
    return sizes.e * (sizes.q + 2 * sizes.kv) * (1 + fused)


def ulysses_core(sizes: Sizes, *, fused: bool, window: int | None = None) -> ModuleCall:
    """Attention to all tokens of a sequence for a part of the heads, between two exchanges of all ranks.

    A rank's part has as many numbers as its tokens have in all heads; each rank has at least one head of keys
    and values. Their exchange makes copies, which attention saves. The result is copied for the exchange
    (unless there is one sequence only), and afterwards into token order. Positions of all tokens are gathered.
    With a sliding window a layer goes through the sequence in blocks of its length. Each but the first has a mask,
    for which the keys and values of two blocks are repeated for all heads.

    Source: deepspeed/runtime/sequence_parallel/ulysses_sp.py UlyssesSPAttentionHF.
    """
    e, q, a, length = sizes.e, sizes.q, sizes.a, sizes.seq * sizes.sequence
    kv = max(sizes.kv, sizes.sequence * q // a)
    saved = [Saved("e·(q + 2kv)", e * (q + 2 * kv)), Saved("e·q + 4a", e * q + 4 * a)]
    copies = (2 + (sizes.batch > 1 or window is not None)) * e * q
    if window is not None and sizes.sequence * q // a < kv < q:  # one head is repeated as a view
        saved.append(Saved(f"4e·q·(1 - {window}/{length})", 4 * e * q * (length - window) // length))
    expanded = 2 * e * q if kv < q else 0
    back = e * (2 * q + 2 * kv) + 4 * q + 4 * a + expanded
    work = exchanged(sizes, fused=fused) + copies + 2 * 8 * sizes.sequence
    return ModuleCall("", (), tuple(saved), work=work, back=back)


def position_bias(sizes: Sizes, count: int = 1) -> Saved:
    """T5's position bias of all heads, `count` times."""
    return Saved(f"{count if count > 1 else ''}e·a·s/b", count * sizes.e * sizes.a * sizes.seq // sizes.batch)


@dataclass(frozen=True)
class PositionBias:
    """T5's position bias in one attention.

    The first layer of a stack makes it from a table; for cross-attention it is zeros. The former is copied in
    each layer, the latter is used directly (transformers T5Attention.forward, and create_position_bias_mask
    in integrations/sdpa_attention.py).
    """

    is_made: bool
    """Whether this is the first layer."""
    of_zeros: bool
    causal: bool
    checkpointing: bool
    """Whether layers are recomputed; zeros then have a gradient too."""

    def saved(self, sizes: Sizes) -> list[Saved]:
        """The copies that attention saves, and what made the tensor."""
        # torch pads rows to a multiple of 16 in a copy (_preprocess_mask in aten's attention.cpp).
        is_copied = not self.of_zeros or sizes.seq % _ROW_ALIGNMENT != 0
        saved = [position_bias(sizes)] if is_copied else []
        if self.causal:
            saved.append(Saved("s/b", sizes.seq // sizes.batch))
        if self.is_made and not self.of_zeros:
            saved.append(Saved("8s/b", 8 * sizes.seq // sizes.batch))  # rows of the table
        if self.is_made and (self.checkpointing or (self.of_zeros and not is_copied)):
            saved.append(position_bias(sizes))
        return saved

    def back(self, sizes: Sizes) -> int:
        """Its gradient: per sequence, their sum if there are several, and that of later layers."""
        if self.of_zeros and not self.checkpointing:  # it has none
            return 0
        several = sizes.batch + 1 if sizes.batch > 1 else 1
        return (several + 1) * position_bias(sizes).bytes


_ROW_ALIGNMENT = 16


def _eager_core(sizes: Sizes, traits: Traits, *, fused: bool, dropout: bool, capped: bool) -> ModuleCall:
    """Eager attention: keys and values are repeated for all heads, and probabilities are saved."""
    e, q, kv, a, s = sizes.e, sizes.q, sizes.kv, sizes.a, sizes.seq
    repeats = kv < q
    letter, keys = ("q", q) if repeats or not fused else ("kv", kv)
    multiplied = 4 if traits.scores_in_fp32 else e
    unit = "4" if multiplied != e else "e"
    saved = [
        Saved(f"{unit}·q + {unit}·{letter} + e·{letter}", multiplied * (q + keys) + e * keys),
        Saved("e·q", e * q),
        *_probabilities(sizes, traits, dropout=dropout),
    ]
    if capped:
        saved.append(Saved("e·a·s", e * a * s))
    wide = 4 if traits.softmax == "fp32" else e
    # The softmax runs backward last, when the dropout mask is already freed.
    mask = a * s if dropout and wide != e else 0
    back = (wide + e) * a * s - mask
    return ModuleCall("", (), tuple(saved), work=traits.score_copies * e * a * s, back=back)


def _probabilities(sizes: Sizes, traits: Traits, *, dropout: bool) -> list[Saved]:
    """The softmax saves its result; a cast or dropout makes another tensor, which the matmul with values
    saves."""
    e, a, s = sizes.e, sizes.a, sizes.seq
    made = 4 if traits.softmax == "fp32" else e
    saved = [Saved(f"{'e' if made == e else '4'}·a·s", made * a * s)]
    if traits.sinks:
        saved.append(Saved("(8 + e)·a", (8 + e) * a))
    if dropout:
        saved.append(Saved("a·s", a * s))
    if dropout or made != e:
        saved.append(Saved("e·a·s", e * a * s))
    return saved


def latent_attention_core(sizes: Sizes, *, values: int, expanded: int) -> ModuleCall:
    """DeepSeek's attention between its projections.

    Args:
        sizes: `q` is the width of all queries, and of all keys.
        values: the width of all values, and of the result.
        expanded: the width of the tensor from which keys and values are sliced.
    """
    e, q, a, s = sizes.e, sizes.q, sizes.a, sizes.seq
    if sizes.attention == "eager":
        saved = [
            Saved(f"2e·q + e·{values}", e * (2 * q + values)),
            Saved(f"e·{values}", e * values),
            *_probabilities(sizes, Traits(), dropout=False),
        ]
        return ModuleCall("", (), tuple(saved), work=2 * e * a * s, back=(4 + e) * a * s)
    saved = [
        Saved(f"2e·q + e·{expanded}", e * (2 * q + expanded)),
        # The result is copied into token order.
        Saved(f"2e·{values} + 4a", 2 * e * values + 4 * a),
    ]
    return ModuleCall("", (), tuple(saved), work=e * q, back=e * (2 * q + 2 * values) + 4 * q + 4 * a)


def gated_mlp(
    sizes: Sizes,
    *,
    up: Sequence[Module],
    down: Module,
    width: int,
    activation: Activation = "kernel",
    dropout: bool = False,
    kept: bool = False,
) -> list[ModuleCall]:
    """Gate, up and down: down(act(gate(x))·up(x)); gate and up may be fused. `kept`: x is already saved."""
    e, f, letter = sizes.e, width, _width_letter(sizes, width)
    outputs = [2 * f] if len(up) == 1 else [f, f]
    calls = linear_calls(up, sizes, inputs=sizes.h, outputs=outputs, letter="h", kept=kept)
    count = 6 if activation == "gelu_new" else 3
    saved = Saved(f"{count}e·{letter}", count * e * f)
    calls.append(ModuleCall("", (), (saved,), work=e * f, back=3 * e * f))
    if dropout:
        calls.append(dropout_call(sizes, f, letter))
    calls += linear_calls([down], sizes, inputs=f, outputs=[sizes.h], letter=letter, kept=False)
    return calls


def _width_letter(sizes: Sizes, width: int) -> str:
    """f, or the number if experts have another width."""
    return "f" if width == sizes.f else str(width)


def plain_mlp(
    sizes: Sizes, *, up: Module, down: Module, activation: Activation, dropout: bool = False, kept: bool = False
) -> list[ModuleCall]:
    """Two linear layers with an activation between them. `kept`: their input is already saved."""
    e, f = sizes.e, sizes.f
    calls = linear_calls([up], sizes, inputs=sizes.h, outputs=[f], letter="h", kept=kept)
    if activation == "gelu_new":
        calls.append(ModuleCall("", (), (Saved("4e·f", 4 * e * f),), work=3 * e * f, back=3 * e * f))
    else:
        calls.append(ModuleCall("", (), (Saved("e·f", e * f),), work=e * f, back=2 * e * f))
    if dropout:
        calls.append(dropout_call(sizes, f, "f"))
    kept = activation == "relu" and not dropout  # relu saves its output
    calls += linear_calls([down], sizes, inputs=f, outputs=[sizes.h], letter="f", kept=kept)
    return calls


def dropout_call(sizes: Sizes, width: int, letter: str) -> ModuleCall:
    """A mask of one byte per element."""
    return ModuleCall("", (), (Saved(letter, width),), work=sizes.e * width, back=sizes.e * width)


def expert_calls(
    sizes: Sizes, traits: Traits, *, router: Sequence[Module], experts: Module, width: int, chosen: int, count: int
) -> list[ModuleCall]:
    """A router and its gated experts; each token meets `chosen` of `count` experts, evenly routed.

    Tokens are sorted by expert, k copies of each. Saved are the copies, gate and up, the activation, their
    product, and the weighted outputs. In backward the gradient of the down projections exists before that of
    gate and up.
    """
    e, k, f, h = sizes.e, chosen, width, sizes.h
    letter = _width_letter(sizes, f)
    stacks = sorted(experts.parameters, key=lambda parameter: parameter.elements)
    largest = stacks[-1].elements if stacks else 0
    # Gate and up are one stack, twice as large as down; biases and adapters belong to either.
    downs = tuple(one for one in experts.parameters if one.elements < largest)
    ups = tuple(one for one in experts.parameters if one not in downs)
    inner = traits.expert_parts - 1
    weighted = 4 if traits.weighted_in_fp32 else e
    calls = linear_calls(router, sizes, inputs=h, outputs=[count] * len(router), letter="h", kept=False)
    sorted_in = [Saved(f"{k}·e·h", k * e * h), Saved(f"{4 * count}", 4 * count)]
    if traits.router_in_fp32:
        sorted_in.append(Saved("(4 - e)·h", (4 - e) * h))
    parts = (
        ModuleCall("", ups, tuple(sorted_in), back=k * e * (2 * f + h)),
        ModuleCall("", (), (Saved(f"{k}·{inner}e·{letter}", k * inner * e * f),), back=k * e * 3 * f),
        ModuleCall("", downs, (Saved(f"{k}·e·{letter}", k * e * f),), back=k * e * (f + h)),
        ModuleCall("", (), (Saved(f"{k}·e·h", k * e * h),), back=k * 3 * weighted * h),
    )
    calls.append(ModuleCall(experts.name, experts.parameters, work=k * e * (h + f), keeps_weight=True, parts=parts))
    return calls
