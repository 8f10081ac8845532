"""Refuses features of ZeRO that need GPUs: on CPU ranks DeepSpeed would fail after loading the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerokit.distributed.group import count_gpus
from zerokit.documents import KeyPath
from zerokit.errors import ConfigError

_WEIGHTS = ("zero_quantized_weights", "zero_quantized_nontrainable_weights")
_GRADIENTS = "zero_quantized_gradients"


def check_gpu_features(zero: Mapping[str, Any], where: Callable[[KeyPath], str], *, ranks: int = 1) -> None:
    """Refuse, on CPU ranks, SuperOffload and ZeRO++'s quantization, which need CUDA (ConfigError)."""
    if count_gpus() > 0 or zero.get("stage") != 3:
        return
    if (zero.get("offload_optimizer") or {}).get("super_offload"):
        raise ConfigError(
            "SuperOffload needs GPUs, and this run is on CPU ranks",
            where=where(("zero_optimization", "offload_optimizer", "super_offload")),
            hint="Remove it here",
        )
    asked = [key for key in _WEIGHTS if zero.get(key)]
    if zero.get(_GRADIENTS) and ranks > _devices_of_a_node():
        asked.append(_GRADIENTS)
    if asked and not _has_quantizer():
        raise ConfigError(
            "is a CUDA kernel of DeepSpeed's, and this run is on CPU ranks",
            where=where(("zero_optimization", asked[0])),
            hint="Remove it here",
        )


def _devices_of_a_node() -> int:
    """Devices that DeepSpeed counts. It quantizes gradients only if there are more ranks."""
    from deepspeed.accelerator import get_accelerator

    return int(get_accelerator().device_count())


def _has_quantizer() -> bool:
    from deepspeed.ops import op_builder

    try:
        op_builder.QuantizerBuilder().load()
    # A ValueError of the CPU's builder; of CUDA's without a GPU whatever its compiler lacks first.
    except Exception:
        return False
    return True
