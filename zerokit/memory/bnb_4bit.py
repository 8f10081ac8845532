"""Weights in 4 bits (QLoRA).

Source: bitsandbytes functional.py quantize_4bit and quantize_blockwise; transformers
integrations/bitsandbytes.py replace_with_bnb_linear.

transformers packs torch's linear layers, but not the output matrix, embeddings, norms, routers, stacked
experts, or linear layers of a class of the model's own. Stage 3 partitions packed weights and gathers them
like other parameters, in the type `bnb_4bit_quant_storage`. Their constants are not partitioned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.term import kinds_of

_BLOCK = 64
"""`blocksize`: weights that share one constant."""
_NESTED_BLOCK = 256
"""With double quantization: constants that share one constant."""
_CODE_BYTES = 4 * 16
_NESTED_CODE_BYTES = 4 * 256

KINDS = kinds_of(__file__)
PACKED = KINDS.PACKED
PACKED_CONSTANTS = KINDS.PACKED_CONSTANTS
UNPACKED = KINDS.UNPACKED
WHOLE = KINDS.WHOLE


def packed_bytes(elements: int, *, double_quant: bool) -> int:
    """Bytes of a packed weight: half a byte per element, and one fp32 constant per block of 64.

    With `double_quant` a constant is one byte, and each block of 256 constants has an fp32 constant.
    """
    return ceil_div(elements, 2) + constant_bytes(elements, double_quant=double_quant)


def constant_bytes(elements: int, *, double_quant: bool) -> int:
    """Bytes of the constants alone."""
    blocks = ceil_div(elements, _BLOCK)
    constants = 4 * blocks
    if double_quant:
        constants = blocks + 4 * ceil_div(blocks, _NESTED_BLOCK) + _NESTED_CODE_BYTES
    return constants + _CODE_BYTES


def replicated_bytes(layout: Layout, zero_stage: int, *, double_quant: bool) -> int:
    """Bytes that every GPU holds: packed weights below stage 3, from stage 3 on only their constants."""
    count = packed_bytes if zero_stage < 3 else constant_bytes
    return sum(count(one.elements, double_quant=double_quant) for one in layout.packed)


class StoredLayout:
    """The layout that stage 3 sees: a packed weight counts as elements of the other parameters' type."""

    def __init__(self, layout: Layout, parameter_bytes: int) -> None:
        self._as_stored = {
            one: replace(one, elements=ceil_div(one.elements, 2 * parameter_bytes)) for one in layout.packed
        }
        self.layout = Layout(self.of(layout.parameters)) if self._as_stored else layout

    def of(self, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
        """The same parameters with packed sizes."""
        if not self._as_stored:
            return tuple(parameters)
        return tuple(self._as_stored.get(one, one) for one in parameters)


stored_layout = lru_cache(maxsize=8)(StoredLayout)
"""The same object again for the same layout."""
