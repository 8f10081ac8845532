"""The section `pipeline`."""

from __future__ import annotations

from typing import Annotated

from zerokit.config.base import ExactBool, NonNegative, OrAuto, Positive, Section
from zerokit.config.conditions import NOT_READ


class Pipeline(Section):
    """Pipeline parallelism. Acts on models that the script made a `PipelineModule`, in stages 0 and 1.

    The script sets the number of stages and how layers are divided among them.
    """

    activation_checkpoint_interval: NonNegative = 0
    """Layers between two kept activations; 0 leaves it to the `PipelineModule`. Default 0."""

    pipe_partitioned: ExactBool = True
    """Divide activations among tensor-parallel ranks on their way to the next stage. Default true."""

    grad_partitioned: ExactBool = True
    """Divide gradients among tensor-parallel ranks on their way to the previous stage. Default true."""

    use_reentrant: bool | None = None
    """False recomputes activations without the reentrant form of checkpointing. Default none, true."""

    stages: Annotated[OrAuto[Positive], NOT_READ] = "auto"
    """Number of stages. Default "auto"."""

    partition: Annotated[str, NOT_READ] = "best"
    """How layers are divided. Default best."""

    seed_layers: Annotated[bool, NOT_READ] = False
    """Seed each layer by itself. Default false."""
