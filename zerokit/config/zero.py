"""The section `zero_optimization`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from zerokit.config.base import (
    DEPRECATED,
    Int,
    NonNegative,
    OrAuto,
    Positive,
    Reader,
    Section,
    Sub,
    two_names,
    whole,
)
from zerokit.config.conditions import (
    CONTIGUOUS,
    MUON,
    NOT_BY_DEFAULT,
    NOT_READ,
    OPTIMIZER_OFFLOADED,
    ZENFLOW,
    Acts,
)
from zerokit.config.sections import LeafModule, OffloadOptimizer, OffloadParam, ZenFlow


def _stage(value: object) -> object:
    if isinstance(value, bool):  # true equals 1, so a Literal would take it
        raise PydanticCustomError("literal_error", "a stage is a number")
    return whole(value)


Stage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_stage)]

_ON_CPU = {"device": "cpu"}


class ZeroOptimization(Section):
    """ZeRO: what is divided among the ranks, and what is kept outside the GPU.

    Keys of bucket sizes and thresholds count elements, not bytes.
    """

    read_by: ClassVar[Reader] = "model"

    stage: OrAuto[Stage] = 0
    """What is divided among the ranks. 0: nothing; 1: optimizer states; 2: and gradients; 3: and parameters.
    Default 0. "auto" becomes accelerate's own setting, else 2."""

    offload_optimizer: Annotated[Sub[OffloadOptimizer] | None, Acts(1, 2, 3)] = None
    """Keep optimizer states outside the GPU. Default none."""

    offload_param: Annotated[Sub[OffloadParam] | None, Acts(3)] = None
    """Keep parameters outside the GPU. Default none."""

    overlap_comm: Annotated[bool | None, Acts(1, 2, 3)] = None
    """Reduce gradients while the backward pass goes on. Default: true in stage 3, else false."""

    contiguous_gradients: Annotated[bool, Acts(1, 2, 3, when=CONTIGUOUS)] = True
    """Copy gradients into one buffer as they are made, against fragmentation. Offload in stages 1 and 2 does
    so in any case. Default true."""

    reduce_scatter: Annotated[bool, Acts(1, 2, 3)] = True
    """Average gradients by reduce-scatter rather than all-reduce. Default true."""

    reduce_bucket_size: Annotated[OrAuto[Positive], Acts(1, 2, 3)] = 500_000_000
    """Elements reduced at once; the buffer costs memory. Default 5e8. "auto": hidden size squared."""

    allgather_bucket_size: Annotated[NonNegative, Acts(1, 2, when=ZENFLOW)] = 500_000_000
    """Elements gathered at once after the step. Default 5e8."""

    allgather_partitions: Annotated[bool, Acts(when=NOT_READ)] = True
    """Gather updated parameters by all-gather, as is done in any case. Default true."""

    use_multi_rank_bucket_allreduce: Annotated[bool, Acts(1, 2)] = True
    """Join the ranks' buckets into one all-reduce; pays off for small models on many GPUs. Default true."""

    compute_grad_norm: Annotated[bool, Acts(1, 2, when=NOT_BY_DEFAULT, since="0.19.7")] = True
    """Keep the global norm of gradients. It can be false with `gradient_clipping` 0 only. Default true."""

    round_robin_gradients: Annotated[bool, Acts(1, 2)] = False
    """Order parameters so that all ranks copy gradients to their hosts at once; of use with offload only.
    Default false."""

    ignore_unused_parameters: Annotated[bool, Acts(1, 2, when=OPTIMIZER_OFFLOADED)] = True
    """Go on when a parameter took no part in the forward pass. Default true."""

    parameter_alignment: Annotated[bool, Acts(1, 2, since="0.19.7")] = False
    """Pad flat buffers so that each parameter starts at a multiple of 16 bytes. Default false."""

    load_from_fp32_weights: Annotated[bool, Acts(1, 2, 3)] = True
    """Take master weights from a checkpoint's fp32 copy rather than from its 16-bit one. Default true."""

    elastic_checkpoint: Annotated[bool, Acts(1, 2)] = False
    """The older way to load a checkpoint on another number of GPUs. Default false."""

    legacy_stage1: Annotated[bool, Acts(1)] = False
    """The first implementation of stage 1; deprecated. Default false."""

    sub_group_size: Annotated[NonNegative, Acts(3)] = 1_000_000_000
    """Elements that the optimizer updates at once; bounds its buffers under offload. Default 1e9."""

    stage3_prefetch_bucket_size: Annotated[OrAuto[NonNegative], Acts(3)] = Field(
        default=50_000_000,
        validation_alias=two_names("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    )
    """Elements gathered ahead of use. Default 5e7. "auto": 0.9 times hidden size squared."""

    stage3_param_persistence_threshold: Annotated[OrAuto[NonNegative], Acts(3)] = Field(
        default=100_000,
        validation_alias=two_names("stage3_param_persistence_threshold", "param_persistence_threshold"),
    )
    """Parameters of fewer elements stay whole on each GPU. Default 1e5. "auto": 10 times hidden size."""

    stage3_model_persistence_threshold: Annotated[NonNegative, Acts(3)] = Field(
        default=2**63 - 1,
        validation_alias=two_names("stage3_model_persistence_threshold", "model_persistence_threshold"),
    )
    """Most elements that may stay whole in total. Default 2^63 - 1, no bound."""

    stage3_max_live_parameters: Annotated[NonNegative, Acts(3)] = Field(
        default=1_000_000_000,
        validation_alias=two_names("stage3_max_live_parameters", "max_live_parameters"),
    )
    """Most elements held gathered on a GPU before some are let go. Default 1e9."""

    stage3_max_reuse_distance: Annotated[NonNegative, Acts(3)] = Field(
        default=1_000_000_000, validation_alias=two_names("stage3_max_reuse_distance", "max_reuse_distance")
    )
    """Keep a parameter gathered if it is used again within this many elements. Default 1e9."""

    stage3_gather_16bit_weights_on_model_save: Annotated[OrAuto[bool], Acts(3)] = Field(
        default=False,
        validation_alias=two_names(
            "stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save"
        ),
    )
    """Gather the whole 16-bit model when it is saved; without it the saved model holds no weights. Default
    false."""

    stage3_module_granularity_threshold: Annotated[Int, Acts(3, since="0.16.0")] = Field(
        default=0,
        validation_alias=two_names("stage3_module_granularity_threshold", "module_granularity_threshold"),
    )
    """Modules of fewer parameters per submodule are gathered as one. Default 0, off."""

    stage3_use_all_reduce_for_fetch_params: Annotated[bool, Acts(3, since="0.14.3")] = Field(
        default=False,
        validation_alias=two_names(
            "stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params"
        ),
    )
    """Gather parameters by all-reduce, which saves copies on the host. Default false."""

    stage3_allgather_sequential: Annotated[bool, Acts(3, since="0.18.5")] = Field(
        default=False, validation_alias=two_names("stage3_allgather_sequential", "allgather_sequential")
    )
    """Gather parameters one by one without a bucket: less memory, more messages. Default false."""

    zero_hpz_partition_size: Annotated[NonNegative, Acts(3)] = 1
    """Ranks that share a second copy of the parameters, usually those of a node (ZeRO++ hpZ). Default 1,
    off."""

    zero_quantized_weights: Annotated[bool, Acts(3)] = False
    """Gather parameters in 8 bits (ZeRO++ qwZ). Default false."""

    zero_quantized_nontrainable_weights: Annotated[bool, Acts(3)] = False
    """Store frozen parameters in 8 bits and gather them so. Default false."""

    zero_quantized_gradients: Annotated[bool, Acts(3)] = False
    """Reduce gradients in 4 bits (ZeRO++ qgZ). Default false."""

    memory_efficient_linear: Annotated[bool, Acts(3)] = True
    """Replace `torch.nn.functional.linear` by one that keeps no gathered weight. Default true."""

    override_module_apply: Annotated[bool, Acts(3)] = True
    """Gather parameters inside `Module.apply` while a model is built. Default true."""

    pipeline_loading_checkpoint: Annotated[bool, Acts(3)] = False
    """Load a checkpoint layer by layer. Default false."""

    log_trace_cache_warnings: Annotated[bool, Acts(3, since="0.16.4")] = False
    """Warn when the order in which modules run changes. Default false."""

    enable_sanity_checks: Annotated[bool, Acts(3, since="0.17.6")] = False
    """Check DeepSpeed's own bookkeeping; slow. Default false."""

    save_muon_momentum_buffer_in_memory: Annotated[bool, Acts(3, when=MUON, since="0.18.9")] = False
    """Keep Muon's momentum in memory rather than on NVMe. Default false."""

    leaf_module: Annotated[Sub[LeafModule] | None, Acts(3, since="0.18.0")] = Field(
        default_factory=LeafModule.defaults
    )
    """Modules whose parameters are gathered as one."""

    zenflow: Annotated[Sub[ZenFlow] | None, Acts(1, 2, 3, since="0.17.5")] = None
    """Apply important gradients at once and the rest later. Default none."""

    cpu_offload: Annotated[bool | None, Acts(1, 2, 3)] = Field(default=None, json_schema_extra=DEPRECATED)
    """Deprecated: write `offload_optimizer` with `device` `cpu`. Default none."""

    cpu_offload_param: Annotated[bool | None, Acts(3)] = Field(default=None, json_schema_extra=DEPRECATED)
    """Deprecated: write `offload_param` with `device` `cpu`. Default none."""

    cpu_offload_use_pin_memory: Annotated[
        bool | None,
        Acts(when=NOT_READ),
    ] = Field(default=None, json_schema_extra=DEPRECATED)
    """Deprecated: write `pin_memory` in the offload sections. Default none."""

    stage3_gather_fp16_weights_on_model_save: Annotated[bool, Acts(3)] = Field(
        default=False, json_schema_extra=DEPRECATED
    )
    """Deprecated: write `stage3_gather_16bit_weights_on_model_save`. Default false."""

    @property
    def optimizer_offload(self) -> OffloadOptimizer | None:
        """`offload_optimizer` as DeepSpeed reads it: the deprecated `cpu_offload` is its device `cpu`."""
        return OffloadOptimizer.model_validate(_ON_CPU) if self.cpu_offload else self.offload_optimizer

    @property
    def param_offload(self) -> OffloadParam | None:
        """`offload_param`, in the same way."""
        return OffloadParam.model_validate(_ON_CPU) if self.cpu_offload_param else self.offload_param

    def dump(self, *, all: bool = False) -> dict[str, Any]:
        """As for every section. DeepSpeed refuses a deprecated key beside the one that replaced it."""
        result = super().dump(all=all)
        old, new = "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"
        if old in self.model_fields_set and new not in self.model_fields_set:
            result.pop(new, None)
        return result
