"""What the rules look at: a config together with all that is known of the run it is meant for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from zerokit.config.base import AUTO
from zerokit.config.conditions import Known
from zerokit.config.key_index import as_written
from zerokit.config.no_effect import Idle, without_effect
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.config.root import DeepSpeedConfig
from zerokit.config.zero import ZeroOptimization
from zerokit.documents import KeyPath, has_value, value_at
from zerokit.hardware.cluster import Cluster
from zerokit.resolving.run import Run


@dataclass(frozen=True)
class Subject:
    """A config and its run. A rule is a pure function of it: no files, network, environment or devices."""

    config: DeepSpeedConfig
    """The part of the file that is valid, with DeepSpeed's defaults for all that it does not say."""
    written: Mapping[str, Any]
    """That same part as the file has it."""
    doubtful: frozenset[KeyPath] = frozenset()
    """Sections in which a key was not understood that may be any, so that "absent" may only mean "mistyped";
    ``()`` is the top."""
    misread: frozenset[KeyPath] = frozenset()
    """Keys that the file seems to give, but misspelled, misplaced or with a value that is not valid."""
    run: Run = field(default_factory=Run)
    """Of what is not known in it, only what holds for any is said."""

    @property
    def cluster(self) -> Cluster:
        """What it is meant to run on."""
        return self.run.cluster

    @cached_property
    def idle(self) -> Mapping[KeyPath, Idle]:
        """The keys that are set and change nothing, but for those that ask for no more than what happens."""
        known = Known(self.config, self.unsure, self.run.target)
        return {one.path: one for one in without_effect(known) if not one.harmless}

    @property
    def may_be_plain(self) -> bool:
        """Whether DeepSpeed may get the config as it is, with nobody to fill in an "auto".

        Without a target the batch sizes tell: at "auto" there, DeepSpeed by itself stops at once.
        """
        if self.run.target is not None or self.run.recipe is not None:
            return self.run.target == "deepspeed"
        return AUTO not in (
            self.config.train_batch_size,
            self.config.train_micro_batch_size_per_gpu,
            self.config.gradient_accumulation_steps,
        )

    @property
    def zero(self) -> ZeroOptimization:
        """The section `zero_optimization`, defaults filled in."""
        return self.config.zero_optimization

    @property
    def stage(self) -> int | None:
        """The ZeRO stage, or None where it is "auto" or may stand in a key that was not understood."""
        if self.unsure("zero_optimization", "stage"):
            return None
        stage = self.zero.stage
        return stage if isinstance(stage, int) else None

    @property
    def offload_optimizer(self) -> OffloadOptimizer | None:
        """The section if its device is `cpu` or `nvme`."""
        section = self.zero.optimizer_offload
        return section if section is not None and section.device in ("cpu", "nvme") else None

    @property
    def offload_param(self) -> OffloadParam | None:
        """The section if its device is `cpu` or `nvme`."""
        section = self.zero.param_offload
        return section if section is not None and section.device in ("cpu", "nvme") else None

    def written_at(self, *path: str) -> Any:
        """The value that the file gives at `path` (either spelling of a key), or None if it gives none."""
        return value_at(self.written, as_written(path, self.written))

    def sets(self, *path: str) -> bool:
        """Whether the file gives a value at `path`, in either spelling of a key with two names."""
        return has_value(self.written, as_written(path, self.written))

    def unsure(self, *path: str) -> bool:
        """Whether `path` is absent but may hide behind a key that was not understood."""
        present = next((end for end in range(len(path)) if not self.sets(*path[: end + 1])), None)
        if present is None:
            return False
        if path[:present] in self.doubtful:
            return True
        return any(key[: len(path)] == path or path[: len(key)] == key for key in self.misread)

    def lacks(self, *path: str) -> bool:
        """Whether the file surely gives no value at `path`."""
        return not self.sets(*path) and not self.unsure(*path)
