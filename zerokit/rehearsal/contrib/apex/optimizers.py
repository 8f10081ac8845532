"""apex.optimizers: FusedAdam, with the states that the original makes. FusedSGD can be imported only."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.refused import refused_function
from zerokit.rehearsal.stand_ins.signatures import Given, with_parameters
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["FusedAdam", "FusedSGD"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class FusedAdam(Optimizer):
    """Adam, with both states in float32 for parameters of any dtype, and an overflow flag on the GPU."""

    set_grad_none: bool
    _dummy_overflow_buf: Tensor

    @with_parameters(
        "self params lr=1e-3 bias_correction=True betas=(0.9,0.999) eps=1e-8 adam_w_mode=True "
        "weight_decay=0.0 amsgrad=False set_grad_none=True capturable=False master_weights=False"
    )
    def __init__(given: Given) -> None:  # noqa: N805 - `self` is among them
        if given["amsgrad"]:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if given["capturable"] or given["master_weights"]:
            raise RehearsalGap("apex.optimizers.FusedAdam with capturable or master_weights")
        own: FusedAdam = given["self"]
        of_groups = ("lr", "betas", "eps", "weight_decay", "bias_correction")
        Optimizer.__init__(own, given["params"], {name: given[name] for name in of_groups})
        own.set_grad_none = given["set_grad_none"]
        own._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device="cuda")

    def zero_grad(self) -> None:  # type: ignore[override]  # the original has no argument
        """Free gradients, or with `set_grad_none` False fill them with zeros."""
        super().zero_grad(set_to_none=self.set_grad_none)

    def step(self, closure: Any = None, *deprecated: Any, grad_scaler: Any = None, **given: Any) -> Any:
        """One step, which updates the parameters of each dtype together; further arguments are refused, as by Apex."""
        if any(one is not None for one in (*deprecated, *given.values())):
            raise RuntimeError("FusedAdam takes no arguments of step() but closure any more")
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            updated: dict[torch.dtype, list[list[Tensor]]] = defaultdict(list)
            for parameter in (one for one in group["params"] if one.grad is not None):
                if parameter.dtype not in _DTYPES:
                    raise RuntimeError("FusedAdam only support fp16, bfloat16 and fp32.")
                state = self.state[parameter]
                for name in ("exp_avg", "exp_avg_sq"):
                    if name not in state:
                        state[name] = torch.zeros_like(parameter.data).float()
                updated[parameter.dtype].append([parameter, *state.values()])
            for tensors in updated.values():
                gradients = [parameter.grad for parameter, *_ in tensors]
                take_time("multi_tensor_adam", gradients, tensors, tensors)
        return loss


FusedSGD = refused_function("apex.optimizers.FusedSGD")
