"""The section `pipeline`."""

from __future__ import annotations

from zerokit.config.base import ExactBool, NonNegative, OrAuto, Positive, Section


class Pipeline(Section):
    """Pipeline parallelism. Acts on models that the script made a `PipelineModule`, in stages 0 and 1.

    How many stages there are, and how layers are divided among them, is said in the script.
    """

    activation_checkpoint_interval: NonNegative = 0
    """Layers between two kept activations; 0 leaves it to the `PipelineModule`. Default 0."""

    pipe_partitioned: ExactBool = True
    """Divide activations among tensor-parallel ranks on their way to the next stage. Default true."""

    grad_partitioned: ExactBool = True
    """Divide gradients among tensor-parallel ranks on their way to the previous stage. Default true."""

    use_reentrant: bool | None = None
    """False recomputes activations without the reentrant form of checkpointing. Default none, true."""

    stages: OrAuto[Positive] = "auto"
    """No longer read by DeepSpeed. Default "auto"."""

    partition: str = "best"
    """No longer read by DeepSpeed. Default best."""

    seed_layers: bool = False
    """No longer read by DeepSpeed. Default false."""
