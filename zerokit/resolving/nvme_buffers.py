"""The buffers through which parameters come from NVMe and go there: how many a model takes, and how large.

DeepSpeed's defaults, 5 of 1e8 elements, go by no model. Source: `swap_in` and `get_buffer` in
`deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from zerokit.models import ModelShape, Tensor

FEWEST = 12
"""Pinned on the host of every rank. DeepSpeed's 5 do not last for one decoder layer with recomputed
activations: "Not enough buffers 0 for swapping 1" (DeepSpeed issue 3062)."""
_BESIDES = 5
"""Beside those of one layer: for the embeddings, the head and what is prefetched; DeepSpeed's own number."""
_SMALLEST_FILE_BYTES = 2**20
"""Tensors below it stay in memory: `MIN_AIO_BYTES` in `deepspeed/runtime/swap_tensor/utils.py`."""


@dataclass(frozen=True)
class NvmeBuffers:
    """What a model takes of them."""

    model: ModelShape
    ranks: int
    element_bytes: int = 2
    """Of a parameter while it trains."""
    block_bytes: int = 0
    """`aio.block_size`."""

    def share(self, tensor: Tensor) -> int:
        """Elements of a rank's part."""
        return ceil(tensor.elements / self.ranks)

    def swaps(self, tensor: Tensor) -> bool:
        """Whether a rank's part is large enough for a file of its own: `swappable_tensor`."""
        smallest = max(_SMALLEST_FILE_BYTES, self.block_bytes)
        return self.share(tensor) * self.element_bytes >= smallest

    @property
    def largest(self) -> Tensor:
        """The parameter whose part one buffer has to hold."""
        return self.model.largest_tensor

    @property
    def size(self) -> int:
        """Elements of a buffer."""
        return self.share(self.largest)

    @property
    def of_layer(self) -> int:
        """Parameters of one layer that go to NVMe: all are in use at once where activations are recomputed.

        0 of a model whose layers are not known.
        """
        return sum(tensor.count // (self.model.num_hidden_layers or 1) for tensor in self._of_layers())

    @property
    def count(self) -> int:
        """Buffers that last."""
        return max(FEWEST, self.of_layer + _BESIDES)

    def surely_swaps_a_layer(self, held: int) -> bool:
        """Whether some layer is on NVMe as a whole, where so many elements of a rank stay in its memory."""
        layers = self.model.num_hidden_layers or 1
        whole = sum(self.share(tensor) * tensor.count for tensor in self.model.tensors)
        in_layers = [tensor for tensor in self.model.tensors if tensor.count >= layers]
        of_layers = sum(self.share(tensor) * tensor.count for tensor in in_layers)
        # The parameters that stay are the first; behind the last layer may be all that is in none.
        return whole - held >= whole - of_layers + of_layers / layers

    def _of_layers(self) -> list[Tensor]:
        layers = self.model.num_hidden_layers
        if layers is None:
            return []
        return [tensor for tensor in self.model.tensors if tensor.count >= layers and self.swaps(tensor)]
