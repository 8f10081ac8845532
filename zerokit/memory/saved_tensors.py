"""What autograd saves of the parts of a transformer's layer, per token, in transformers 5.23.

Every function gives the calls of one part in their order. The letters are those of
:class:`~zerokit.memory.sizes.Sizes`; what is none of these is a number. Tensors that two operations save
count once, with the first that has to keep them: the input of a linear layer is kept only if its weight, or
an adapter on it, is trained.

Source: saved tensors of transformers' modeling files; tests count them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zerokit.memory.layout import Parameter
from zerokit.memory.module_calls import ModuleCall, Saved
from zerokit.memory.sizes import Sizes

Norm = Literal["rms", "gemma", "layer"]
"""``rms``: Llama's, ``gemma``: multiplied in fp32, ``layer``: torch's native LayerNorm."""

Activation = Literal["kernel", "relu", "gelu_new"]
"""``kernel``: one operation that saves its input; ``relu`` saves its output; ``gelu_new`` is made of many."""


@dataclass(frozen=True)
class Module:
    """A module of a layer with its parameters."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def trains(self) -> bool:
        """It, or an adapter on it, has a gradient."""
        return any(parameter.trainable for parameter in self.parameters)

    @property
    def has_adapter(self) -> bool:
        """LoRA works beside it."""
        return any(parameter.adapter for parameter in self.parameters)


def norm_call(
    sizes: Sizes, module: Module, kind: Norm, *, width: int, letter: str, rows: int = 1
) -> ModuleCall:
    """One normalisation of `width` numbers per token, in `rows` rows."""
    e = sizes.e
    if kind == "layer":
        saved = [Saved(f"e·{letter} + {8 * rows}", e * width + 8 * rows)]
        return ModuleCall(module.name, module.parameters, tuple(saved), back=e * 2 * width)
    saved = [Saved(f"4{letter} + {4 * rows}", 4 * width + 4 * rows)]
    if module.trains:
        saved.append(Saved(f"4{letter}", 4 * width) if kind == "gemma" else Saved(f"e·{letter}", e * width))
    casts = 4 if e == 2 else 0
    return ModuleCall(module.name, module.parameters, tuple(saved), work=4 * width, back=(12 + casts) * width)


def linear_calls(
    modules: Sequence[Module], sizes: Sizes, *, inputs: int, outputs: Sequence[int], letter: str, kept: bool
) -> list[ModuleCall]:
    """Linear layers that share one input, which the first that needs it saves unless it is `kept` anyway."""
    calls = []
    for module, width in zip(modules, outputs, strict=True):
        saved = []
        if module.trains and not kept:
            saved.append(Saved(f"e·{letter}", sizes.e * inputs))
            kept = True
        adapters = [parameter for parameter in module.parameters if parameter.adapter]
        if adapters:
            rank = adapters[0].elements // inputs
            saved.append(Saved(f"e·{rank}", sizes.e * rank))
        traffic = sizes.e * (inputs + width)
        calls.append(
            ModuleCall(module.name, module.parameters, tuple(saved), work=sizes.e * width, back=traffic)
        )
    return calls


def attention_core(
    sizes: Sizes,
    *,
    fused: bool,
    rotary: bool,
    dropout: bool = False,
    plain: bool = False,
    partial: bool = False,
    capped: bool = False,
) -> ModuleCall:
    """Attention itself, between its projections.

    Written out in plain operations ("eager"), the softmax is kept in fp32 and in 16 bits; where its result
    goes through dropout, it is kept in 16 bits before and after, with a mask. `plain`: torch has no kernel
    for the call and takes to plain operations. `partial`: queries lie head by head, and
    so does the result, which is copied into the order of tokens. `capped`: a tanh bounds the scores.

    A fused projection is saved whole where a part of it is used as it is: all of it without rotary
    embeddings, the values with them.
    """
    e, q, kv, a, s = sizes.e, sizes.q, sizes.kv, sizes.a, sizes.seq
    repeats = kv < q
    expanded = 2 * e * q if repeats else 0
    if sizes.attention == "eager":
        keys = 2 * e * q if repeats or not fused else 2 * e * kv
        saved = [
            Saved("e·q + 2e·q" if repeats else "e·q + 2e·kv", e * q + keys),
            Saved("e·q", e * q),
            _softmax(sizes, dropout),
        ]
        if capped:
            saved.append(Saved("e·a·s", e * a * s))
        return ModuleCall("", (), tuple(saved), work=2 * e * a * s, back=(4 + e) * a * s)
    if plain or (e == 4 and repeats and sizes.attention == "sdpa"):
        # No kernel takes fp32 and grouped queries: torch falls back to plain operations, in fp32.
        saved = [Saved("(12 + e)·q + 4a·s", (12 + e) * q + 4 * a * s)]
        return ModuleCall("", (), tuple(saved), work=8 * a * s, back=8 * a * s + 16 * q)
    if fused and rotary:
        projections = Saved("e·(2q + 3kv)", e * (2 * q + 3 * kv))
    else:
        projections = Saved("e·(q + 2kv)", e * (q + 2 * kv))
    saved = [projections, Saved("e·q + 4a", e * q + 4 * a)]
    if partial:
        saved.append(Saved("e·q", e * q))
    back = e * (2 * q + 2 * kv) + 4 * q + 4 * a + expanded
    return ModuleCall("", (), tuple(saved), work=e * (q + kv), back=back)


def _softmax(sizes: Sizes, dropout: bool) -> Saved:
    e, scores = sizes.e, sizes.a * sizes.seq
    if dropout:
        return Saved("(2e + 1)·a·s", (2 * e + 1) * scores)
    return Saved("4a·s", 4 * scores) if e == 4 else Saved("(4 + e)·a·s", (4 + e) * scores)


def gated_mlp(
    sizes: Sizes, *, up: Sequence[Module], down: Module, width: int, kept: bool = False
) -> list[ModuleCall]:
    """Gate, up and down: down(act(gate(x))·up(x)); gate and up may be one. `kept`: x is saved already."""
    e, f, letter = sizes.e, width, _width_letter(sizes, width)
    outputs = [2 * f] if len(up) == 1 else [f, f]
    calls = linear_calls(up, sizes, inputs=sizes.h, outputs=outputs, letter="h", kept=kept)
    saved = Saved(f"3e·{letter}", 3 * e * f)
    calls.append(ModuleCall("", (), (saved,), work=e * f, back=3 * e * f))
    calls += linear_calls([down], sizes, inputs=f, outputs=[sizes.h], letter=letter, kept=False)
    return calls


def _width_letter(sizes: Sizes, width: int) -> str:
    """Experts are of another width than f, and shared experts of a third."""
    return "f" if width == sizes.f else str(width)


def plain_mlp(
    sizes: Sizes, *, up: Module, down: Module, activation: Activation, kept: bool = False
) -> list[ModuleCall]:
    """Two linear layers with an activation between them. `kept`: their input is saved already."""
    e, f = sizes.e, sizes.f
    calls = linear_calls([up], sizes, inputs=sizes.h, outputs=[f], letter="h", kept=kept)
    if activation == "relu":
        calls.append(ModuleCall("", (), (Saved("e·f", e * f),), work=e * f, back=e * f))
        kept = True
    elif activation == "gelu_new":
        calls.append(ModuleCall("", (), (Saved("4e·f", 4 * e * f),), work=3 * e * f, back=4 * e * f))
        kept = False
    else:
        calls.append(ModuleCall("", (), (Saved("e·f", e * f),), work=e * f, back=e * f))
        kept = False
    calls += linear_calls([down], sizes, inputs=f, outputs=[sizes.h], letter="f", kept=kept)
    return calls


def dropout_call(sizes: Sizes, letter: str = "h") -> ModuleCall:
    """A mask of one byte per element."""
    return ModuleCall("", (), (Saved(letter, sizes.h),), work=sizes.e * sizes.h, back=sizes.e * sizes.h)


def expert_calls(
    sizes: Sizes, *, router: Sequence[Module], experts: Module, width: int, chosen: int, count: int
) -> list[ModuleCall]:
    """A router and its gated experts, each token meeting `chosen` of `count`, routed evenly.

    Tokens are sorted by expert, k copies of each: the copies, gate and up, the activation, their product and
    the experts' outputs, which are weighted.
    """
    e, k, f, h = sizes.e, chosen, width, sizes.h
    saved = [
        Saved(f"{k}·(2e·h + 4e·{_width_letter(sizes, f)})", k * (2 * e * h + 4 * e * f)),
        Saved(f"{4 * count}", 4 * count),
    ]
    calls = linear_calls(router, sizes, inputs=h, outputs=[count] * len(router), letter="h", kept=False)
    calls.append(
        ModuleCall(
            experts.name,
            experts.parameters,
            tuple(saved),
            work=k * e * (h + f),
            back=k * e * (2 * h + 3 * f),
            keeps_weight=True,
        )
    )
    return calls
