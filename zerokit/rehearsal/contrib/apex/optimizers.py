"""apex.optimizers: FusedAdam, FusedLAMB and FusedSGD, with the states that the originals make."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from zerokit.rehearsal.contrib.apex.amp_c import (
    multi_tensor_adam,
    multi_tensor_applier,
    multi_tensor_l2norm,
    multi_tensor_lamb,
    multi_tensor_sgd,
)
from zerokit.rehearsal.errors import RehearsalGap

__all__ = ["FusedAdam", "FusedLAMB", "FusedSGD"]


class _FusedOptimizer(Optimizer):
    """Has an overflow flag on the GPU, and updates the parameters of each dtype together."""

    set_grad_none: bool
    _states: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.float32)
    """The dtypes of parameters that are updated."""
    _refuses_other_dtypes: ClassVar[bool] = True
    """False: parameters of other dtypes stay as they are."""

    def _make_flag(self, device: Any) -> None:
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device=device)

    def zero_grad(self) -> None:  # type: ignore[override]  # the originals have no argument
        """Free gradients, or with `set_grad_none` False fill them with zeros."""
        super().zero_grad(set_to_none=self.set_grad_none)

    def _new_state(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter.data)

    def _lists(self, parameters: list[Tensor]) -> list[list[list[Tensor]]]:
        """Gradients, parameters and their states, for each dtype of the parameters."""
        rows: dict[torch.dtype, list[list[Tensor]]] = defaultdict(list)
        for parameter in (one for one in parameters if one.grad is not None):
            if parameter.dtype not in self._dtypes:
                if self._refuses_other_dtypes:
                    raise RuntimeError(f"{type(self).__name__} only support fp16 and fp32.")
                continue
            state = self.state[parameter]
            for name in self._states:
                if name not in state:
                    state[name] = self._new_state(parameter)
            tensors = [parameter.grad, parameter, *(state[name] for name in self._states)]
            rows[parameter.dtype].append([tensor.detach() for tensor in tensors])
        return [[list(column) for column in zip(*found, strict=True)] for found in rows.values()]


class FusedAdam(_FusedOptimizer):
    """Adam, with both states in float32 for parameters of any dtype."""

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
        rates = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**rates, "bias_correction": bias_correction})
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
            for lists in self._lists(group["params"]):
                multi_tensor_applier(
                    multi_tensor_adam, self._dummy_overflow_buf, lists, group["lr"], *group["betas"],
                    group["eps"], group["step"], self.adam_w_mode, int(group["bias_correction"]),
                    group["weight_decay"],
                )  # fmt: skip
        return loss

    def _new_state(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter.data).float()


class FusedLAMB(_FusedOptimizer):
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
        rates = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        switches = {"bias_correction": bias_correction, "grad_averaging": grad_averaging}
        super().__init__(params, {**rates, **switches, "max_grad_norm": max_grad_norm})
        self.adam_w_mode, self.set_grad_none, self.use_nvlamb = int(adam_w_mode), set_grad_none, use_nvlamb
        self._make_flag(self._device)

    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None if closure is None else closure()
        norms = self._gradient_norms()  # the original keeps them to the end of the step, too
        norm = self._norm(norms)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for lists in self._lists(group["params"]):
                multi_tensor_applier(
                    multi_tensor_lamb, self._dummy_overflow_buf, lists, group["lr"], *group["betas"],
                    group["eps"], group["step"], int(group["bias_correction"]), group["weight_decay"],
                    int(group["grad_averaging"]), self.adam_w_mode, norm, self.defaults["max_grad_norm"],
                    self.use_nvlamb,
                )  # fmt: skip
        return loss

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.param_groups[0]["params"][0].device
        return device

    def _gradient_norms(self) -> list[Tensor]:
        """The norms of all gradients in float32, in float16, and in any other dtype."""
        gradients: dict[torch.dtype, list[Tensor]] = {torch.float32: [], torch.float16: []}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradients.setdefault(parameter.dtype, []).append(parameter.grad.detach())
        return [
            self._norm(tensors) if tensors else torch.zeros(1, device=self._device)
            for tensors in gradients.values()
        ]

    def _norm(self, tensors: list[Tensor]) -> Tensor:
        norm, _ = multi_tensor_applier(multi_tensor_l2norm, self._dummy_overflow_buf, [tensors], False)
        return norm  # type: ignore[no-any-return]


class FusedSGD(_FusedOptimizer):
    """SGD, with a momentum state in the parameters' dtype, even if the momentum is 0."""

    _states = ("momentum_buffer",)
    _refuses_other_dtypes = False

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
        rates = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**rates, "nesterov": nesterov})
        self.wd_after_momentum, self.set_grad_none = wd_after_momentum, set_grad_none
        self.materialize_master_grads = materialize_master_grads
        self._make_flag(self.param_groups[0]["params"][0].device)

    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for lists in self._lists(group["params"]):
                multi_tensor_applier(
                    multi_tensor_sgd, self._dummy_overflow_buf, lists, group["weight_decay"],
                    group["momentum"], group["dampening"], group["lr"], group["nesterov"], True,
                    self.wd_after_momentum, 1.0,
                )  # fmt: skip
        return loss
