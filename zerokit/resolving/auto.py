"""Who fills in "auto", and where.

Read from `HfTrainerDeepSpeedConfig` (transformers 5.23, `integrations/deepspeed.py`) and from
`DeepSpeedPlugin` and `Accelerator._prepare_deepspeed` (accelerate 1.15). The Trainer goes through
accelerate, so whatever accelerate fills, it fills too; and accelerate raises ValueError for every "auto"
that is left.
DeepSpeed alone drops or misreads "auto": `bf16.enabled: "auto"` trains in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from zerokit.config.base import AUTO, is_comment
from zerokit.documents import KeyPath

Target = Literal["trainer", "accelerate", "deepspeed"]
"""Who hands the config to DeepSpeed: transformers' Trainer, accelerate, or the script itself."""

TARGETS: tuple[Target, ...] = get_args(Target)

_BY_ACCELERATE = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
        "bf16.enabled",
        "fp16.enabled",
        "optimizer.params.lr",
        "optimizer.params.weight_decay",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps",
        "zero_optimization.stage",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    }
)

FILLED_BY: Mapping[Target, frozenset[str]] = {
    "trainer": _BY_ACCELERATE | {"optimizer.params.betas", "optimizer.params.eps"},
    "accelerate": _BY_ACCELERATE,
    "deepspeed": frozenset(
        {
            # DeepSpeed's own word, not a gap to be filled.
            "data_types.keep_in_fp32_modules",
            "pipeline.stages",
            "zero_optimization.zenflow.select_interval",
            "zero_optimization.zenflow.select_strategy",
            "zero_optimization.zenflow.update_interval",
            "expert_parallel.combine_impl",
            "expert_parallel.routed_scaling_factor",
            "expert_parallel.row_weighting_impl",
            "expert_parallel.score_apply",
            "expert_parallel.score_func",
            "expert_parallel.top_k",
        }
    ),
}
"""Dotted paths at which "auto" is good, by target. Names are those of the file: `bfloat16.enabled` is not
filled."""

FREE_TEXT: frozenset[str] = frozenset(
    {
        "autotuning.exps_dir",
        "autotuning.metric_path",
        "autotuning.model_info_path",
        "autotuning.results_dir",
        "data_efficiency.data_routing.random_ltd.model_mask_name",
        "data_efficiency.data_sampling.curriculum_learning.data_cluster_path",
        "data_efficiency.data_sampling.dynamic_batching.metrics_path",
        "expert_parallel.expert_pattern",
        "expert_parallel.expert_w1",
        "expert_parallel.expert_w2",
        "expert_parallel.expert_w3",
        "expert_parallel.moe_layer_pattern",
        "expert_parallel.num_experts_attr",
        "expert_parallel.router_pattern",
        "expert_parallel.shared_experts_gate_pattern",
        "expert_parallel.shared_experts_pattern",
        "expert_parallel.top_k_attr",
        "flops_profiler.output_file",
        "pipeline.partition",
    }
)
"""Dotted paths of names, files and patterns, where "auto" is a text like any other as long as neither the
Trainer nor accelerate reads the config. (In sections that DeepSpeed parses with pydantic it is dropped.)"""


def autos(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all values that are exactly "auto", comments left out."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if not is_comment(key):
                yield from autos(value, (*path, key))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from autos(item, (*path, index))
    elif data == AUTO:
        yield path
