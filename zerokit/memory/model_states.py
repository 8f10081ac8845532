"""Model states under ZeRO, as the ZeRO paper counts them (arXiv 1910.02054, section 5 and Table 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zerokit.errors import ZerokitError
from zerokit.units import format_bytes, format_count

ZERO_STAGES = (0, 1, 2, 3)

Place = Literal["GPU", "host", "NVMe"]


@dataclass(frozen=True)
class ModelState:
    """Parameters, gradients or optimizer states of one rank."""

    name: str
    unit: int
    """Bytes per parameter."""
    letter: str
    """Φ, or Φₜ if fewer are trained."""
    elements: int
    """Of all ranks together."""
    divided_by: int | None
    """Ranks that share them; None: each rank has all of them."""
    where: Place = "GPU"
    packed_bytes: int = 0
    """q: bytes of 4-bit parameters, Φ₄, which each GPU holds."""
    gpu_share: float = 0.0
    """Of what is offloaded, the share that stays on the GPU."""

    @property
    def bytes(self) -> int:
        """Of one rank, on any device."""
        return self.unit * ceil_div(self.elements, self.divided_by or 1) + self.packed_bytes

    @property
    def gpu_bytes(self) -> int:
        """Of one rank, on its GPU."""
        offloaded = round((self.bytes - self.packed_bytes) * (1 - self.gpu_share))
        return self.bytes - (0 if self.where == "GPU" else offloaded)

    @property
    def place(self) -> str:
        """``"host"``, or ``"host, 25% on the GPU"``."""
        if self.where == "GPU" or not self.gpu_share:
            return self.where
        return "GPU" if self.gpu_share == 1 else f"{self.where}, {self.gpu_share:.0%} on the GPU"

    @property
    def symbols(self) -> str:
        """The formula: ``12Φ/N``."""
        packed = " + q" if self.packed_bytes else ""
        return f"{self.unit}{self.letter}{'/N' if self.divided_by else ''}{packed}"

    @property
    def numbers(self) -> str:
        """The formula in numbers: ``12 · 8.03B / 4``."""
        divided = f" / {self.divided_by:,}" if self.divided_by else ""
        packed = f" + {format_bytes(self.packed_bytes)}" if self.packed_bytes else ""
        return f"{self.unit} · {format_count(self.elements)}{divided}{packed}"


@dataclass(frozen=True)
class ModelStates:
    """What training keeps at any batch size. Sums are of one GPU."""

    parameters: ModelState
    gradients: ModelState
    optimizer_states: ModelState

    @property
    def each(self) -> tuple[ModelState, ModelState, ModelState]:
        return self.parameters, self.gradients, self.optimizer_states

    @property
    def parameters_bytes(self) -> int:
        return self.parameters.gpu_bytes

    @property
    def gradients_bytes(self) -> int:
        return self.gradients.gpu_bytes

    @property
    def optimizer_states_bytes(self) -> int:
        return self.optimizer_states.gpu_bytes

    @property
    def total_bytes(self) -> int:
        return sum(state.gpu_bytes for state in self.each)


def model_states(
    num_parameters: int,
    *,
    zero_stage: int,
    num_gpus: int,
    num_trainable_parameters: int | None = None,
    bytes_per_parameter: int = 2,
    bytes_per_gradient: int = 2,
    optimizer_bytes_per_parameter: int = 12,
    parameters_at: Place = "GPU",
    gradients_at: Place = "GPU",
    optimizer_states_at: Place = "GPU",
) -> ModelStates:
    """Model states of one rank: 2Φ + 2Φ + KΦ bytes, each divided by N if its stage partitions it.

    Stage 1 partitions optimizer states (P_os), stage 2 also gradients (P_os+g), stage 3 also parameters
    (P_os+g+p). The defaults are mixed-precision Adam, K = 12: an fp32 copy and two fp32 moments. A partition
    holds ⌈Φ/N⌉ elements, because the flat buffer is padded to equal parts.

    Args:
        num_parameters: Φ, all parameters including frozen ones.
        zero_stage: 0 to 3.
        num_gpus: N, the data-parallel ranks.
        num_trainable_parameters: with gradients and optimizer states; all by default.
        bytes_per_parameter: 2 for bf16 and fp16, 4 for fp32.
        bytes_per_gradient: the same for gradients.
        optimizer_bytes_per_parameter: K; 0 for an optimizer without states and fp32 copy.
        parameters_at: the device, if they are offloaded.
        gradients_at: the same for gradients.
        optimizer_states_at: the same for optimizer states.

    Raises:
        ZerokitError: a size is not positive, the stage is not 0 to 3, or there are more trainable parameters
            than parameters.
    """
    if zero_stage not in ZERO_STAGES:
        raise ZerokitError(f"zero_stage is {zero_stage}", hint="Choose 0, 1, 2 or 3")
    check_positive(
        num_parameters=num_parameters,
        num_gpus=num_gpus,
        bytes_per_parameter=bytes_per_parameter,
        bytes_per_gradient=bytes_per_gradient,
    )
    if optimizer_bytes_per_parameter < 0:
        raise ZerokitError(f"optimizer_bytes_per_parameter is {optimizer_bytes_per_parameter}", hint="Give 0 or more")
    trainable = num_parameters if num_trainable_parameters is None else num_trainable_parameters
    if not 1 <= trainable <= num_parameters:
        raise ZerokitError(
            f"num_trainable_parameters is {trainable}, num_parameters {num_parameters}",
            hint="Give 1 to num_parameters",
        )

    def shared(*, from_stage: int) -> int | None:
        return num_gpus if zero_stage >= from_stage else None

    letter = "Φ" if trainable == num_parameters else "Φₜ"
    return ModelStates(
        ModelState("parameters", bytes_per_parameter, "Φ", num_parameters, shared(from_stage=3), parameters_at),
        ModelState("gradients", bytes_per_gradient, letter, trainable, shared(from_stage=2), gradients_at),
        ModelState(
            "optimizer states",
            optimizer_bytes_per_parameter,
            letter,
            trainable,
            shared(from_stage=1),
            optimizer_states_at,
        ),
    )


def ceil_div(numerator: int, denominator: int) -> int:
    """⌈numerator / denominator⌉, exact at any size."""
    return -(-numerator // denominator)


def check_positive(**sizes: int) -> None:
    """Raises ZerokitError with the first of `sizes` that is not positive."""
    for name, size in sizes.items():
        if size < 1:
            raise ZerokitError(f"{name} is {size}", hint="Give a positive number")
