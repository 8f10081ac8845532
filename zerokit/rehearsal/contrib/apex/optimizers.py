"""apex.optimizers: FusedAdam, with the states that the original makes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from zerokit.rehearsal.contrib.apex.amp_c import multi_tensor_adam, multi_tensor_applier
from zerokit.rehearsal.errors import RehearsalGap

__all__ = ["FusedAdam"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class FusedAdam(Optimizer):
    """Adam, with both states in float32 whatever the parameters are."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if capturable or master_weights:
            raise RehearsalGap("apex.optimizers.FusedAdam with capturable or master_weights")
        rates = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**rates, "bias_correction": bias_correction})
        self.adam_w_mode, self.set_grad_none = int(adam_w_mode), set_grad_none
        self.capturable, self.master_weights = capturable, master_weights
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device="cuda")

    def zero_grad(self) -> None:  # type: ignore[override]  # the original has no argument
        """Free gradients, or with `set_grad_none` False fill them with zeros."""
        super().zero_grad(set_to_none=self.set_grad_none)

    def step(self, closure: Any = None, *deprecated: Any, grad_scaler: Any = None, **given: Any) -> Any:
        """One step; arguments beyond `closure` are refused, as by the original."""
        if any(one is not None for one in (*deprecated, *given.values())):
            raise RuntimeError("FusedAdam takes no arguments of step() but closure any more")
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            for lists in self._lists(group["params"]):
                multi_tensor_applier(
                    multi_tensor_adam, self._dummy_overflow_buf, lists, group["lr"], *group["betas"],
                    group["eps"], group["step"], self.adam_w_mode, int(group["bias_correction"]),
                    group["weight_decay"],
                )  # fmt: skip
        return loss

    def _lists(self, parameters: list[Tensor]) -> list[list[list[Tensor]]]:
        """Gradients, parameters and both states, for each dtype of the parameters."""
        rows: dict[torch.dtype, list[list[Tensor]]] = defaultdict(list)
        for parameter in (one for one in parameters if one.grad is not None):
            if parameter.dtype not in _DTYPES:
                raise RuntimeError("FusedAdam only support fp16 and fp32.")
            state = self.state[parameter]
            for name in ("exp_avg", "exp_avg_sq"):  # one is converted before the next is made
                if name not in state:
                    state[name] = torch.zeros_like(parameter.data).float()
            tensors = [parameter.grad, parameter, state["exp_avg"], state["exp_avg_sq"]]
            rows[parameter.dtype].append([tensor.detach() for tensor in tensors])
        return [[list(column) for column in zip(*found, strict=True)] for found in rows.values()]
