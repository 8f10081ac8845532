"""amp_C of Apex (csrc/amp_C_frontend.cpp), and apex.multi_tensor_apply: kernels over lists of tensors.

Their arguments are elements per block, an overflow flag that stays as it is, the lists, and the function's
own. Norms are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.fused_optimizers import check_lists
from zerokit.rehearsal.stand_ins.signatures import Given, positional
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "MultiTensorApply",
    "multi_tensor_adam",
    "multi_tensor_applier",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_lamb",
    "multi_tensor_scale",
    "multi_tensor_sgd",
]

Lists = Sequence[Sequence[Tensor]]

_BLOCKS = 320
"""Sums of a norm, one for each block of a launch."""


def _kernel(name: str, reads: Sequence[int], writes: Sequence[int]) -> Callable[..., None]:
    """A function that reads and writes these of its lists."""

    def run(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, /, *_: Any) -> None:
        check_lists(tensor_lists, len({*reads, *writes}))
        take_time(name, *(tensor_lists[index] for index in (*reads, *writes)))

    run.__name__ = name
    return run


multi_tensor_scale = _kernel("multi_tensor_scale", [0], [1])
multi_tensor_axpby = _kernel("multi_tensor_axpby", [0, 1], [2])
multi_tensor_adam = _kernel("multi_tensor_adam", [0, 1, 2, 3], [1, 2, 3])
"""Gradients, parameters and both states."""


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, /, is_of_each: bool = False
) -> tuple[Tensor, Tensor]:
    """The norm of all tensors, and with `is_of_each` that of each."""
    check_lists(tensor_lists, 1)
    (tensors,) = tensor_lists
    like = tensors[0]
    sums = [like.new_zeros(_BLOCKS, dtype=torch.float32)]
    if is_of_each:
        chunks = max(-(-tensor.numel() // chunk_size) for tensor in tensors)
        sums.append(like.new_zeros(len(tensors) * chunks, dtype=torch.float32))
    take_time("multi_tensor_l2norm", *tensor_lists)
    counts = (1, len(tensors) if is_of_each else 0)
    norm, norms = (like.new_empty(count, dtype=torch.float32) for count in counts)
    del sums
    return norm, norms


@positional(
    "chunk_size noop_flag tensor_lists lr beta1 beta2 epsilon step bias_correction weight_decay "
    "grad_averaging mode global_grad_norm max_grad_norm use_nvlamb"
)
def multi_tensor_lamb(given: Given) -> None:
    """LAMB on gradients, parameters and both states (csrc/multi_tensor_lamb.cu).

    The first kernel writes updates over the gradients. Norms of each parameter and of each update are
    temporary.
    """
    chunk_size, noop_flag, tensor_lists, *_ = given.values()
    check_lists(tensor_lists, 4)
    gradients, parameters, *states = tensor_lists
    norms = [multi_tensor_l2norm(chunk_size, noop_flag, [parameters], True)]
    take_time("multi_tensor_lamb_stage1", *tensor_lists, gradients, *states)
    norms.append(multi_tensor_l2norm(chunk_size, noop_flag, [gradients], True))
    take_time("multi_tensor_lamb_stage2", gradients, parameters, parameters)
    del norms


@positional(
    "chunk_size noop_flag tensor_lists wd momentum dampening lr nesterov first_run wd_after_momentum scale"
)
def multi_tensor_sgd(given: Given) -> None:
    """SGD on gradients, parameters and momentums (csrc/multi_tensor_sgd_kernel.cu).

    A fourth list, if there is one, has copies of the parameters in half precision, which are written only.
    """
    tensor_lists = given["tensor_lists"]
    check_lists(tensor_lists, 4 if len(tensor_lists) == 4 else 3)
    take_time("multi_tensor_sgd", *tensor_lists, *tensor_lists[1:3])


class MultiTensorApply:
    """Calls the functions above, whose blocks work on `chunk_size` elements."""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self, op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Lists, *args: Any
    ) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)
