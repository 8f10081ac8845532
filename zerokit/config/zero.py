"""The section `zero_optimization`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from zerokit.config.base import AUTO, Int, NonNegative, OrAuto, Positive, Section, whole
from zerokit.config.offload import OffloadOptimizer, OffloadParam
from zerokit.config.zenflow import ZenFlow


def _stage(value: object) -> object:
    if isinstance(value, bool):  # true equals 1, so a Literal would take it
        raise PydanticCustomError("literal_error", "a stage is a number")
    return whole(value)


Stage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_stage)]

LEAF_MODULE_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)
"""What DeepSpeed takes for leaf modules by itself (`deepspeed/runtime/zero/leaf_module_config.py`)."""

STAGE_3_KEYS = frozenset(
    {
        "enable_sanity_checks",
        "leaf_module",
        "log_trace_cache_warnings",
        "memory_efficient_linear",
        "override_module_apply",
        "pipeline_loading_checkpoint",
        "save_muon_momentum_buffer_in_memory",
        "stage3_allgather_sequential",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
        "zero_hpz_partition_size",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_weights",
    }
)
"""Keys that DeepSpeed reads in stage 3 only and passes over in silence below; `offload_param` besides."""


def _names_as_list(value: object) -> object:
    return [value] if isinstance(value, str) and value != AUTO else value


Names = Annotated[list[str], BeforeValidator(_names_as_list)]


class LeafModule(Section):
    """Modules whose parameters stage 3 gathers as one, such as mixture-of-experts blocks."""

    classes: Names = Field(default_factory=lambda: list(LEAF_MODULE_CLASSES))
    """Full class names. Default: the blocks of Mixtral, Qwen2-MoE and Qwen3-MoE."""

    names: Names = Field(default_factory=list)
    """Full names of modules. Default none."""

    name_suffixes: Names = Field(default_factory=list)
    """Ends of names of modules. Default none."""


def _both_names(prefixed: str, bare: str) -> Any:
    return AliasChoices(prefixed, bare)


class ZeroOptimization(Section):
    """ZeRO: what is divided among the ranks, and what is kept outside the GPU.

    Keys of bucket sizes and thresholds count elements, not bytes.
    """

    stage: OrAuto[Stage] = 0
    """What is divided among the ranks. 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters.
    Default 0. "auto" becomes what accelerate was told, else 2."""

    offload_optimizer: OffloadOptimizer | None = None
    """Keep optimizer states outside the GPU. Stages 1, 2 and 3. Default none."""

    offload_param: OffloadParam | None = None
    """Keep parameters outside the GPU. Stage 3. Default none."""

    overlap_comm: bool | None = None
    """Reduce gradients while the backward pass goes on. Stages 1, 2 and 3. Default none: true in stage 3
    only."""

    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they are made, against fragmentation. Stages 1, 2 and 3. Default
    true."""

    reduce_scatter: bool = True
    """Average gradients by reduce-scatter rather than all-reduce. Stages 1, 2 and 3. Default true."""

    reduce_bucket_size: OrAuto[Positive] = 500_000_000
    """Elements reduced at once; the buffer costs memory. Stages 1, 2 and 3. Default 5e8. "auto": hidden
    size squared."""

    allgather_bucket_size: NonNegative = 500_000_000
    """Elements gathered at once after the step. Stages 1 and 2. Default 5e8."""

    allgather_partitions: bool = True
    """No longer read by DeepSpeed, in any stage. Default true."""

    use_multi_rank_bucket_allreduce: bool = True
    """Join the ranks' buckets into one all-reduce; pays off for small models on many GPUs. Stages 1 and
    2. Default true."""

    compute_grad_norm: bool = True
    """Keep the global norm of gradients. Stages 1 and 2; false needs `gradient_clipping` 0. Default true."""

    round_robin_gradients: bool = False
    """Spread the copying of gradients to the CPU over the ranks. Stages 1 and 2 with offload. Default
    false."""

    ignore_unused_parameters: bool = True
    """Go on when a parameter took no part in the forward pass. Stages 1 and 2. Default true."""

    parameter_alignment: bool = False
    """Pad flat buffers so that each parameter starts at a multiple of 16 bytes. Stages 1 and 2. Default
    false."""

    load_from_fp32_weights: bool = True
    """Take master weights from a checkpoint's fp32 copy rather than from its 16-bit one. Stages 1, 2 and
    3. Default true."""

    elastic_checkpoint: bool = False
    """The older way to load a checkpoint on another number of GPUs. Stages 1 and 2. Default false."""

    legacy_stage1: bool = False
    """The first implementation of stage 1; deprecated. Stage 1. Default false."""

    sub_group_size: NonNegative = 1_000_000_000
    """Elements that the optimizer updates at once; bounds its buffers under offload. Stage 3. Default 1e9."""

    stage3_prefetch_bucket_size: OrAuto[NonNegative] = Field(
        default=50_000_000,
        validation_alias=_both_names("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    )
    """Elements gathered ahead of use. Stage 3. Default 5e7. "auto": 0.9 times hidden size squared."""

    stage3_param_persistence_threshold: OrAuto[NonNegative] = Field(
        default=100_000,
        validation_alias=_both_names("stage3_param_persistence_threshold", "param_persistence_threshold"),
    )
    """Parameters of fewer elements stay whole on each GPU. Stage 3. Default 1e5. "auto": 10 times hidden
    size."""

    stage3_model_persistence_threshold: NonNegative = Field(
        default=2**63 - 1,
        validation_alias=_both_names("stage3_model_persistence_threshold", "model_persistence_threshold"),
    )
    """Most elements that may stay whole in total. Stage 3. Default 2^63 - 1, no bound."""

    stage3_max_live_parameters: NonNegative = Field(
        default=1_000_000_000,
        validation_alias=_both_names("stage3_max_live_parameters", "max_live_parameters"),
    )
    """Most elements held gathered on a GPU before some are let go. Stage 3. Default 1e9."""

    stage3_max_reuse_distance: NonNegative = Field(
        default=1_000_000_000, validation_alias=_both_names("stage3_max_reuse_distance", "max_reuse_distance")
    )
    """Keep a parameter gathered if it is used again within this many elements. Stage 3. Default 1e9."""

    stage3_gather_16bit_weights_on_model_save: OrAuto[bool] = Field(
        default=False,
        validation_alias=_both_names(
            "stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save"
        ),
    )
    """Gather the whole 16-bit model when it is saved; without it the saved model holds no weights. Stage
    3. Default false."""

    stage3_module_granularity_threshold: Int = Field(
        default=0,
        validation_alias=_both_names("stage3_module_granularity_threshold", "module_granularity_threshold"),
    )
    """Modules of fewer parameters per submodule are gathered as one. Stage 3. Default 0, off."""

    stage3_use_all_reduce_for_fetch_params: bool = Field(
        default=False,
        validation_alias=_both_names(
            "stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params"
        ),
    )
    """Gather parameters by all-reduce, which saves copies on the host. Stage 3. Default false."""

    stage3_allgather_sequential: bool = Field(
        default=False, validation_alias=_both_names("stage3_allgather_sequential", "allgather_sequential")
    )
    """Gather parameters one by one without a bucket: less memory, more messages. Stage 3. Default false."""

    zero_hpz_partition_size: NonNegative = 1
    """Ranks that share a second copy of the parameters, usually those of a node (ZeRO++ hpZ). Stage 3.
    Default 1, off."""

    zero_quantized_weights: bool = False
    """Gather parameters in 8 bits (ZeRO++ qwZ). Stage 3. Default false."""

    zero_quantized_nontrainable_weights: bool = False
    """Store frozen parameters in 8 bits and gather them so. Stage 3. Default false."""

    zero_quantized_gradients: bool = False
    """Reduce gradients in 4 bits (ZeRO++ qgZ). Stage 3. Default false."""

    memory_efficient_linear: bool = True
    """Replace `torch.nn.functional.linear` by one that keeps no gathered weight. Stage 3. Default true."""

    override_module_apply: bool = True
    """Gather parameters inside `Module.apply` while a model is built. Stage 3. Default true."""

    pipeline_loading_checkpoint: bool = False
    """Load a checkpoint layer by layer. Stage 3. Default false."""

    log_trace_cache_warnings: bool = False
    """Warn when the order in which modules run changes. Stage 3. Default false."""

    enable_sanity_checks: bool = False
    """Check DeepSpeed's own bookkeeping; slow. Stage 3. Default false."""

    save_muon_momentum_buffer_in_memory: bool = False
    """Keep Muon's momentum in memory rather than on NVMe. Stage 3 with `nvme`. Default false."""

    leaf_module: LeafModule | None = Field(default_factory=LeafModule)
    """Modules whose parameters are gathered as one. Stage 3."""

    zenflow: ZenFlow | None = None
    """Apply important gradients at once and the rest later. Stages 1, 2 and 3. Default none."""

    cpu_offload: bool | None = Field(default=None, json_schema_extra={"deprecated": True})
    """Deprecated: write `offload_optimizer` with `device` `cpu`. Default none."""

    cpu_offload_param: bool | None = Field(default=None, json_schema_extra={"deprecated": True})
    """Deprecated: write `offload_param` with `device` `cpu`. Default none."""

    cpu_offload_use_pin_memory: bool | None = Field(default=None, json_schema_extra={"deprecated": True})
    """Deprecated and no longer read: write `pin_memory` in the offload sections. Default none."""

    stage3_gather_fp16_weights_on_model_save: bool = Field(
        default=False, json_schema_extra={"deprecated": True}
    )
    """Deprecated: write `stage3_gather_16bit_weights_on_model_save`. Default false."""
