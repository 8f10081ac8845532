"""The word "auto": where a config has it, and where it need not be filled in.

Who fills it elsewhere is in `who_fills.py`. DeepSpeed alone drops or misreads it:
`bf16.enabled: "auto"` trains in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from zerokit.choices import Target
from zerokit.config.base import AUTO, is_comment
from zerokit.documents import KeyPath

TARGETS: tuple[Target, ...] = get_args(Target)

DEEPSPEEDS_OWN_WORD: frozenset[str] = frozenset(
    {
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
)
"""Dotted paths at which DeepSpeed itself knows the word: no gap to be filled."""

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
