"""What the rules look at: a config together with all that is known of the run it is meant for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, Self

from zerokit.config.base import AUTO, ZERO
from zerokit.config.conditions import ConfigView
from zerokit.config.key_index import as_written
from zerokit.config.load import ValidPart
from zerokit.config.sections import DeepSpeedConfig, OffloadOptimizer, OffloadParam, ZeroOptimization
from zerokit.config.unused_keys import UnusedKey, unused_keys
from zerokit.documents import KeyPath, has_value, value_at
from zerokit.hardware.cluster import Cluster
from zerokit.resolving.nvme_buffers import NvmeBuffers
from zerokit.resolving.run import Run

_GIVEN: Any = object()


@dataclass(frozen=True, kw_only=True)
class Subject(ConfigView):
    """A config and its run. A rule is a pure function of it: no files, network, environment or devices."""

    config: DeepSpeedConfig
    """The valid part of the file, with DeepSpeed's defaults for all other keys."""
    written: Mapping[str, Any]
    """The same part as the file has it."""
    doubtful: frozenset[KeyPath] = frozenset()
    """Sections with a key that was not understood and may be any, so that "absent" may only mean "mistyped";
    ``()`` is the top."""
    misread: frozenset[KeyPath] = frozenset()
    """Keys that the file seems to give, but misspelled, misplaced or with a value that is not valid."""
    run: Run = field(default_factory=Run)
    """What is known of the run. Where something is not known, a rule reports only what holds for any."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", self.run.target)

    @classmethod
    def of(cls, valid: ValidPart, run: Run) -> Self:
        """The valid part of a file, which must be a section, and its run."""
        assert valid.config is not None
        return cls(config=valid.config, written=valid.written, doubtful=valid.doubtful, misread=valid.misread, run=run)

    @property
    def cluster(self) -> Cluster:
        """What it is meant to run on."""
        return self.run.cluster

    @cached_property
    def unused(self) -> Mapping[KeyPath, UnusedKey]:
        """The keys that are set and change nothing, except those that request no more than what happens."""
        return {key.path: key for key in unused_keys(self) if not key.harmless}

    @property
    def may_be_plain(self) -> bool:
        """Whether DeepSpeed may get the config as it is, without a Trainer or accelerate that fills "auto".

        Without a target the batch sizes decide: at "auto" there, DeepSpeed by itself stops at once.
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
        section: ZeroOptimization = self.config.zero_optimization
        return section

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

    @cached_property
    def offloads(self) -> Mapping[str, OffloadOptimizer | OffloadParam]:
        """The offload sections whose device is `cpu` or `nvme`, under the keys that the file gives.

        The deprecated `cpu_offload` and `cpu_offload_param` are such keys.
        """
        sections = {"optimizer": self.offload_optimizer, "param": self.offload_param}
        old = {"optimizer": "cpu_offload", "param": "cpu_offload_param"}
        return {
            f"offload_{name}" if self.is_set(ZERO, f"offload_{name}") else old[name]: section
            for name, section in sections.items()
            if section is not None
        }

    def written_value(self, *path: str) -> Any:
        """The value that the file gives at `path` (either spelling of a key), or None if it gives none."""
        return value_at(self.written, as_written(path, self.written))

    def is_set(self, *path: str, to: Any = _GIVEN) -> bool:
        """Whether the file gives a value at `path`, in either spelling of a key with two names.

        Args:
            to: the value that it must be, of the same type: ``True`` is not 1.
        """
        if to is _GIVEN:
            return has_value(self.written, as_written(path, self.written))
        written = self.written_value(*path)
        return written == to and type(written) is type(to)

    def nearest_set(self, *path: str) -> KeyPath:
        """`path`, or the nearest section around it that the file gives."""
        return next(path[:end] for end in range(len(path), -1, -1) if not end or self.is_set(*path[:end]))

    def is_absent(self, *path: str) -> bool:
        """Whether the file certainly gives no value at `path`."""
        return not self.is_set(*path) and not self.is_uncertain(*path)

    def is_uncertain(self, *path: str) -> bool:
        """Whether `path` is absent but may be meant by a key that was not understood."""
        if not (self.doubtful or self.misread) or self.is_set(*path):
            return False
        present = next(end for end in range(len(path)) if not self.is_set(*path[: end + 1]))
        if path[:present] in self.doubtful:
            return True
        return any(key[: len(path)] == path or path[: len(key)] == key for key in self.misread)


def model_dtype_bytes(subject: Subject) -> int | None:
    """Bytes of a parameter or gradient while it trains: 2 in bf16 and fp16, 4 in fp32.

    None where it is "auto" or not certain. transformers and accelerate add a section that is absent.
    Source: `get_data_types` in `deepspeed/runtime/engine.py`.
    """
    if subject.run.target != "deepspeed" and not subject.is_set("bf16") and not subject.is_set("fp16"):
        return None
    flags = []
    for section in ("bf16", "fp16"):
        if subject.is_uncertain(section, "enabled"):
            return None
        value = getattr(getattr(subject.config, section, None), "enabled", False)
        if value == AUTO:
            return None
        flags.append(value)
    return 2 if any(flags) else 4


def nvme_buffers(subject: Subject) -> NvmeBuffers | None:
    """What the model takes of buffers for parameters on NVMe; None where it or the ranks are not known."""
    model, ranks = subject.run.model, subject.cluster.num_gpus
    if model is None or ranks is None:
        return None
    return NvmeBuffers.under(subject.config.dump(), model, ranks, model_dtype_bytes(subject) or 2)


def offload_param_at_the_run(subject: Subject) -> OffloadParam | None:
    """`subject.offload_param`, for a recipe with the buffers that `zerokit train` adds for its model."""
    section, buffers = subject.offload_param, nvme_buffers(subject)
    if section is None or buffers is None or subject.run.recipe is None:
        return section
    return section.model_copy(update=buffers.missing(subject.config.dump()))


def share(elements: int, ranks: int) -> int:
    """One rank's part, in elements, where DeepSpeed pads to a multiple of the number of ranks."""
    return ceil(elements / ranks)


def autotp_size(subject: Subject) -> int:
    """Tensor-parallel ranks; 1 where `tensor_parallel` is absent or off."""
    size = subject.written_value("tensor_parallel", "autotp_size")
    return size if isinstance(size, int) and size > 1 else 1
