"""Weights that bitsandbytes keeps in 4 bits, each tensor whole on every GPU, as QLoRA has them.

Source: bitsandbytes functional.py quantize_4bit and quantize_blockwise; what is packed, transformers
integrations/bitsandbytes.py replace_with_bnb_linear: linear layers, but neither the output matrix nor
embeddings, norms, routers and stacked experts. Stage 3 divides them where `bnb_4bit_quant_storage` is the
type of the other parameters (peft's guide to DeepSpeed), which is not counted.
"""

from __future__ import annotations

from dataclasses import replace

from zerokit.memory.model_states import ceil_div
from zerokit.memory.stage import PARAMETERS
from zerokit.memory.term import TermKind

_SOURCE = "bitsandbytes functional.py quantize_4bit"
_BLOCK = 64
"""Weights that share one constant: `blocksize`."""
_NESTED_BLOCK = 256
"""Constants that share one of their own, with double quantization."""
_CODE_BYTES = 4 * 16
_NESTED_CODE_BYTES = 4 * 256

PACKED = replace(
    PARAMETERS,
    name="weights in 4 bits, with their constants",
    unit="",
    count="w",
    source=_SOURCE,
    certainty="modelled",
    versions="any",
)
UNPACKED = TermKind(
    "a weight unpacked for one product",
    "buffers",
    unit="e",
    count="size",
    source="bitsandbytes autograd/_functions.py MatMul4Bit",
    certainty="modelled",
    versions="any",
)


def packed_bytes(elements: int, *, double_quant: bool) -> int:
    """Of one weight: half a byte for each element, and for each block of 64 its largest, in fp32.

    With `double_quant` the latter are bytes, in blocks of 256 with a constant in fp32 each.
    """
    blocks = ceil_div(elements, _BLOCK)
    constants = 4 * blocks
    if double_quant:
        constants = blocks + 4 * ceil_div(blocks, _NESTED_BLOCK) + _NESTED_CODE_BYTES
    return ceil_div(elements, 2) + constants + _CODE_BYTES
