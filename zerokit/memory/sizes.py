"""The sizes that determine activations, with their letters in formulas."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.choices import Attention


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and a micro-batch. Formulas give bytes per token; a micro-batch has b·s tokens."""

    e: int
    """Bytes of an element of an activation."""
    h: int
    """Hidden size."""
    f: int
    """Width of the feed-forward layer in the config."""
    q: int
    """Width of all queries."""
    kv: int
    """Width of all keys, and of all values."""
    a: int
    """Attention heads."""
    vocabulary: int
    batch: int
    seq: int
    attention: Attention
    packed: bool = False
    """Whether sequences hold several documents, which torch's attention keeps apart by a mask."""
    keeps_inputs: bool = False
    """Whether frozen linear layers save their input too, as those of stage 3 do.

    Source: deepspeed/runtime/zero/linear.py LinearFunctionForZeroStage3.
    """

    sequence: int = 1
    """Ranks that share a sequence: `seq` is the part of one of them."""
    tensor: int = 1
    """Ranks that share a layer: `q`, `kv`, `a` and `f` are the part of one of them."""

    @property
    def tokens(self) -> int:
        """b·s."""
        return self.batch * self.seq
