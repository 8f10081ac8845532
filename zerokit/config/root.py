"""The whole of a ds_config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator

from zerokit.config.base import (
    LOWER,
    NOT_NULL,
    Int,
    NonNegativeFloat,
    NoText,
    OrAuto,
    Positive,
    PositiveFloat,
    Section,
    Sub,
    two_names,
)
from zerokit.config.conditions import (
    AIO,
    BEFORE_THE_SUM,
    COMMUNICATION,
    NO_WRITER,
    NOT_READ,
    OLD_SWITCH,
    OWN_LOADER,
    PIPELINE_MODULE,
    SEQUENCE_PARALLEL,
    Acts,
)
from zerokit.config.optimizer import Optimizer
from zerokit.config.scheduler import Scheduler
from zerokit.config.sections import (
    BF16,
    FP16,
    ActivationCheckpointing,
    Aio,
    Autotuning,
    Checkpoint,
    Comet,
    CommsLogger,
    Compile,
    CsvMonitor,
    DataEfficiency,
    DataStates,
    DataTypes,
    ExpertParallel,
    FlopsProfiler,
    HybridEngine,
    Pipeline,
    TensorBoard,
    TensorParallel,
    Timers,
    TorchAutocast,
    Wandb,
    WeightQuantization,
)
from zerokit.config.zero import ZeroOptimization

CommunicationDtype = Annotated[Literal["fp16", "bf16", "fp32"], LOWER]

DataStatesOrSwitch = Annotated[
    Annotated[Sub[DataStates], Tag("(section)")] | Annotated[bool, Tag("(switch)")],
    Discriminator(lambda value: "(switch)" if isinstance(value, bool) else "(section)"),
]


class DeepSpeedConfig(Section):
    """A ds_config as DeepSpeed 0.19.8 reads it, with DeepSpeed's own defaults.

    Each section is checked alone here; `zerokit.lint` checks what spans sections.
    """

    model_config = ConfigDict(title="DeepSpeed configuration")

    train_batch_size: OrAuto[Positive] | None = None
    """Samples per optimizer step over all GPUs: micro batch size x accumulation steps x data-parallel ranks.
    Default none: computed. Leave it out, so that a config holds for any number of GPUs."""

    train_micro_batch_size_per_gpu: OrAuto[Positive] | None = None
    """Samples per forward pass on one GPU. Default none: computed from `train_batch_size`; one of both is
    needed."""

    gradient_accumulation_steps: OrAuto[Positive] | None = None
    """Forward passes per optimizer step. Default none: computed, 1 if only one of the batch sizes is
    given."""

    managed_gradient_accumulation: Annotated[bool, Acts(since="0.19.4")] = True
    """Let DeepSpeed decide which call of `step()` updates; false leaves it to the script. Default true."""

    gradient_clipping: OrAuto[NonNegativeFloat] = 1.0
    """Largest global norm of the gradients; 0 switches clipping off. Default 1.0 since DeepSpeed 0.19.3, 0
    before."""

    bf16: Sub[BF16] | None = Field(
        default_factory=BF16.defaults, validation_alias=two_names("bf16", "bfloat16")
    )
    """Training in bfloat16."""

    fp16: Sub[FP16] = Field(default_factory=FP16.defaults)
    """Training in float16."""

    torch_autocast: Annotated[Sub[TorchAutocast], Acts(since="0.17.2")] = Field(
        default_factory=TorchAutocast.defaults
    )
    """`torch.autocast` instead of `bf16` or `fp16`."""

    data_types: Sub[DataTypes] = Field(default_factory=DataTypes.defaults)
    """Number formats of single tensors."""

    zero_optimization: Sub[ZeroOptimization] = Field(default_factory=ZeroOptimization.defaults)
    """What ZeRO divides among the ranks and keeps outside the GPU."""

    optimizer: Annotated[Sub[Optimizer] | None, NOT_NULL] = None
    """The optimizer that DeepSpeed builds. Default none: the script passes one."""

    scheduler: Annotated[Sub[Scheduler] | None, NOT_NULL] = None
    """The learning-rate schedule that DeepSpeed builds. Default none."""

    zero_allow_untested_optimizer: Annotated[bool, Acts(1, 2, 3)] = False
    """Allow optimizers under ZeRO that DeepSpeed does not vouch for. Default false."""

    zero_force_ds_cpu_optimizer: bool = True
    """Refuse a script's own optimizer under optimizer offload unless it is DeepSpeed's for the CPU. Default
    true."""

    activation_checkpointing: Sub[ActivationCheckpointing] = Field(
        default_factory=ActivationCheckpointing.defaults
    )
    """Options of `deepspeed.checkpointing`."""

    aio: Annotated[Sub[Aio] | None, Acts(when=AIO)] = Field(default_factory=Aio.defaults)
    """Asynchronous I/O of NVMe offload."""

    communication_data_type: Annotated[CommunicationDtype | None, Acts(when=COMMUNICATION)] = None
    """Number format in which gradients are reduced. Default none: that of the model."""

    seq_parallel_communication_data_type: Annotated[CommunicationDtype | None, Acts(since="0.16.5")] = "fp32"
    """Number format in which gradients are reduced under sequence parallelism. Default fp32."""

    prescale_gradients: Annotated[bool, Acts(when=BEFORE_THE_SUM)] = False
    """Divide gradients by the number of ranks before they are summed. Default false."""

    gradient_predivide_factor: Annotated[PositiveFloat, Acts(when=BEFORE_THE_SUM)] = 1.0
    """Divide gradients by this before they are summed, and by the rest after. Default 1."""

    gradient_allreduce_op: Annotated[Literal["mean", "sum"], LOWER, Acts(since="0.19.6")] = "mean"
    """How gradients of the ranks are joined. Stages 0, 1 and 2; stage 3 allows mean only. Default mean."""

    sequence_parallel_size: Annotated[Positive | None, Acts(since="0.15.0")] = None
    """Ranks that share one sequence (Ulysses); divides the data-parallel ranks. Default none, 1."""

    data_parallel_size: Annotated[Positive | None, Acts(when=SEQUENCE_PARALLEL, since="0.15.0")] = None
    """Data-parallel ranks, if given together with `sequence_parallel_size`. Default none: computed."""

    use_data_before_expert_parallelism: bool = False
    """Number data-parallel ranks before expert-parallel ones. Mixture of experts. Default false."""

    dataloader_drop_last: Annotated[bool, Acts(when=OWN_LOADER)] = False
    """Drop the last incomplete batch of the data loader that DeepSpeed builds. Default false."""

    steps_per_print: OrAuto[Positive] | None = None
    """Print progress after this many steps. Default none: never. Overwritten by accelerate and the
    Trainer."""

    wall_clock_breakdown: NoText = False
    """Time forward, backward and step. Synchronises, so it slows training. Default false."""

    memory_breakdown: bool = False
    """Print memory around forward, backward and step. Default false."""

    dump_state: bool = False
    """Print the engine's state once it is built. Default false."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"] | None, Acts(since="0.19.3")
    ] = None
    """Level of DeepSpeed's logger. Default none: unchanged."""

    disable_python_gc: Annotated[bool, Acts(since="0.19.8")] = False
    """Switch Python's cyclic garbage collector off while training. Default false."""

    disable_allgather: Annotated[bool, Acts(when=NOT_READ)] = False
    """Gather updated parameters by broadcasts. Default false."""

    vocabulary_size: Int | None = None
    """Used only for a warning when it is no multiple of 8. Default none."""

    allgather_size: Annotated[Positive, Acts(when=OLD_SWITCH)] = 500_000_000
    """Elements gathered at once, for the oldest form of `zero_optimization`, `true`. Default 5e8."""

    checkpoint: Sub[Checkpoint] = Field(default_factory=Checkpoint.defaults)
    """How checkpoints are written and read."""

    datastates_ckpt: Annotated[
        DataStatesOrSwitch | None,
        NOT_NULL,
        Acts(when=NO_WRITER, since="0.18.1"),
    ] = None
    """The asynchronous checkpoint engine DataStates. Default none, off."""

    compile: Annotated[Sub[Compile], Acts(since="0.16.6")] = Field(default_factory=Compile.defaults)
    """DeepCompile."""

    tensor_parallel: Annotated[Sub[TensorParallel], Acts(since="0.16.4")] = Field(
        default_factory=TensorParallel.defaults
    )
    """Automatic tensor parallelism (AutoTP)."""

    expert_parallel: Annotated[Sub[ExpertParallel] | None, Acts(since="0.19.2")] = Field(
        default_factory=ExpertParallel.defaults
    )
    """Automatic expert parallelism (AutoEP)."""

    pipeline: Annotated[Sub[Pipeline], Acts(0, 1, when=PIPELINE_MODULE)] = Field(
        default_factory=Pipeline.defaults
    )
    """Pipeline parallelism."""

    hybrid_engine: Sub[HybridEngine] = Field(default_factory=HybridEngine.defaults)
    """One engine for training and generation."""

    data_efficiency: Sub[DataEfficiency] = Field(default_factory=DataEfficiency.defaults)
    """Curriculum learning, batches by tokens, and random layerwise token dropping."""

    weight_quantization: Annotated[Sub[WeightQuantization] | None, NOT_NULL] = None
    """Quantised weights for inference. Default none."""

    flops_profiler: Sub[FlopsProfiler] = Field(default_factory=FlopsProfiler.defaults)
    """Counts and times operations of each module."""

    comms_logger: Sub[CommsLogger] = Field(default_factory=CommsLogger.defaults)
    """Logs collectives."""

    timers: Annotated[Sub[Timers], Acts(since="0.14.3")] = Field(default_factory=Timers.defaults)
    """The throughput timer."""

    tensorboard: Sub[TensorBoard] = Field(default_factory=TensorBoard.defaults)
    """Writes metrics for TensorBoard."""

    wandb: Sub[Wandb] = Field(default_factory=Wandb.defaults)
    """Sends metrics to Weights & Biases."""

    comet: Annotated[Sub[Comet], Acts(since="0.14.3")] = Field(default_factory=Comet.defaults)
    """Sends metrics to Comet."""

    csv_monitor: Sub[CsvMonitor] = Field(default_factory=CsvMonitor.defaults)
    """Writes metrics as CSV."""

    autotuning: Sub[Autotuning] = Field(default_factory=Autotuning.defaults)
    """The search of `deepspeed --autotuning`."""

    @field_validator("zero_optimization", mode="before")
    @classmethod
    def _stage_of_switch(cls, value: Any) -> Any:
        # The oldest form of the section: `true` was stage 1.
        return {"stage": int(value)} if isinstance(value, bool) else value
