"""A model as the sequence of its modules' calls, and what each call holds for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from zerokit.memory.layout import Parameter


@dataclass(frozen=True)
class Saved:
    """What autograd keeps of a call, in bytes per token and as a formula."""

    symbols: str
    bytes: int


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module, or of the attention between its modules. Bytes are per token."""

    module: str
    """Its full name with the layer's number; empty for what is no module."""
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[Saved, ...] = ()
    work: int = 0
    """Beside what it saves, while it runs forward."""
    back: int = 0
    """Beside what is saved, while it runs backward; gradients of weights not counted."""
    waits: int = 0
    """The gradient of its input that LoRA's part makes, while the layer itself runs backward after it."""
    keeps_weight: bool = False
    """Autograd keeps the whole weight, as of everything but torch.nn.Linear, which stage 3 replaces."""
    made: int = 0
    """Elements that DoRA makes of weights while it runs forward, whatever the tokens."""
    parts: tuple[ModuleCall, ...] = ()
    """Of a module that runs backward in several steps, each with what it has saved and its gradients, in the
    order of the forward pass."""

    inner: tuple[ModuleCall, ...] = ()
    """The calls within a module that stage 3 takes as one; its parameters are those of all of them."""
    within: tuple[Parameter, ...] = ()
    """The parameters of all modules within one that has none itself: a layer, or the whole model."""

    @cached_property
    def all_saved(self) -> tuple[Saved, ...]:
        """Its own, its parts' and its inner calls'."""
        return self.saved + tuple(saved for one in (*self.parts, *self.inner) for saved in one.all_saved)

    @cached_property
    def saved_bytes(self) -> int:
        """All of `all_saved`."""
        return sum(saved.bytes for saved in self.all_saved)

    @cached_property
    def unpacks(self) -> int:
        """Elements of the weight in 4 bits that is unpacked for its product, forward and backward."""
        return max((one.elements for one in self.parameters if one.packed), default=0)

    @cached_property
    def gradients(self) -> tuple[Parameter, ...]:
        """The parameters that get a gradient when this runs backward."""
        return tuple(parameter for parameter in self.parameters if parameter.trainable)


@dataclass(frozen=True)
class Block:
    """Calls that belong together: the embedding, one layer, the head."""

    calls: tuple[ModuleCall, ...]
    is_embedding: bool = False
    """It reads token ids, which have no gradient."""
    is_layer: bool = False
    """Gradient checkpointing runs it again in the backward pass."""
    keeps_input: bool = False
    """What it saves first is its input as it is, no copy in fp32."""

    @property
    def backward(self) -> tuple[ModuleCall, ...]:
        """The calls in the order of the backward pass; a layer's own comes first in either direction."""
        if not self.is_layer:
            return self.calls[::-1]
        own, *inside, last = self.calls
        return (own, *reversed(inside), last)

    @property
    def saved_bytes(self) -> int:
        """Of all calls, per token."""
        return sum(call.saved_bytes for call in self.calls)
