"""How DeepSpeed's AutoTP divides a model's parameters, by transformers' `base_model_tp_plan`.

Layers that read hidden states are divided by outputs, those that write them by inputs, the output matrix by
tokens. Norms and embeddings stay whole; an embedding that is the output matrix is divided with it.

Source: deepspeed/module_inject/auto_tp.py, tp_plan_converter.py and layers.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.models.tensors import Kind

OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "o", "out_lin", "output.dense")
"""Modules that write hidden states after attention."""
DOWNS = ("down_proj", "c_proj", "fc2", "dense_4h_to_h", "wo", "fc_out", "output.dense", "lin2")
"""Modules that write hidden states after the feed-forward layer."""
HEADS = ("lm_head", "embed_out")


@lru_cache(maxsize=8)
def divided(layout: Layout, ranks: int, *, tied: bool, zero_init: bool) -> Layout:
    """The parameters of the first of `ranks`, which has the largest parts.

    Under `zero_init`, what stays whole stays divided among all ranks.
    """
    if ranks == 1:
        return layout
    names = [one.module for one in layout.parameters]
    head = next((name for name in names if name.split(".")[-1] in HEADS), names[0] if tied else "")
    return Layout(
        tuple(
            replace(one, elements=ceil_div(one.elements, ranks))
            if _side(one, head) is not None
            else replace(one, replicas=ranks if zero_init else 1)
            for one in layout.parameters
        )
    )


def _side(one: Parameter, head: str) -> Literal["outputs", "inputs"] | None:
    """`head`: the module of the output matrix."""
    in_layer = any(part.isdigit() for part in one.module.split("."))
    return divided_side(one.module, one.kind, in_layer=in_layer, is_head=one.module == head)


def divided_side(module: str, kind: Kind, *, in_layer: bool, is_head: bool) -> Literal["outputs", "inputs"] | None:
    """The side by which a parameter is divided; None: each rank has all of it.

    Args:
        is_head: whether it is the output matrix, which may be the embedding.
    """
    if is_head:
        return "outputs"
    if not in_layer or kind in ("norm", "embedding", "other"):
        return None
    if any(module.endswith(f".{name}") for name in (*OUTPUTS, *DOWNS)):
        return None if kind == "bias" else "inputs"
    return "outputs"
