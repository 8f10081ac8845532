"""The buffers through which parameters come from NVMe and go there: how many a model takes, and how large.

DeepSpeed's defaults go by no model; `zerokit train` fills in what the ds_config leaves open. Source:
`swap_in` and `get_buffer` in `deepspeed/runtime/swap_tensor/partitioned_param_swapper.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from zerokit.config.base import ZERO
from zerokit.config.sections import Aio, OffloadParam
from zerokit.documents import value_at
from zerokit.models import ModelShape, Tensor

SMALLEST_FILE_BYTES = 2**20
"""Tensors below it never go to NVMe: `MIN_AIO_BYTES` in `deepspeed/runtime/swap_tensor/utils.py`."""
PLACE = (ZERO, "offload_param")
"""Of the keys `buffer_count` and `buffer_size`."""
FEWEST = 12
"""Pinned on the host of every rank, also where the model is not known; enough for a usual decoder layer."""
WHY_MORE = (
    f"DeepSpeed's {OffloadParam.model_fields['buffer_count'].default} do not last for one layer whose "
    "activations are recomputed"
)
"""Its run stops: "Not enough buffers 0 for swapping 1" (DeepSpeed issue 3062)."""
_BESIDES = 5
"""Beside those of one layer: for the embeddings, the head and what is prefetched; DeepSpeed's own number."""
_BLOCK_BYTES: int = Aio.model_fields["block_size"].default


def uses_nvme_for_parameters(ds_config: Mapping[str, Any]) -> bool:
    """Whether a valid ds_config sends parameters to NVMe."""
    device = value_at(ds_config, (*PLACE, "device"))
    return bool(device == "nvme" and value_at(ds_config, (ZERO, "stage")) == 3)


@dataclass(frozen=True)
class _Stack:
    """The layers of one list of modules, such as those of an encoder."""

    layers: int
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class NvmeBuffers:
    """What a model takes of them."""

    model: ModelShape
    ranks: int
    element_bytes: int = 2
    """Of a parameter while it trains."""
    block_bytes: int = _BLOCK_BYTES
    """`aio.block_size`."""

    @classmethod
    def under(cls, ds_config: Mapping[str, Any], model: ModelShape, ranks: int, element_bytes: int) -> NvmeBuffers:
        """The same under a valid ds_config, whose `aio` counts."""
        block = value_at(ds_config, ("aio", "block_size"), _BLOCK_BYTES)
        return cls(model, ranks, element_bytes, block)

    def share(self, tensor: Tensor) -> int:
        """Elements of a rank's part."""
        return ceil(tensor.elements / self.ranks)

    def swaps(self, tensor: Tensor) -> bool:
        """Whether a rank's part is large enough for a file of its own: `swappable_tensor`."""
        smallest = max(SMALLEST_FILE_BYTES, self.block_bytes)
        return self.share(tensor) * self.element_bytes >= smallest

    @property
    def largest(self) -> Tensor:
        """The parameter whose part one buffer has to hold."""
        return self.model.largest_tensor

    @property
    def size(self) -> int:
        """Elements of a buffer."""
        return self.share(self.largest)

    @cached_property
    def of_layer(self) -> int:
        """Parameters of one layer that go to NVMe: all are in use at once where activations are recomputed.

        Counted in the longest list of layers. Where its layers differ, the model's shape does not show which
        parameters are in one layer: then the mean, rounded up, which some layer certainly has. 0 without
        layers.
        """
        return max(map(self._large, self._stacks), default=0)

    @property
    def count(self) -> int:
        """Buffers that last."""
        return max(FEWEST, self.of_layer + _BESIDES)

    @property
    def least_size(self) -> int:
        """Elements of a buffer below which the run stops."""
        return self.size if self.swaps(self.largest) else 0

    def least_count(self, held: int) -> int:
        """Buffers below which a run that recomputes activations surely stops; 0 where none surely does.

        Args:
            held: elements of a rank that stay in its memory, `max_in_cpu`.
        """
        return self.of_layer if self._surely_swaps_a_layer(held) else 0

    def missing(self, ds_config: Mapping[str, Any]) -> dict[str, int]:
        """The keys of `offload_param` that `zerokit train` adds; none where no parameter goes to NVMe."""
        if not uses_nvme_for_parameters(ds_config):
            return {}
        wanted = {"buffer_count": self.count, "buffer_size": self.size}
        return {key: value for key, value in wanted.items() if key not in value_at(ds_config, PLACE)}

    def _surely_swaps_a_layer(self, held: int) -> bool:
        """Whether a layer with the most large parameters is on NVMe as a whole."""
        whole = self._elements(self.model.tensors)
        for stack in self._stacks:
            if self._large(stack) == self.of_layer:
                here = last = self._elements(stack.tensors)
                large = filter(self.swaps, stack.tensors)
                if all(tensor.count % stack.layers == 0 for tensor in large):
                    last = sum(self.share(one) * ceil(one.count / stack.layers) for one in stack.tensors)
                # The parameters that stay are the first; behind this stack may be all that is not in it, and
                # of layers that differ the fullest may be the first.
                if whole - held >= whole - here + last:
                    return True
        return False

    def _elements(self, tensors: tuple[Tensor, ...]) -> int:
        return sum(self.share(tensor) * tensor.count for tensor in tensors)

    def _large(self, stack: _Stack) -> int:
        return ceil(sum(one.count for one in stack.tensors if self.swaps(one)) / stack.layers)

    @cached_property
    def _stacks(self) -> list[_Stack]:
        by_list: dict[str, list[Tensor]] = {}
        for tensor in self.model.tensors:
            before, star, _ = tensor.name.partition(".*")
            if star:
                by_list.setdefault(before, []).append(tensor)
        return [_Stack(_number_of_layers(tensors), tuple(tensors)) for tensors in by_list.values()]


def _number_of_layers(tensors: list[Tensor]) -> int:
    """Of a list of modules: most parameters are in each of them, and lists within it are in each, too."""
    once = [tensor.count for tensor in tensors if tensor.name.count("*") == 1]
    return max(once) if once else min(tensor.count for tensor in tensors)
