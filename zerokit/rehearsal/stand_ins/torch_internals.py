"""torch's own Python where a replacement or memory without values would disturb it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from zerokit.patches import Patch, apply, is_original, put, wrap
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

if TYPE_CHECKING:
    import torch

_CLOSURE = Patch("torch._jit_internal", "get_closure", "have TorchScript compile what is beneath a replacement")
_FILL = Patch("torch._C", "_set_deterministic_fill_uninitialized_memory", "leave fresh memory empty")
_ID = Patch(
    "torch._tensor", "id", "go through sets of tensors in the same order in each rehearsal", read_by="torch._tensor"
)

_TENSOR_BYTES = 80
"""`sys.getsizeof` of a tensor, and the distance of most that are made one after the other."""


@stand_in("torch.jit.script", "torch.utils.deterministic.fill_uninitialized_memory", "torch.Tensor.__hash__")
def install(setup: RankSetup) -> None:
    """Have TorchScript compile originals, keep fresh memory empty, and give tensors reproducible hashes.

    TorchScript takes a function's source from the wrapped function, and would look up its names in the
    wrapper's module. Fresh memory that torch fills with NaN would make every page of a model resident.
    """

    def turn_off(switch: Any) -> Any:
        switch(False)
        return lambda _on: None

    wrap(_CLOSURE, lambda names_of, function: names_of(_beneath(function)))
    apply(_FILL, turn_off)
    put(_ID, _Identities())


class _Identities:
    """`id` as torch's `Tensor.__hash__` calls it: numbers like addresses, in the order of first use.

    They are the same in each run, also where a container forbids the same addresses. A tensor gets the number of an
    earlier one at its address: `torch.utils.swap_tensors` refuses tensors with the weak references that prevent it.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def __call__(self, tensor: torch.Tensor) -> int:
        address = id(tensor)
        if sys._getframe(1).f_code.co_name != "__hash__":  # `__deepcopy__` uses it as a key
            return address
        return self._numbers.setdefault(address, _TENSOR_BYTES * len(self._numbers))


def _beneath(function: Any) -> Any:
    """The function that zerokit wrapped; `function` itself if another package wrapped it."""
    while is_original(inside := getattr(function, "__wrapped__", None)):
        function = inside
    return function
