"""Speed of a run: seconds per step, tokens per second, and model FLOPs utilization."""

from __future__ import annotations

import math
from array import array
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from zerokit.hardware.gpus import gpu_of_torch

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Speed(NamedTuple):
    tokens_per_second: float
    """Over all ranks, without padding."""
    mfu: float | None
    """Model FLOPs utilization; None if unknown."""


class Throughput:
    """The time of steps, without evaluations and checkpoints."""

    def __init__(self, operations_per_token: int | None = None, flops: float | None = None) -> None:
        self._operations, self._flops = operations_per_token, flops
        self._steps = array("f")
        self._since = self._seconds = 0.0
        self._tokens = 0

    def begin(self, now: float, tokens: int) -> None:
        """Start the first step; `tokens` were trained on before."""
        self._since, self._tokens = now, tokens

    def step_ended(self, now: float) -> None:
        """End a step, and start the next one."""
        self._steps.append(now - self._since)
        self._seconds += now - self._since
        self._since = now

    def paused(self, now: float) -> None:
        """Exclude the time since the last step."""
        self._since = now

    def since_last(self, tokens: int) -> Speed | None:
        """The speed since the last call, at a total of `tokens`; None without steps."""
        new, seconds = tokens - self._tokens, self._seconds
        self._tokens, self._seconds = tokens, 0.0
        if new <= 0 or seconds <= 0:
            return None
        mfu = self._mfu(new, seconds)
        return Speed(round(new / seconds, 1), None if mfu is None else round(mfu, 4))

    def mfu(self, tokens: int) -> float | None:
        """Model FLOPs utilization of all steps, with `tokens` in them; None if unknown."""
        seconds = sum(self._steps)
        return self._mfu(tokens, seconds) if seconds else None

    def _mfu(self, tokens: int, seconds: float) -> float | None:
        known = self._operations is not None and self._flops is not None
        return tokens / seconds * self._operations / self._flops if known else None  # type: ignore[operator]

    @property
    def step_seconds(self) -> float | None:
        """The median, without the first step, which allocates and compiles, if there are others."""
        steps = self._steps[1:] or self._steps
        return median(steps) if steps else None


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def operations_per_token(model: PreTrainedModel) -> int | None:
    """FLOPs of a training step per token, in matmuls with parameters.

    Two for each parameter forward, two for the gradient of its input, and two for its own gradient if it is
    trained. These are the model's FLOPs of the PaLM paper (appendix B) without its term for attention, and
    without what checkpointing recomputes. None for encoder-decoders, and for experts without a known number
    per token.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        return None
    config = model.config.get_text_config(decoder=True) if hasattr(model.config, "get_text_config") else None
    num_experts = next((getattr(config, key) for key in _EXPERTS if getattr(config, key, None)), None)
    met = getattr(config, "num_experts_per_tok", None)
    find_places = _looked_up(model)
    total = 0.0
    for name, parameter in model.named_parameters():
        packed = getattr(parameter, "quant_state", None)  # of bitsandbytes, which knows the shape
        shape = getattr(parameter, "ds_shape", parameter.shape) if packed is None else packed.shape
        if len(shape) < 2 or id(parameter) in find_places or name.startswith("prompt_encoder."):
            continue
        share = 1.0
        if ".experts." in name:
            if num_experts is None or met is None:
                return None
            share = met / num_experts
        total += share * math.prod(shape) * (6 if parameter.requires_grad else 4)
    return round(total)


def _looked_up(model: torch.nn.Module) -> set[int]:
    """Embeddings that are not the matrix of a matmul, unlike one that is also the output's."""
    from torch.nn import Embedding

    tables = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    output: Any = getattr(model, "get_output_embeddings", lambda: None)()
    return tables - {id(getattr(output, "weight", None))}


def peak_flops(card: str, precision: str, matmul_precision: str | None) -> float | None:
    """FLOP/s of dense matmuls of a card; None if unknown.

    Args:
        matmul_precision: of matmuls in fp32; None is torch's ``highest``.
    """
    known = gpu_of_torch(card)
    if precision == "fp32" and matmul_precision in ("high", "medium"):
        precision = "tf32"
    rate = None if known is None else known.tflops.get(precision)
    return None if rate is None else rate * 1e12
