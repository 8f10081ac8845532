"""Seconds of kernels on a card: matmul, attention, and memory-bound kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.attention import Attention, AttentionCurve
from zerokit.hardware.costs.figures import MeasuredAttention, attention_curves, figures, generation, matmul_curves
from zerokit.hardware.costs.matmul import MatmulCurve, padded
from zerokit.hardware.costs.names import dtype_name, element_bytes, reads_what_it_writes, short_name
from zerokit.hardware.gpus import Gpu

Layout = Literal["TN", "NN", "NT"]
Kernel = Literal["flash_attention_2", "flash_attention_3", "flash_attention_4", "cudnn", "efficient", "eager"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)

_RATES = {"float16": ("fp16",), "bfloat16": ("bf16",), "tf32": ("tf32",)} | dict.fromkeys(
    ("fp8", "float8", "int8", "uint8"), ("fp8", "bf16", "fp16")
)
"""For each dtype, the rates to look for in order; without any of them, fp32's."""

_CURVES = {"volta": ("V100-16GB",), "turing": ("A100-80GB-PCIe",), "ampere": ("A100-80GB-PCIe",)} | {
    "ada": ("A100-80GB-PCIe",),
    "hopper": ("H200",),
    "blackwell": ("B200",),
    "other": ("A100-80GB-PCIe", "B200"),
}
"""For each generation, the card with a matmul curve for cards without their own; of two, the curve between.
"""

_ATTENTION = {
    "hopper": {"flash_attention_4": "flash_attention_3"},
    "blackwell": {"flash_attention_4": "cudnn", "flash_attention_3": "flash_attention_2"},
}
"""The measured kernel that represents another one; FlashAttention 2 for other fused kernels. On a B200, cuDNN is as
fast as FlashAttention 4 in a step: 836 and 834 TFLOPS (ml-engineering, insights/when-to-upgrade-gpus, Llama 8B)."""

_FLASH_2: Kernel = "flash_attention_2"
_MEASURED_ON = {"hopper": "H100-SXM", "blackwell": "B200"}


@dataclass(frozen=True)
class KernelCosts:
    """Costs of kernels on the GPUs of a cluster. Every cost grows with every size.

    Raises:
        ZerokitError: the speed of the card is unknown.
    """

    cluster: Cluster
    figures: Mapping[str, Any] = field(default_factory=figures, hash=False, repr=False)
    """`figures.json`, or with a file's changes (:mod:`zerokit.hardware.hardware_file`)."""

    def __post_init__(self) -> None:
        gpu = self.cluster.gpu
        if gpu is None or not gpu.tflops or gpu.bandwidth_gb_s is None:
            raise ZerokitError(
                "the speed of the GPU is not known" if gpu is None else f"the speed of {gpu.name} is not known",
                where="--gpu",
                hint="Name a card that 'zerokit gpus' lists",
            )

    @property
    def gpu(self) -> Gpu:
        assert self.cluster.gpu is not None
        return self.cluster.gpu

    def matmul(
        self, m: int, n: int, k: int, batch: int = 1, dtype: str = "bfloat16", layout: Layout | None = None
    ) -> float:
        """Seconds of `batch` matmuls (m, k) by (k, n). `layout`: of :data:`LAYOUTS`; None: unknown."""
        if not min(m, n, k, batch):
            return self._kernel_seconds
        rate, best = self._rate(dtype)
        share = best * self._matmul_curve(dtype).share(m, n, k, batch, layout)
        moved = sum(_bytes(size, dtype) for size in ((batch, m, k), (batch, k, n), (batch, m, n)))
        multiplying = 2.0 * batch * math.prod(padded(m, n, k)) / (rate * share)
        return self._kernel_seconds + max(multiplying, self._moving(moved))

    def attention(
        self,
        kernel: Kernel,
        backward: bool,
        batch: float,
        heads: int,
        kv_heads: int,
        q_len: int,
        k_len: int,
        head_dim: int,
        causal: bool,
        dtype: str = "bfloat16",
        window: int | None = None,
    ) -> float:
        """Seconds of scaled dot-product attention in a kernel.

        Args:
            kernel: of :data:`KERNELS`.
            backward: the gradients instead of the output.
            batch: sequences; for packed ones see :func:`zerokit.hardware.costs.attention.packed`.
            q_len: queries per sequence.
            k_len: keys per sequence.
            causal: queries attend to no later keys.
            window: maximum keys per query; None: all.

        Raises:
            ZerokitError: there is no such kernel.
        """
        if kernel not in KERNELS:
            raise ZerokitError(f"there is no attention kernel '{kernel}'", hint=f"Choose one of {', '.join(KERNELS)}")
        call = Attention(batch, heads, kv_heads, q_len, k_len, head_dim, causal, window)
        if kernel == "eager":
            return self._eager_attention(call, backward, dtype)
        seconds = self._fused_attention(kernel, call, backward, dtype)
        queries = _bytes((batch, heads, q_len, head_dim), dtype)
        keys = _bytes((batch, kv_heads, k_len, head_dim), dtype)
        moved = (4 * queries + 4 * keys) if backward else (2 * queries + 2 * keys)
        return max(seconds, self._moving(moved), self._kernel_seconds)

    def memory_bound(self, bytes_moved: int, operator: str = "") -> float:
        """Seconds of a memory-bound kernel.

        Args:
            bytes_moved: read and written.
            operator: its name; reductions along rows take longer per byte.
        """
        return self._kernel_seconds + self._moving(bytes_moved) * self._passes(operator)

    def _matmul_curve(self, dtype: str) -> MatmulCurve:
        own = self._own_curve("matmul", dtype)
        return MatmulCurve(**own) if own else self._measured_curve

    def _own_curve(self, work: str, dtype: str) -> Mapping[str, Any] | None:
        """The curve of the hardware file for the dtype, or for the most similar one; None without."""
        own = self.figures.get("kernels", {}).get(work, {})
        kind = self._rated_as(dtype)
        # Tensor-core kernels resemble each other more than fp32 kernels.
        nearest = (kind, *(() if kind == "fp32" else ("bf16", "fp16")), *own)
        return next((own[one] for one in nearest if one in own), None)

    @cached_property
    def _measured_curve(self) -> MatmulCurve:
        known = matmul_curves()
        if self.gpu.name in known:
            return known[self.gpu.name]
        curves = [known[card] for card in _CURVES[self._generation]]
        return curves[0] if len(curves) == 1 else curves[0].mixed_with(curves[1])

    def _fused_attention(self, kernel: Kernel, call: Attention, backward: bool, dtype: str) -> float:
        if own := self._own_curve("attention", dtype):
            curve = AttentionCurve(tuple(own["forward"]), tuple(own["backward"]))
            return curve.peak_flops(call, backward, self.gpu.multiprocessors) / self._rate(dtype)[0]
        if kernel == "efficient":
            # Written for the same tensor cores as FlashAttention 2, and slower by the factor on an A100.
            older, newer = (
                one.curve.peak_flops(call, backward, one.multiprocessors)
                for one in (_attention_curves()["A100-80GB-PCIe", name] for name in ("triton", _FLASH_2))
            )
            return self._fused_attention(_FLASH_2, call, backward, dtype) * older / newer
        measured = self._attention_curve(kernel)
        rate, _ = self._rate(dtype)
        sms = self.gpu.multiprocessors or measured.multiprocessors
        if measured.card == "H100-SXM" and self._generation == "blackwell":
            # On newer cards, a kernel for older tensor cores runs at their speed.
            rate = min(rate, measured.peak_flops / measured.multiprocessors * sms)
        return measured.curve.peak_flops(call, backward, sms) / rate

    def _attention_curve(self, kernel: Kernel) -> MeasuredAttention:
        wanted = _ATTENTION.get(self._generation, {}).get(kernel, kernel)
        on = _MEASURED_ON.get(self._generation, "A100-80GB-PCIe")
        curves = _attention_curves()
        for card in (on, "H100-SXM" if self._generation == "blackwell" else on):
            if (card, wanted) in curves:
                return curves[card, wanted]
        return curves["A100-80GB-PCIe", _FLASH_2]

    def _eager_attention(self, call: Attention, backward: bool, dtype: str) -> float:
        """Two matmuls, with mask and softmax in the same dtype between them; or their gradients."""
        batch = math.ceil(call.batch * call.heads)
        products = self.matmul(call.q_len, call.k_len, call.head_dim, batch, dtype) + self.matmul(
            call.q_len, call.head_dim, call.k_len, batch, dtype
        )
        scores = _bytes((batch, call.q_len, call.k_len), dtype)
        softmax = scores * (3 if backward else 2)
        mask = 2 * scores if call.causal else 0
        between = self.memory_bound(softmax, "softmax") + (self.memory_bound(mask) if mask else 0.0)
        return (2 if backward else 1) * products + between

    def _rated_as(self, dtype: str) -> str:
        """The rate of the card that a dtype uses."""
        rates = self.gpu.tflops
        # With only some rates known, the nearest one.
        slowest = min(rates, key=lambda one: rates[one])
        wanted = (*_RATES.get(dtype_name(dtype).partition("_")[0], ()), "fp32", slowest)
        name: str = next(one for one in wanted if one in rates)
        return name

    def _rate(self, dtype: str) -> tuple[float, float]:
        """Nominal operations per second of a dtype, and the largest share that matmul reaches."""
        key = self._rated_as(dtype)
        best = self.figures["best_share"]
        kind = key if key in ("fp32", "fp8") else "tensor"
        share = best["cards"].get(self.gpu.name, {}).get(kind, best["others"][kind])
        return 1e12 * self.gpu.tflops[key], share

    def _moving(self, num_bytes: int) -> float:
        assert self.gpu.bandwidth_gb_s is not None
        shares = self.figures["memory"]["share"]
        share: float = shares["cards"].get(self.gpu.name, shares["others"])
        return num_bytes / (1e9 * self.gpu.bandwidth_gb_s * share)

    @property
    def _kernel_seconds(self) -> float:
        return float(self.figures["memory"]["kernel_seconds"]["value"])

    def _passes(self, operator: str) -> float:
        """Time per byte of an operator, relative to an elementwise one."""
        known, name = self.figures["memory"]["passes"], short_name(operator)
        if "softmax" in name:
            return float(known["softmax"])
        if "layer_norm" in name or "rms_norm" in name:
            return float(known["layer_norm"])
        return float(known["in_place"]) if reads_what_it_writes(operator) else 1.0

    @cached_property
    def _generation(self) -> str:
        return generation(self.gpu)


def _attention_curves() -> dict[tuple[str, str], MeasuredAttention]:
    """Kernels by card."""
    return {(one.card, one.kernel): one for one in attention_curves()}


def _bytes(sizes: tuple[float, ...], dtype: str) -> int:
    return math.ceil(math.prod(sizes) * element_bytes(dtype))
