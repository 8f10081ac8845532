"""The decisions from which a ds_config is generated, and which of them work together.

The checks are few and explicit: what DeepSpeed refuses, ignores silently, or computes something else for.
Everything subtler is left to lint, which reads the finished config.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import get_args

from zerokit.choices import ActivationCheckpointing, OffloadDevice, OptimizerName, Precision, SchedulerName, Target
from zerokit.errors import ConfigError, did_you_mean
from zerokit.resolving.run import Run

OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
SCHEDULERS: tuple[SchedulerName, ...] = get_args(SchedulerName)

NEEDS_TOTAL_STEPS = ("WarmupDecayLR", "WarmupCosineLR")
"""Schedules that end, so that their constructor insists on `total_num_steps`."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """All options of `zerokit config`."""

    zero_stage: int
    """0, 1, 2 or 3."""
    run: Run = field(default_factory=Run)
    """What it is for. Its model sizes buckets, prefetch and persistence; the GPU's memory bounds buckets."""
    precision: Precision | None = "bf16"
    """None leaves the choice to the Trainer's or accelerate's arguments."""
    offload_optimizer: OffloadDevice | None = None
    """Where optimizer states go; `nvme` in stage 3 only."""
    offload_param: OffloadDevice | None = None
    """Where parameters go; in stage 3 only."""
    nvme_path: str | None = None
    """Folder on the NVMe device."""
    optimizer: OptimizerName | None = None
    """None: the script's, or AdamW for target `deepspeed`."""
    scheduler: SchedulerName | None = None
    """None: the script's."""
    learning_rate: float | None = None
    """None: filled by the target, or a starting point for the optimizer."""
    warmup_steps: int | None = None
    total_steps: int | None = None
    """Optimizer steps of the whole run."""
    micro_batch_size: int | None = None
    """Samples per forward pass on one GPU."""
    gradient_accumulation_steps: int | None = None
    """Forward passes per optimizer step."""
    gradient_clipping: float | None = None
    """Largest norm of all gradients; 0 is off."""
    zero_plus_plus: bool = False
    """ZeRO++: parameters gathered in 8 bits and inside a node, gradients reduced in 4 bits."""
    hpz_size: int | None = None
    """Ranks that share a second copy of the parameters; alone it is ZeRO++'s first part only."""
    inference: bool = False
    """For generation under ZeRO-3: nothing that only training reads."""
    activation_checkpointing: ActivationCheckpointing | None = None
    """How `deepspeed.checkpointing` keeps activations."""
    chosen: frozenset[str] = frozenset()
    """Names of the decisions that zerokit made."""

    @property
    def target(self) -> Target:
        """The program that passes the config to DeepSpeed; the Trainer if the run does not say."""
        return self.run.target or "trainer"

    @property
    def optimizer_type(self) -> OptimizerName | None:
        """The optimizer that the config names."""
        if self.optimizer is None and self.target == "deepspeed" and not self.inference:
            return "AdamW"
        return self.optimizer

    @property
    def hpz_partition_size(self) -> int | None:
        """Ranks of one hpZ group, or None where it is off."""
        return self.hpz_size or (self.run.cluster.gpus_per_node if self.zero_plus_plus else None)

    def check(self) -> None:
        """Refuse decisions that do not go together. ConfigError with the first contradiction."""
        for message, hint in self._contradictions():
            raise ConfigError(message, hint=hint)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        yield from self._unknown_names()
        yield from self._out_of_range()
        yield from self._offload()
        yield from self._inference()
        yield from self._optimizer()
        yield from self._scheduler()
        yield from self._zero_plus_plus()
        if self.precision is None and self.target == "deepspeed":
            yield "DeepSpeed alone cannot choose the precision", "Choose the precision bf16, fp16 or fp32"
        if self.precision == "fp16" and self.zero_stage == 0:
            yield (
                "in stage 0 DeepSpeed divides fp16 gradients by a loss scale that it never applied",
                "Choose stage 1, or bf16",
            )
        if self.activation_checkpointing is not None and self.target != "deepspeed":
            yield (
                "models of transformers do not call deepspeed.checkpointing, so its section would do nothing",
                "Set the Trainer's gradient_checkpointing, or choose the target deepspeed",
            )

    def _unknown_names(self) -> Iterator[tuple[str, str]]:
        for what, name, known in (
            ("precision", self.precision, get_args(Precision)),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("scheduler", self.scheduler, SCHEDULERS),
            ("offload device", self.offload_optimizer, get_args(OffloadDevice)),
            ("offload device", self.offload_param, get_args(OffloadDevice)),
            ("way of activation checkpointing", self.activation_checkpointing, get_args(ActivationCheckpointing)),
        ):
            if name is not None and name not in known:
                yield f"there is no {what} '{name}'", did_you_mean(name, known)
        if self.zero_stage not in (0, 1, 2, 3):
            yield f"there is no ZeRO stage {self.zero_stage!r}", "Choose one of 0, 1, 2, 3"

    def _out_of_range(self) -> Iterator[tuple[str, str]]:
        for name in (*("micro_batch_size", "gradient_accumulation_steps", "warmup_steps", "total_steps", "hpz_size"),):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} must be at least 1, not {value}", "Give a whole number of at least 1"
        if self.gradient_clipping is not None and not 0 <= self.gradient_clipping < inf:
            message = f"gradient_clipping must be at least 0 and finite, not {self.gradient_clipping}"
            yield message, "0 switches it off"
        if self.learning_rate is not None and not 0 < self.learning_rate < inf:
            message = f"learning_rate must be more than 0 and finite, not {self.learning_rate}"
            yield message, "Write it like 1e-5"

    def _offload(self) -> Iterator[tuple[str, str]]:
        devices = (self.offload_optimizer, self.offload_param)
        if self.zero_stage == 0 and any(devices):
            yield "offload has no ZeRO stage to act in: the stage is 0", "Choose stage 1, 2 or 3"
        if self.offload_param is not None and self.zero_stage < 3:
            yield (
                f"offload of parameters needs ZeRO stage 3; in stage {self.zero_stage} DeepSpeed ignores it",
                "Choose stage 3, or do not offload the parameters",
            )
        if self.offload_optimizer == "nvme" and self.zero_stage < 3:
            yield (
                f"offload to NVMe needs ZeRO stage 3; in stage {self.zero_stage} DeepSpeed uses the CPU",
                "Choose stage 3, or offload to cpu",
            )
        if self.nvme_path is None and "nvme" in devices:
            yield "offload to NVMe needs a folder", "Give one as nvme_path (--nvme-path)"
        if self.nvme_path is not None and "nvme" not in devices:
            yield (
                "an NVMe path is given, but nothing is offloaded to NVMe",
                'Offload the optimizer or the parameters to "nvme", or leave the path out',
            )

    def _inference(self) -> Iterator[tuple[str, str]]:
        if not self.inference:
            return
        if self.zero_stage != 3:
            yield (
                f"stage {self.zero_stage} divides what only training has",
                "Choose stage 3, which divides the parameters",
            )
        for name in (
            *("offload_optimizer", "optimizer", "scheduler", "learning_rate", "warmup_steps", "total_steps"),
            *("gradient_accumulation_steps", "gradient_clipping", "activation_checkpointing"),
        ):
            if getattr(self, name) is not None:
                yield f"{name} is for training only", "Remove it, or --inference"

    def _optimizer(self) -> Iterator[tuple[str, str]]:
        name = self.optimizer_type
        if name == "Lamb" and self.zero_stage > 0:
            yield (
                "LAMB scales each parameter's step by its own norm, and ZeRO hands it flat partitions",
                "Choose stage 0, or AdamW",
            )
        if self.learning_rate is not None and name is None and self.scheduler != "OneCycle":
            yield (
                "a learning rate has no place in a config without an optimizer",
                "Choose an optimizer, or give the rate to the script",
            )

    def _scheduler(self) -> Iterator[tuple[str, str]]:
        if self.scheduler is None:
            for name in ("warmup_steps", "total_steps"):
                if getattr(self, name) is not None:
                    yield f"{name} has no place in a config without a scheduler", "Choose a scheduler"
        if self.target == "deepspeed" and self.scheduler in NEEDS_TOTAL_STEPS and not self.total_steps:
            yield (
                f"{self.scheduler} ends with the run, and DeepSpeed does not know how long that is",
                "Give the optimizer steps of the whole run as total_steps (--total-steps)",
            )
        if self.warmup_steps and self.total_steps and self.warmup_steps >= self.total_steps:
            yield (f"{self.warmup_steps} steps of warmup leave nothing of {self.total_steps}", "Shorten the warmup")

    def _zero_plus_plus(self) -> Iterator[tuple[str, str]]:
        size = self.hpz_partition_size
        if size is None:
            return
        if self.zero_stage != 3:
            yield (f"ZeRO++ needs ZeRO stage 3; in stage {self.zero_stage} DeepSpeed ignores it", "Choose stage 3")
        if self.optimizer_type == "Muon" and self.zero_plus_plus:
            yield "DeepSpeed refuses Muon together with gradients in 4 bits", "Choose AdamW, or no ZeRO++"
        if self.offload_param == "nvme" and size > 1:
            yield "hpZ does not work with parameters on NVMe", "Offload parameters to the CPU, or leave out ZeRO++"
        num_gpus = self.run.cluster.num_gpus
        if num_gpus is None:
            return
        if num_gpus <= size:
            yield (
                f"ZeRO++ spares the network between nodes, and {num_gpus} GPUs are one group of {size}",
                "Leave it out, or say how many GPUs a node has (--gpus-per-node)",
            )
        elif num_gpus % size:
            yield (
                f"{num_gpus} GPUs do not divide into groups of {size}, as hpZ needs",
                "Choose an hpz_size (--hpz-size) that divides the number of GPUs",
            )
