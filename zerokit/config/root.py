"""The whole of a ds_config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator

from zerokit.config.activation_checkpointing import ActivationCheckpointing
from zerokit.config.aio import Aio
from zerokit.config.base import NOT_NULL, Int, Opaque, OrAuto, Positive, Section
from zerokit.config.optimizer import Optimizer, Scheduler
from zerokit.config.precision import BF16, FP16, DataTypes, TorchAutocast
from zerokit.config.zero import ZeroOptimization


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


CommunicationDtype = Annotated[Literal["fp16", "bf16", "fp32"], BeforeValidator(_lower)]


SectionOrSwitch = Annotated[
    Annotated[dict[str, Any], Tag("(section)")] | Annotated[bool, Tag("(switch)")],
    Discriminator(lambda value: "(switch)" if isinstance(value, bool) else "(section)"),
]


class DeepSpeedConfig(Section):
    """A ds_config as DeepSpeed 0.19.8 reads it, with DeepSpeed's own defaults.

    Only what one section can tell by itself is checked here; what spans sections is in ``check.py``.
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

    managed_gradient_accumulation: bool = True
    """Let DeepSpeed decide which call of `step()` updates; false leaves it to the script. Default true."""

    gradient_clipping: OrAuto[Annotated[float, Field(ge=0)]] = 1.0
    """Largest global norm of the gradients; 0 switches clipping off. Default 1.0 since DeepSpeed 0.19.3,
    0 before."""

    bf16: BF16 | None = Field(default_factory=BF16, validation_alias=AliasChoices("bf16", "bfloat16"))
    """Training in bfloat16."""

    fp16: FP16 = Field(default_factory=FP16)
    """Training in float16."""

    torch_autocast: TorchAutocast = Field(default_factory=TorchAutocast)
    """`torch.autocast` instead of `bf16` or `fp16`."""

    data_types: DataTypes = Field(default_factory=DataTypes)
    """Number formats of single tensors."""

    zero_optimization: ZeroOptimization = Field(default_factory=ZeroOptimization)
    """What ZeRO divides among the ranks and keeps outside the GPU."""

    optimizer: Annotated[Optimizer | None, NOT_NULL] = None
    """The optimizer that DeepSpeed builds. Default none: the script passes one."""

    scheduler: Annotated[Scheduler | None, NOT_NULL] = None
    """The learning-rate schedule that DeepSpeed builds. Default none."""

    zero_allow_untested_optimizer: bool = False
    """Allow optimizers under ZeRO that DeepSpeed does not vouch for. Stages 1, 2 and 3. Default false."""

    zero_force_ds_cpu_optimizer: bool = True
    """Refuse a script's own optimizer under optimizer offload unless it is DeepSpeed's for the CPU.
    Default true."""

    activation_checkpointing: ActivationCheckpointing = Field(default_factory=ActivationCheckpointing)
    """Options of `deepspeed.checkpointing`."""

    aio: Aio | None = Field(default_factory=Aio)
    """Asynchronous I/O of NVMe offload."""

    communication_data_type: CommunicationDtype | None = None
    """Number format in which gradients are reduced. Default none: that of the model."""

    seq_parallel_communication_data_type: CommunicationDtype | None = "fp32"
    """Number format in which gradients are reduced under sequence parallelism. Default fp32."""

    prescale_gradients: bool = False
    """Divide gradients by the number of ranks before they are summed. Stages 0 and 1. Default false."""

    gradient_predivide_factor: float = 1.0
    """Divide gradients by this before they are summed, and by the rest after. Stages 0 and 1. Default 1."""

    gradient_allreduce_op: Annotated[Literal["mean", "sum"], BeforeValidator(_lower)] = "mean"
    """How gradients of the ranks are joined. Stages 0, 1 and 2; stage 3 allows mean only. Default mean."""

    sequence_parallel_size: Positive | None = None
    """Ranks that share one sequence (Ulysses); divides the data-parallel ranks. Default none, 1."""

    data_parallel_size: Positive | None = None
    """Data-parallel ranks, if given together with `sequence_parallel_size`. Default none: computed."""

    use_data_before_expert_parallelism: bool = False
    """Number data-parallel ranks before expert-parallel ones. Mixture of experts. Default false."""

    dataloader_drop_last: bool = False
    """Drop the last incomplete batch of the data loader that DeepSpeed builds. Default false."""

    steps_per_print: OrAuto[Positive] | None = None
    """Print progress after this many steps. Default none: never. Overwritten by accelerate and the
    Trainer."""

    wall_clock_breakdown: bool = False
    """Time forward, backward and step. Synchronises, so it slows training. Default false."""

    memory_breakdown: bool = False
    """Print memory around forward, backward and step. Default false."""

    dump_state: bool = False
    """Print the engine's state once it is built. Default false."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] | None = None
    """Level of DeepSpeed's logger. Default none: unchanged."""

    disable_python_gc: bool = False
    """Switch Python's cyclic garbage collector off while training. Default false."""

    disable_allgather: bool = False
    """No longer read by DeepSpeed. Default false."""

    vocabulary_size: Int | None = None
    """Used only for a warning when it is no multiple of 8. Default none."""

    allgather_size: Positive = 500_000_000
    """Elements gathered at once, if `zero_optimization` is the oldest form `true`; else not read. Default
    5e8."""

    checkpoint: Opaque = None
    """How checkpoints are written and read: `tag_validation`, `load_universal`, `parallel_write`, ..."""

    datastates_ckpt: SectionOrSwitch | None = None
    """The asynchronous checkpoint engine DataStates."""

    compile: Opaque = None
    """DeepCompile."""

    tensor_parallel: Opaque = None
    """Automatic tensor parallelism (AutoTP)."""

    expert_parallel: dict[str, Any] | None = None
    """Automatic expert parallelism (AutoEP)."""

    pipeline: Opaque = None
    """Pipeline parallelism; acts on models that are a `PipelineModule`."""

    hybrid_engine: Opaque = None
    """One engine for training and generation, as RLHF needs."""

    data_efficiency: Opaque = None
    """Curriculum learning, dynamic batches and random layerwise token dropping."""

    weight_quantization: Opaque = None
    """Quantised weights for inference."""

    flops_profiler: Opaque = None
    """Counts and times operations of each module."""

    comms_logger: Opaque = None
    """Logs collectives."""

    timers: Opaque = None
    """The throughput timer."""

    tensorboard: Opaque = None
    """Writes metrics for TensorBoard."""

    wandb: Opaque = None
    """Sends metrics to Weights & Biases."""

    comet: Opaque = None
    """Sends metrics to Comet."""

    csv_monitor: Opaque = None
    """Writes metrics as CSV."""

    autotuning: Opaque = None
    """The search of `deepspeed --autotuning`."""

    @field_validator("zero_optimization", mode="before")
    @classmethod
    def _stage_of_switch(cls, value: Any) -> Any:
        # The oldest form of the section: `true` was stage 1.
        return {"stage": int(value)} if isinstance(value, bool) else value
