"""The section `zero_optimization.zenflow`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from zerokit.config.base import Fraction, NonNegative, OrAuto, Positive, Reader, Section, Tested
from zerokit.config.conditions import BY_EPOCHS, Acts


class ZenFlow(Section):
    """Apply the most important gradients on the GPU at once, the rest later on the CPU.

    Here "auto" is DeepSpeed's own word. accelerate, and the Trainer through it, refuse it.
    """

    read_by: ClassVar[Reader] = "model"

    topk_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of gradient columns that counts as important. Default 0.1."""

    select_strategy: Literal["auto", "step", "epoch"] = "auto"
    """Unit in which `select_interval` counts. Default "auto"."""

    select_interval: Annotated[OrAuto[Positive], Tested(numbers=True)] = "auto"
    """Steps or epochs after which the important columns are chosen anew. Default "auto"."""

    update_interval: Annotated[OrAuto[Positive], Tested(numbers=True)] = "auto"
    """Steps after which the rest of the gradients is applied. Default "auto"."""

    overlap_step: bool = False
    """Run the CPU's optimizer step during forward and backward. Default false."""

    offload: bool = False
    """Keep the states of the important columns on the CPU as well. Default false."""

    auto_ratio: Fraction = 0.99
    """Threshold by which "auto" chooses `update_interval`. Default 0.99."""

    full_warm_up_rounds: NonNegative = 0
    """First steps in which all gradients are applied at once. Default 0."""

    pt_reserved_cores_perc: Annotated[Fraction, Acts(1, 2, 3, since="0.17.6")] = 0.5
    """Share of CPU cores left to PyTorch; the optimizer's workers take the others. Default 0.5."""

    steps_per_epoch: Annotated[Positive | None, Acts(when=BY_EPOCHS)] = None
    """Steps of one epoch. DeepSpeed sets it while it runs; leave it out. Default none."""
