"""What a ds_config means for memory: stage, types, buckets, offload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from zerokit.choices import Precision
from zerokit.config import DeepSpeedConfig
from zerokit.config.conditions import ConfigView, bf16_optimizer
from zerokit.config.dtypes import FP32_NAMES
from zerokit.errors import ConfigError
from zerokit.memory.model_states import ModelStates, Place, model_states
from zerokit.memory.optimizers import OptimizerFacts, optimizer_facts, optimizer_kind
from zerokit.memory.training_run import TrainingRun

Where = Literal["none", "cpu", "nvme"]
Wrapper = Literal["none", "fp16", "fp16_unfused", "bf16", "zero_1_2", "zero_3"]
"""DeepSpeed's wrapper of the optimizer: none, FP16_Optimizer, FP16_UnfusedOptimizer, BF16_Optimizer,
DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3."""

_PLACES: dict[Where, Place] = {"none": "GPU", "cpu": "host", "nvme": "NVMe"}


@dataclass(frozen=True)
class Settings:
    """Everything that the estimate needs to know of a run, except the model."""

    stage: int
    zero_ranks: int
    """N: ranks that share what the stage partitions."""
    tensor_rank: int
    """The rank within its tensor-parallel group: the one with the fullest GPU, unless one is requested."""
    precision: Precision
    parameter_bytes: int
    """e."""
    accumulation_bytes: int
    """g: bytes of a gradient while it is accumulated (`grad_accum_dtype`)."""
    communication_bytes: int
    """c: bytes of a gradient while it is reduced."""
    master_bytes: int
    """m: bytes of a master weight."""
    wrapper: Wrapper
    optimizer: OptimizerFacts
    accumulation_steps: int
    offload_optimizer: Where
    gpu_share: float
    """Share of the sub-groups of offloaded optimizer states that stay on the GPU: 1 - `ratio`."""
    pin_optimizer: bool
    optimizer_buffers: int
    offload_param: Where
    pin_param: bool
    param_buffers: int
    param_buffer_elements: int
    max_in_cpu: int
    reduce_bucket: int
    overlap_comm: bool
    sub_group: int
    prefetch_bucket: int
    persistence_threshold: int
    hpz_partition: int
    """ZeRO++: ranks that share a secondary copy of the parameters; 1: there is none."""
    gathered_bytes: int
    """Bytes of a parameter's element on its way: 1 with ZeRO++'s quantized weights."""
    max_live: int
    max_reuse_distance: int
    replaces_linear: bool
    """Stage 3 replaces torch.nn.functional.linear: its function saves no weight for the backward pass, and
    its weight gradient is no view (deepspeed/runtime/zero/linear.py)."""
    gpu_memory: int | None
    """Bytes of the card; None: not known."""

    @property
    def moment_bytes(self) -> int:
        """Bytes per element of an optimizer state."""
        if self.optimizer.state_bytes is not None:
            return self.optimizer.state_bytes
        return self.master_bytes or self.parameter_bytes

    @property
    def state_bytes(self) -> int:
        """k: bytes of all states of one parameter, without the master weight."""
        return self.optimizer.states * self.moment_bytes

    @property
    def temporary_bytes(self) -> int:
        """t: bytes of the step's temporary tensors for one parameter."""
        return self.optimizer.temporaries * self.moment_bytes

    @property
    def has_master(self) -> bool:
        """Whether the optimizer keeps master weights: not in fp32 without ZeRO."""
        return self.wrapper != "none"

    @property
    def optimizer_bytes(self) -> int:
        """K of the ZeRO paper, without states in unified memory."""
        states = 0 if self.optimizer.paged else self.state_bytes
        return states + (self.master_bytes if self.has_master else 0)

    def model_states(self, num_parameters: int, num_trainable_parameters: int) -> ModelStates:
        """The model states of each rank, with their devices."""
        offloaded = self.offload_optimizer != "none"
        return model_states(
            num_parameters,
            zero_stage=self.stage,
            num_gpus=self.zero_ranks,
            num_trainable_parameters=num_trainable_parameters,
            bytes_per_parameter=self.parameter_bytes,
            bytes_per_gradient=self.accumulation_bytes,
            optimizer_bytes_per_parameter=self.optimizer_bytes,
            parameters_at=_PLACES[self.offload_param],
            gradients_at="host" if offloaded and self.stage >= 2 else "GPU",
            optimizer_states_at=_PLACES[self.offload_optimizer],
        )


def settings_of(run: TrainingRun) -> Settings:
    """Read a run's ds_config as DeepSpeed 0.19.8 does. ConfigError if a value is still "auto"."""
    config, zero = run.ds_config, run.ds_config.zero_optimization
    _refuse_auto(config)
    stage = run.zero_stage
    precision = _precision(config)
    e = 4 if precision == "fp32" else 2
    accumulation = config.data_types.grad_accum_dtype
    accumulation_bytes = e if accumulation is None else 4 if accumulation in FP32_NAMES else 2
    optimizer = optimizer_facts(run.optimizer or optimizer_kind(config))
    optimizer_section, param_section = zero.optimizer_offload, zero.param_offload
    low_precision = (config.bf16 is not None and config.bf16.bf16_master_weights_and_grads is True) or (
        config.fp16.fp16_master_weights_and_grads is True
    )
    wrapper: Wrapper = "none" if run.without_deepspeed else _wrapper(config, stage, precision, optimizer)
    return Settings(
        stage=stage,
        zero_ranks=run.zero_ranks,
        tensor_rank=(run.parallelism.tensor - 1 if wrapper == "fp16" else 0)
        if run.rank is None
        else run.rank % run.parallelism.tensor,
        precision=precision,
        parameter_bytes=e,
        accumulation_bytes=accumulation_bytes,
        communication_bytes=_communication_bytes(run, e),
        # Without DeepSpeed moments have the type of the weights (torch/optim/adamw.py, zeros_like).
        master_bytes=e if run.without_deepspeed else 2 if low_precision else 4,
        wrapper=wrapper,
        optimizer=optimizer,
        accumulation_steps=run.gradient_accumulation_steps or _number(config.gradient_accumulation_steps) or 1,
        offload_optimizer=_where(optimizer_section) if stage > 0 else "none",
        gpu_share=1 - optimizer_section.ratio if stage == 3 and _where(optimizer_section) == "cpu" else 0.0,
        pin_optimizer=optimizer_section is not None and optimizer_section.pin_memory,
        optimizer_buffers=optimizer_section.buffer_count if optimizer_section is not None else 0,
        offload_param=_where(param_section) if stage == 3 else "none",
        pin_param=param_section is not None and param_section.pin_memory,
        param_buffers=param_section.buffer_count if param_section is not None else 0,
        param_buffer_elements=param_section.buffer_size if param_section is not None else 0,
        max_in_cpu=param_section.max_in_cpu if param_section is not None else 0,
        reduce_bucket=_known(zero.reduce_bucket_size),
        overlap_comm=stage == 3 if zero.overlap_comm is None else zero.overlap_comm,
        sub_group=_known(zero.sub_group_size),
        prefetch_bucket=_known(zero.stage3_prefetch_bucket_size),
        persistence_threshold=_known(zero.stage3_param_persistence_threshold),
        hpz_partition=min(zero.zero_hpz_partition_size, run.zero_ranks) if stage == 3 else 1,
        gathered_bytes=1 if stage == 3 and zero.zero_quantized_weights else e,
        max_live=_known(zero.stage3_max_live_parameters),
        max_reuse_distance=_known(zero.stage3_max_reuse_distance),
        # AutoTP's layers multiply matrices without it (module_inject/layers.py LinearLayer).
        replaces_linear=stage == 3 and zero.memory_efficient_linear and run.parallelism.tensor == 1,
        gpu_memory=run.cluster.gpu_memory_bytes,
    )


def _communication_bytes(run: TrainingRun, e: int) -> int:
    """Source: `ZeROOptimizer_Stage3.__init__`; among ranks that share sequences it is fp32 by default."""
    if run.parallelism.sequence > 1:
        return 4 if run.ds_config.seq_parallel_communication_data_type in FP32_NAMES else 2
    return 4 if run.ds_config.communication_data_type == "fp32" else e


def _precision(config: DeepSpeedConfig) -> Precision:
    if config.bf16 is not None and config.bf16.enabled is True:
        return "bf16"
    return "fp16" if config.fp16.enabled is True else "fp32"


def _wrapper(config: DeepSpeedConfig, stage: int, precision: str, optimizer: OptimizerFacts) -> Wrapper:
    """Source: `DeepSpeedEngine._do_optimizer_sanity_check` and `_configure_fp16_optimizer`."""
    if stage == 3:
        return "zero_3"
    if stage in (1, 2):
        return "bf16" if bf16_optimizer(ConfigView(config)) else "zero_1_2"
    if precision == "fp32":
        return "none"
    return "fp16" if optimizer.kind == "fused_adam" else "fp16_unfused"


def _where(section: Any) -> Where:
    if section is None or section.device == "none":
        return "none"
    return "nvme" if section.device == "nvme" else "cpu"


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _known(value: object) -> int:
    assert isinstance(value, int), value  # _refuse_auto has looked
    return value


_RESOLVED_KEYS = (
    "zero_optimization.stage",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "bf16.enabled",
    "fp16.enabled",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
)
"""Keys on which memory depends, and that may be "auto" before the config is resolved."""


def _refuse_auto(config: DeepSpeedConfig) -> None:
    """Raises ConfigError with the first memory setting that is still "auto"."""
    for path in _RESOLVED_KEYS:
        value: Any = config
        for key in path.split("."):
            value = getattr(value, key, None)
        if value == "auto":
            raise ConfigError(
                'is still "auto", whose value depends on the Trainer or accelerate',
                where=path,
                hint="Resolve the config first, or give a number",
            )
