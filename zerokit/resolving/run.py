"""The one description of a run that a ds_config is written, resolved, checked and estimated for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from zerokit.choices import Target
from zerokit.errors import ConfigError, did_you_mean
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import DATA_PARALLEL, Cluster, Parallelism
from zerokit.hardware.gpus import some_gpu
from zerokit.resolving.arguments import Arguments
from zerokit.resolving.auto_word import TARGETS

if TYPE_CHECKING:
    from zerokit.models import ModelShape
    from zerokit.recipe import Recipe
    from zerokit.releases.versions import Version


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of a run. Each None: not known. ConfigError if there is no such target."""

    target: Target | None = None
    """The program that passes the config to DeepSpeed and fills "auto"; the Trainer if there is a recipe."""
    cluster: Cluster = field(default_factory=Cluster)
    parallelism: Parallelism = DATA_PARALLEL
    """GPUs that share their sequences, by the script's or the recipe's word; the ds_config may have others."""
    data_parallel_ranks: int | None = None
    """Ranks that see different samples; None: as many as the cluster and the ds_config make."""
    model: ModelShape | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the Trainer, or of the script under accelerate, that were set."""
    where: Callable[[str], str] = "{}".format
    """Names the place of one of them."""
    recipe: Recipe | None = None
    """Its `training` holds TrainingArguments that were set."""
    deepspeed_version: Version | None = None
    """None: the newest that zerokit supports, which the models describe."""

    def __post_init__(self) -> None:
        if self.target is None and self.recipe is not None:
            object.__setattr__(self, "target", "trainer")
        if self.recipe is not None and self.parallelism == DATA_PARALLEL:
            object.__setattr__(self, "parallelism", Parallelism(**self.recipe.parallel.model_dump()))
        if self.target is not None and self.target not in TARGETS:
            hint = did_you_mean(str(self.target), TARGETS)
            raise ConfigError(f"there is no target '{self.target}'", where="target", hint=hint)

    @classmethod
    def of(
        cls,
        *,
        target: Target | None = None,
        num_gpus: int | None = None,
        gpus_per_node: int = GPUS_PER_NODE,
        model: ModelShape | None = None,
        recipe: Recipe | None = None,
        gpu: str | None = None,
        gpu_memory_bytes: int | None = None,
        host_memory_bytes: int | None = None,
        deepspeed_version: Version | None = None,
    ) -> Run:
        """A run of single facts. ZerokitError if a size cannot be, or there is no such card."""
        return cls(
            target=target,
            cluster=Cluster(num_gpus, gpus_per_node, some_gpu(gpu, gpu_memory_bytes), host_memory_bytes),
            model=model,
            recipe=recipe,
            deepspeed_version=deepspeed_version,
        )

    @cached_property
    def arguments(self) -> Arguments:
        """Those that were set and the target's defaults for the others; the target must be known."""
        assert self.target is not None
        return Arguments(self.target, self.given, self.where)

    @property
    def world_size(self) -> int:
        """Ranks, which must be known."""
        return self.cluster.world_size

    def batch_group(self, sequence_parallel_size: int | None = None, *, by_deepspeed: bool = True) -> int:
        """Ranks that count once in a `train_batch_size`: those that share a sequence.

        Args:
            sequence_parallel_size: the ds_config's, for a run that names no group.
            by_deepspeed: whether each tensor-parallel rank counts, as in ``DeepSpeedConfig.__init__``.
        """
        if self.parallelism == DATA_PARALLEL:
            return sequence_parallel_size or 1
        return self.parallelism.sequence if by_deepspeed else self.parallelism.group_size

    @property
    def hidden_size(self) -> int | None:
        """The width by which "auto" is filled in; None also where the Trainer finds none."""
        return None if self.model is None else self.model.hidden_size_for_trainer

    @property
    def hidden_size_is_nested(self) -> bool:
        """Whether the model's config has it in `text_config` only, where accelerate does not look."""
        return self.model is not None and self.model.hidden_size_for_accelerate is None
