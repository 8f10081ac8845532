"""Less memory on long sequences: the MLP in tiles of tokens, inputs of checkpointed layers in host memory.

Both are of Arctic Long Sequence Training (arXiv 2506.13996, sections 3.2 and 3.3). DeepSpeed's `TiledMLP` sums
the gradients of weights in their own dtype, needs as many tiles on each rank under ZeRO-3, and draws new
dropout masks in the backward pass. :class:`RowTiles` does none of it.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from zerokit.memory.host import PINNED_PIECE
from zerokit.memory.tiled_mlp import num_tiles
from zerokit.patches import PrivateAttribute, replace
from zerokit.training.row_tiles import RowTiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHECKPOINT = PrivateAttribute(
    "transformers.modeling_utils:PreTrainedModel",
    "_gradient_checkpointing_func",
    "keep the inputs of checkpointed layers in host memory",
)


def tile_mlps(model: PreTrainedModel, paths: tuple[str, ...]) -> int:
    """Run each MLP on as many tokens at a time as it has inputs; returns the number of MLPs.

    Call it after adapters are added, and before DeepSpeed's engine is made. ZeRO-3 gathers an MLP as a whole.

    Args:
        paths: of the modules, as `ModelShape.mlp_modules` has them; classes of models differ in what comes
            before the list of layers.
    """
    from deepspeed.utils import set_z3_leaf_module

    parts = (path.partition(".*") for path in paths)
    ends = (rf"{re.escape(stack.rpartition('.')[2])}\.\d+{re.escape(rest)}" for stack, _, rest in parts)
    pattern = re.compile(rf"(?:.*\.)?(?:{'|'.join(ends)})")
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    found = [module for name, module in base.named_modules() if pattern.fullmatch(name)]
    for module in found:
        set_z3_leaf_module(module, True)
        replace(module, "forward", partial(_tiled, module))
    return len(found)


def _tiled(module: torch.nn.Module, usual: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(hidden: Tensor) -> Tensor:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        tiles = num_tiles(len(tokens), hidden.shape[-1])
        if tiles < 2:
            return usual(hidden)
        used = [parameter for parameter in module.parameters() if parameter.requires_grad]
        size = math.ceil(len(tokens) / tiles)
        outputs: Tensor = RowTiles.apply(lambda tile, _: usual(tile), size, tokens, *used)  # type: ignore[no-untyped-call]
        return outputs.view(*hidden.shape[:-1], -1)

    return forward


def offload_checkpointed_inputs(model: torch.nn.Module) -> None:
    """Keep the hidden states that enter checkpointed layers in host memory until the backward pass.

    Call it when activation checkpointing is on.
    """
    for module in model.modules():
        if _CHECKPOINT.name in vars(module):
            replace(module, _CHECKPOINT.name, _offloading)


def _offloading(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        # Other inputs, such as the states of an encoder, are the same for all layers. The hook outlives this
        # call, and the tensor must not.
        hidden = [(tensor.data_ptr(), tensor.shape) for tensor in args[:1] if isinstance(tensor, Tensor)]

        def pack(tensor: Tensor) -> Tensor | _HostCopy:
            return _HostCopy(tensor) if (tensor.data_ptr(), tensor.shape) in hidden else tensor

        with saved_tensors_hooks(pack, lambda packed: packed.load() if isinstance(packed, _HostCopy) else packed):
            return checkpoint(function, *args, **kwargs)

    return run


class _HostCopy:
    """A copy of a tensor in host memory, pinned and copied beside the computation if the tensor is on a GPU."""

    _stream: Any = None
    _last: ClassVar[deque[Any]] = deque(maxlen=2)
    """Ends of the last copies: memory is free only then, and layers may run no further ahead of the GPU."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._dtype, self._device, self._copied = tensor.shape, tensor.dtype, tensor.device, None
        flat = tensor.detach().reshape(-1)
        pieces = torch.split(flat, PINNED_PIECE // tensor.element_size())
        if not tensor.is_cuda:
            self._pieces = [piece.clone() for piece in pieces]
            return
        if len(_HostCopy._last) == _HostCopy._last.maxlen:
            _HostCopy._last[0].synchronize()
        self._pieces = [torch.empty_like(piece, device="cpu", pin_memory=True) for piece in pieces]
        stream = _HostCopy._stream = _HostCopy._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for piece, host in zip(pieces, self._pieces, strict=True):
                host.copy_(piece, non_blocking=True)
            self._copied = stream.record_event()
        _HostCopy._last.append(self._copied)
        flat.record_stream(stream)  # its memory is not used again before it is copied

    def load(self) -> Tensor:
        """The tensor on its device."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
        loaded = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        parts = loaded.view(-1).split([len(host) for host in self._pieces])  # type: ignore[no-untyped-call]
        for part, host in zip(parts, self._pieces, strict=True):
            part.copy_(host, non_blocking=True)
        return loaded
