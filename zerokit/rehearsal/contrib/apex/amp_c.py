"""amp_C of Apex (csrc/amp_C_frontend.cpp): kernels over lists of tensors, which update them in place.

None names its arguments, so they are positional only: elements per block, an overflow flag that stays as it
is, the lists, and the function's own arguments. Norms are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.fused_optimizers import check_lists
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "multi_tensor_adagrad",
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_l2norm_mp",
    "multi_tensor_l2norm_scale",
    "multi_tensor_lamb",
    "multi_tensor_novograd",
    "multi_tensor_scale",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
]

Lists = Sequence[Sequence[Tensor]]

_BLOCKS = 320
"""Sums of a norm, one for each block of a launch."""


def _kernel(name: str, *written: bool) -> Callable[..., None]:
    """A function that reads all its lists and writes some of them."""

    def run(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, /, *_: Any) -> None:
        check_lists(tensor_lists, len(written))
        both = [tensors for tensors, is_written in zip(tensor_lists, written, strict=True) if is_written]
        take_time(name, *tensor_lists, *both)

    run.__name__ = name
    return run


def _norm(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function that gives the norm of all tensors, and of each if its last argument says so."""

    def run(
        chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, /, *options: Any
    ) -> tuple[Tensor, Tensor]:
        check_lists(tensor_lists, 1)
        (tensors,) = tensor_lists
        like = tensors[0]
        is_of_each = bool(options and options[-1])
        sums = [like.new_zeros(_BLOCKS, dtype=torch.float32)]
        if is_of_each:
            chunks = max(-(-tensor.numel() // chunk_size) for tensor in tensors)
            sums.append(like.new_zeros(len(tensors) * chunks, dtype=torch.float32))
        take_time(name, *tensor_lists)
        norm, norms = (
            like.new_empty(count, dtype=torch.float32) for count in (1, len(tensors) if is_of_each else 0)
        )
        del sums
        return norm, norms

    run.__name__ = name
    return run


def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float, /) -> None:
    """Writes the second list's tensors, of the first's."""
    check_lists(tensor_lists, 2)
    take_time("multi_tensor_scale", *tensor_lists)


def multi_tensor_axpby(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, a: float, b: float, arg_to_check: int, /
) -> None:
    """Writes the third list's tensors, of the others'."""
    check_lists(tensor_lists, 3)
    take_time("multi_tensor_axpby", *tensor_lists)


multi_tensor_l2norm = _norm("multi_tensor_l2norm")
multi_tensor_l2norm_mp = _norm("multi_tensor_l2norm_mp")
multi_tensor_l2norm_scale = _norm("multi_tensor_l2norm_scale")
multi_tensor_unscale_l2norm = _norm("multi_tensor_unscale_l2norm")
# Gradients, parameters and states; the last of those with master weights are these.
multi_tensor_adam = _kernel("multi_tensor_adam", False, True, True, True)
multi_tensor_adam_capturable = _kernel("multi_tensor_adam_capturable", True, True, True, True)
multi_tensor_adam_capturable_master = _kernel(
    "multi_tensor_adam_capturable_master", True, True, True, True, True
)
multi_tensor_adagrad = _kernel("multi_tensor_adagrad", False, True, True)
multi_tensor_novograd = _kernel("multi_tensor_novograd", True, True, True)


def multi_tensor_sgd(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, /, *_: Any) -> None:
    """Gradients, parameters and momentums, and copies of parameters in half precision if there are any."""
    check_lists(tensor_lists, len(tensor_lists) if len(tensor_lists) == 4 else 3)
    take_time("multi_tensor_sgd", *tensor_lists, *tensor_lists[1:3])


def multi_tensor_lamb(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, /, *_: Any) -> None:
    """Gradients, which become updates, parameters and two states; takes norms of parameters and updates."""
    check_lists(tensor_lists, 4)
    gradients, parameters, *_states = tensor_lists
    norms = [multi_tensor_l2norm(chunk_size, noop_flag, [parameters], True)]
    take_time("multi_tensor_lamb_stage1", *tensor_lists, gradients, *_states)
    norms.append(multi_tensor_l2norm(chunk_size, noop_flag, [gradients], True))
    take_time("multi_tensor_lamb_stage2", gradients, parameters, parameters)
    del norms
