"""The MLP of each layer in tiles of tokens: a tile's tensors in place of those of all tokens.

A tile has as many tokens as the hidden size. The backward pass runs each tile again, and adds gradients of
weights in fp32. Under stage 3 the MLP is gathered as a whole.

Source: zerokit/training/long_sequences.py `tile_mlps`; DeepSpeed's TiledMLP (runtime/sequence_parallel/
ulysses_sp.py) is the same, but adds gradients in their own type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from zerokit.memory.model_blocks import ModelCalls
from zerokit.memory.module_calls import Block, ModuleCall, Saved
from zerokit.memory.sizes import Sizes
from zerokit.models import ModelShape


def num_tiles(tokens: float, hidden: float) -> int:
    """Parts of the tokens on which an MLP runs one after another (ALST, arXiv 2506.13996, section 3.3)."""
    return ceil(tokens / hidden)


def with_tiled_mlps(calls: ModelCalls, model: ModelShape, sizes: Sizes) -> ModelCalls:
    """The same calls, with one call for each MLP of more tokens than its hidden size."""
    tiles = num_tiles(sizes.tokens, sizes.h)
    paths = [path.split(".") for path in model.mlp_modules]
    if tiles < 2 or not paths:
        return calls
    blocks = (replace(block, calls=tuple(_tiled(block, paths, sizes, tiles))) for block in calls.blocks)
    return replace(calls, blocks=tuple(blocks))


def _tiled(block: Block, paths: Sequence[Sequence[str]], sizes: Sizes, tiles: int) -> Iterator[ModuleCall]:
    places = [place for place, call in enumerate(block.calls) if any(_is_within(call.module, one) for one in paths)]
    if not places:
        yield from block.calls
        return
    first, end = places[0], places[-1] + 1
    inner = block.calls[first:end]
    names = block.calls[first].module.split(".")
    module = ".".join(names[: next(len(one) for one in paths if _is_within(".".join(names), one))])
    parameters = tuple(one for call in inner for one in call.parameters)
    hidden, held, most = sizes.e * sizes.h, sum(call.saved_bytes for call in inner), 0
    for call in reversed(inner):
        most = max(most, held + call.back)
        held -= call.saved_bytes
    work = hidden + max(call.saved_bytes for call in inner) // tiles
    saved = (Saved("e·h", hidden),)
    tiled = ModuleCall(module, parameters, saved, work=work, back=2 * hidden + most // tiles, sums_gradients=True)
    yield from block.calls[:first]
    yield ModuleCall(module, parameters, inner=(tiled,))
    yield from block.calls[end:]


def _is_within(module: str, path: Sequence[str]) -> bool:
    names = module.split(".")[: len(path)]
    return len(names) == len(path) and all(b in ("*", a) for a, b in zip(names, path, strict=True))
