"""Whether a model reads ids of tokens beside its body, as those do that look for where a text ends."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def reads_ids_itself(model: PreTrainedModel) -> bool:
    """Whether anything but the body of a model computes with the ids that it is given.

    It is called once, on something in the place of its body, and every operation is seen, however it is
    written.

    Args:
        model: on the meta device.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

    children = ((owner, *child) for owner in model.modules() for child in owner.named_children())
    body = model.base_model
    owner, name = next(((owner, name) for owner, name, child in children if child is body), (None, ""))
    ids = torch.zeros(1, 2, dtype=torch.long, device="meta")
    states = torch.zeros(1, 2, _width(model), dtype=model.dtype, device="meta")
    if owner is not None:  # found before the module of that name, which stays where it is
        result = BaseModelOutputWithPoolingAndCrossAttentions(states, states[:, 0])
        vars(owner)[name] = lambda *_, **__: result
    reads = _Reads(ids)
    # Of each architecture its own: one that takes more of its body is judged by what it does until it fails.
    with suppress(Exception), torch.no_grad(), torch.device("meta"), reads:
        model(input_ids=ids)
    if owner is not None:
        del vars(owner)[name]
    return reads.found


def _width(model: PreTrainedModel) -> int:
    """Of what the body gives: as wide as what is called on it takes."""
    inside = set(model.base_model.modules())
    widths = (getattr(own, "in_features", None) for own in model.modules() if own not in inside)
    return next((one for one in widths if one is not None), 1)


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation on some ids."""

    def __init__(self, ids: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ids = [ids]
        """And views of them."""
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(one is known for one in _pytree.tree_leaves((args, kwargs)) for known in self._ids):
            if func.is_view:
                self._ids += [one for one in _pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
            elif func is not torch.ops.aten.embedding.default:
                self.found = True
        return result
