"""Model states under ZeRO: the accounting of the ZeRO paper (arXiv 1910.02054, section 5 and Table 1)."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.errors import ZerokitError

ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one GPU of what training must keep whatever the batch is."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_states_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of the three, per GPU."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_states_bytes


def model_states(
    num_parameters: int,
    *,
    zero_stage: int,
    world_size: int,
    num_trainable_parameters: int | None = None,
    bytes_per_parameter: int = 2,
    bytes_per_gradient: int = 2,
    optimizer_bytes_per_parameter: int = 12,
) -> ModelStates:
    """Model states per GPU: 2Φ + 2Φ + KΦ bytes, each divided by N where its stage partitions it.

    Stage 1 partitions the optimizer states (P_os), stage 2 the gradients too (P_os+g), stage 3 the
    parameters too (P_os+g+p). The defaults are mixed-precision Adam, K = 12: an fp32 copy of the
    parameters and two fp32 moments. A partition holds ⌈Φ/N⌉ elements, because a flat buffer is padded
    to equal parts.

    Args:
        num_parameters: Φ, all parameters, frozen ones too.
        zero_stage: 0 to 3.
        world_size: N, the data-parallel ranks.
        num_trainable_parameters: those with gradients and optimizer states; all by default.
        bytes_per_parameter: 2 for bf16 and fp16, 4 for fp32.
        bytes_per_gradient: likewise.
        optimizer_bytes_per_parameter: K; 0 is an optimizer without states and without an fp32 copy.

    Raises:
        ZerokitError: a size that is not positive, a stage outside 0 to 3, or more trainable
            parameters than parameters.
    """
    check_zero_stage(zero_stage)
    check_positive(
        num_parameters=num_parameters,
        world_size=world_size,
        bytes_per_parameter=bytes_per_parameter,
        bytes_per_gradient=bytes_per_gradient,
    )
    if optimizer_bytes_per_parameter < 0:
        raise ZerokitError(
            f"optimizer_bytes_per_parameter is {optimizer_bytes_per_parameter}", hint="Give 0 or more"
        )
    trainable = num_parameters if num_trainable_parameters is None else num_trainable_parameters
    if not 1 <= trainable <= num_parameters:
        raise ZerokitError(
            f"num_trainable_parameters is {trainable}, num_parameters {num_parameters}",
            hint="Give 1 to num_parameters",
        )

    def per_gpu(elements: int, *, partitioned_from: int) -> int:
        return ceil_div(elements, world_size) if zero_stage >= partitioned_from else elements

    return ModelStates(
        parameters_bytes=bytes_per_parameter * per_gpu(num_parameters, partitioned_from=3),
        gradients_bytes=bytes_per_gradient * per_gpu(trainable, partitioned_from=2),
        optimizer_states_bytes=optimizer_bytes_per_parameter * per_gpu(trainable, partitioned_from=1),
    )


def ceil_div(numerator: int, denominator: int) -> int:
    """⌈numerator / denominator⌉ without floats, exact at any size."""
    return -(-numerator // denominator)


def check_zero_stage(zero_stage: int) -> None:
    """Raises ZerokitError unless `zero_stage` is 0, 1, 2 or 3."""
    if zero_stage not in ZERO_STAGES:
        raise ZerokitError(f"zero_stage is {zero_stage}", hint="Choose 0, 1, 2 or 3")


def check_positive(**sizes: int) -> None:
    """Raises ZerokitError that names the first of `sizes` that is not positive."""
    for name, size in sizes.items():
        if size < 1:
            raise ZerokitError(f"{name} is {size}", hint="Give a positive number")
