"""A model as a sequence of module calls, with what each call saves for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from zerokit.memory.layout import Parameter


@dataclass(frozen=True)
class Saved:
    """What autograd saves of a call, in bytes per token and as a formula."""

    symbols: str
    bytes: int


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module, or of attention between its projections. Bytes are per token."""

    module: str
    """The full name with the layer's number; empty if it is no module."""
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[Saved, ...] = ()
    work: int = 0
    """Additional bytes while it runs forward."""
    back: int = 0
    """Additional bytes while it runs backward, without gradients of weights."""
    waits: int = 0
    """The input gradient of the LoRA part, which exists while the layer itself runs backward."""
    keeps_weight: bool = False
    """Autograd saves the weight. This holds for everything but torch.nn.Linear, which stage 3 replaces."""
    sums_gradients: bool = False
    """It adds gradients of its weights in fp32, part by part of the tokens."""
    made: int = 0
    """Elements of weights that DoRA makes in forward, independent of the tokens."""
    parts: tuple[ModuleCall, ...] = ()
    """Steps of a module's backward pass, each with its saved tensors and gradients, in forward order."""

    inner: tuple[ModuleCall, ...] = ()
    """The calls within a leaf module of stage 3, which has the parameters of all of them."""
    within: tuple[Parameter, ...] = ()
    """All parameters within a module that has none itself: a layer, or the whole model."""

    @cached_property
    def all_saved(self) -> tuple[Saved, ...]:
        """Saved by itself, its parts and its inner calls."""
        return self.saved + tuple(saved for one in (*self.parts, *self.inner) for saved in one.all_saved)

    @cached_property
    def saved_bytes(self) -> int:
        return sum(saved.bytes for saved in self.all_saved)

    @cached_property
    def unpacks(self) -> int:
        """Elements of the 4-bit weight that is unpacked for the matmul, forward and backward."""
        return max((one.elements for one in self.parameters if one.packed), default=0)

    @cached_property
    def gradients(self) -> tuple[Parameter, ...]:
        """Parameters that get a gradient in its backward pass."""
        return tuple(parameter for parameter in self.parameters if parameter.trainable)


@dataclass(frozen=True)
class Block:
    """Calls that belong together: the embedding, one layer, or the head."""

    calls: tuple[ModuleCall, ...]
    is_embedding: bool = False
    """It reads token ids, which have no gradient."""
    is_layer: bool = False
    """Gradient checkpointing runs it again in the backward pass."""
    keeps_input: bool = False
    """The first saved tensor is its input itself, not a copy in fp32."""

    @property
    def backward(self) -> tuple[ModuleCall, ...]:
        """The calls in backward order; a layer's own call comes first in both directions."""
        if not self.is_layer:
            return self.calls[::-1]
        own, *inside, last = self.calls
        return (own, *reversed(inside), last)

    @property
    def saved_bytes(self) -> int:
        """Of all calls, per token."""
        return sum(call.saved_bytes for call in self.calls)
