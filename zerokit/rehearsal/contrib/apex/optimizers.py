"""apex.optimizers: FusedAdam, FusedLAMB and FusedSGD, with the states that the originals make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from zerokit.rehearsal.contrib.apex import amp_c
from zerokit.rehearsal.contrib.apex.multi_tensor_apply import multi_tensor_applier
from zerokit.rehearsal.errors import RehearsalGap

__all__ = ["FusedAdam", "FusedLAMB", "FusedSGD"]


class _Fused(Optimizer):
    """The common part of the three: an overflow flag on the GPU, and gradients that are freed."""

    set_grad_none: bool
    _dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.float32)
    _is_strict = True
    """Whether parameters of other dtypes are refused; otherwise they are left as they are."""

    def _make_flag(self, device: Any) -> None:
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device=device)

    def zero_grad(self) -> None:  # type: ignore[override]  # the originals take no argument
        """Free gradients, or with `set_grad_none` False fill them with zeros."""
        super().zero_grad(set_to_none=self.set_grad_none)

    def _lists(
        self, group: dict[str, Any], make_state: Callable[[Tensor], dict[str, Tensor]]
    ) -> dict[torch.dtype, list[list[Tensor]]]:
        """Gradients, parameters and states of a group, by dtype."""
        found: dict[torch.dtype, list[list[Tensor]]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.dtype not in self._dtypes:
                if self._is_strict:
                    raise RuntimeError(f"{type(self).__name__} only support fp16 and fp32.")
                continue
            state = self.state[parameter]
            if not state:
                state.update(make_state(parameter.data))
            row = [parameter.grad, parameter, *state.values()]
            lists = found[parameter.dtype]
            lists += ([] for _ in row[len(lists) :])
            for tensors, tensor in zip(lists, row, strict=True):
                tensors.append(tensor.detach())
        return found


class FusedAdam(_Fused):
    """Adam, with both states in float32 whatever the parameters are."""

    _dtypes = (torch.float16, torch.bfloat16, torch.float32)

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
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.adam_w_mode, self.set_grad_none = int(adam_w_mode), set_grad_none
        self.capturable, self.master_weights = capturable, master_weights
        self._make_flag("cuda")

    def step(self, closure: Any = None, *deprecated: Any, grad_scaler: Any = None, **given: Any) -> Any:
        """One step; arguments beyond `closure` are refused, as by the original."""
        if any(one is not None for one in (*deprecated, *given.values())):
            raise RuntimeError("FusedAdam takes no arguments of step() but closure any more")
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            for lists in self._lists(group, _moments_in_float32).values():
                multi_tensor_applier(
                    amp_c.multi_tensor_adam, self._dummy_overflow_buf, lists, group["lr"], *group["betas"],
                    group["eps"], group["step"], self.adam_w_mode, int(group["bias_correction"]),
                    group["weight_decay"],
                )  # fmt: skip
        return loss


class FusedLAMB(_Fused):
    """LAMB, with both states in the parameters' dtype, and norms of all gradients."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLAMB does not support the AMSGrad variant.")
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay, "grad_averaging": grad_averaging, "max_grad_norm": max_grad_norm,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.adam_w_mode, self.set_grad_none, self.use_nvlamb = int(adam_w_mode), set_grad_none, use_nvlamb
        self._make_flag(self.param_groups[0]["params"][0].device)

    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None if closure is None else closure()
        gradients: dict[torch.dtype, list[Tensor]] = {torch.float32: [], torch.float16: []}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradients.setdefault(parameter.dtype, []).append(parameter.grad.detach())
        device = self.param_groups[0]["params"][0].device
        norms = [
            self._norm(of_dtype) if of_dtype else torch.zeros(1, device=device)
            for of_dtype in gradients.values()
        ]
        norm = self._norm(norms)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for lists in self._lists(group, _moments).values():
                multi_tensor_applier(
                    amp_c.multi_tensor_lamb, self._dummy_overflow_buf, lists, group["lr"], *group["betas"],
                    group["eps"], group["step"], int(group["bias_correction"]), group["weight_decay"],
                    int(group["grad_averaging"]), self.adam_w_mode, norm, self.defaults["max_grad_norm"],
                    self.use_nvlamb,
                )  # fmt: skip
        return loss

    def _norm(self, tensors: list[Tensor]) -> Tensor:
        result: Tensor = multi_tensor_applier(
            amp_c.multi_tensor_l2norm, self._dummy_overflow_buf, [tensors], False
        )[0]
        return result


class FusedSGD(_Fused):
    """SGD, with a momentum in the parameters' dtype even where it is 0."""

    _is_strict = False

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        for name, value in (("learning rate", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"Invalid {name} value: {value}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.wd_after_momentum, self.set_grad_none = wd_after_momentum, set_grad_none
        self.materialize_master_grads = materialize_master_grads
        self._make_flag(self.param_groups[0]["params"][0].device)

    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for lists in self._lists(group, _momentum).values():
                multi_tensor_applier(
                    amp_c.multi_tensor_sgd, self._dummy_overflow_buf, lists, group["weight_decay"],
                    group["momentum"], group["dampening"], group["lr"], group["nesterov"], True,
                    self.wd_after_momentum, 1.0,
                )  # fmt: skip
        return loss


def _moments_in_float32(parameter: Tensor) -> dict[str, Tensor]:
    # One is converted before the next is made.
    return {name: torch.zeros_like(parameter).float() for name in ("exp_avg", "exp_avg_sq")}


def _moments(parameter: Tensor) -> dict[str, Tensor]:
    return {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}


def _momentum(parameter: Tensor) -> dict[str, Tensor]:
    return {"momentum_buffer": torch.zeros_like(parameter)}
