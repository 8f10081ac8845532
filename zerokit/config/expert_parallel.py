"""The section `expert_parallel`: automatic expert parallelism (AutoEP)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from zerokit.config.base import ExactBool, ExactInt, ExactPositive, OrAuto, Section, Tested
from zerokit.config.conditions import Acts

Attribute = Annotated[str, Field(pattern=r"^[^.]+$")]
"""The name of an attribute, without dots."""

Preset = Literal["mixtral", "qwen3_moe", "qwen3_5_moe", "deepseek_v2", "deepseek_v3", "minimax_m3"]
"""The kinds of model that `deepspeed/module_inject/auto_ep_presets` knows."""


class ExpertParallel(Section):
    """Divide the experts of a mixture-of-experts model among ranks.

    Here "auto" is DeepSpeed's own word: it reads the model.
    """

    enabled: bool = False
    """Replace the model's mixture-of-experts layers. Default false."""

    autoep_size: ExactPositive = 1
    """Ranks that share the experts; divides their number. Default 1: each rank has all of them."""

    expert_tensor_parallel_size: Annotated[ExactPositive, Acts(since="0.19.3")] = 1
    """Ranks that share one expert. Default 1."""

    preset_model: Preset | None = None
    """The kind of model. Default none: DeepSpeed detects it."""

    moe_layer_pattern: str | None = None
    """Regular expression for the names of mixture-of-experts layers. Default none: the preset's."""

    router_pattern: Attribute | None = None
    """Attribute of such a layer that holds the router. Default none: the preset's."""

    expert_pattern: Attribute | None = None
    """Attribute of such a layer that holds the experts. Default none: the preset's."""

    expert_w1: Attribute | None = None
    """Attribute of the experts that holds the gate's weight, or gate and up in one. Default none: the
    preset's."""

    expert_w2: Attribute | None = None
    """Attribute of the experts that holds the down projection. Default none: the preset's."""

    expert_w3: Attribute | None = None
    """Attribute of the experts that holds the up projection; `null` says that `expert_w1` holds it as well.
    Default: the preset's."""

    expert_activation: Annotated[
        Literal["swiglu", "geglu_tanh", "swiglu_clamped", "swiglu_oai"] | None, Acts(since="0.19.8")
    ] = None
    """Activation of the experts. Default none: the preset's."""

    num_experts_attr: Attribute | None = None
    """Attribute of the model's config that holds the number of experts. Default none: the preset's."""

    top_k_attr: Attribute | None = None
    """Attribute of the model's config that holds the experts per token. Default none: the preset's."""

    has_shared_experts: Annotated[bool | None, Tested(numbers=False)] = None
    """Whether every token also goes through shared experts; needs `shared_experts_pattern`. Default none:
    the preset's."""

    shared_experts_pattern: Attribute | None = None
    """Attribute of a layer that holds the shared experts. Default none: the preset's."""

    shared_experts_gate_pattern: Attribute | None = None
    """Attribute of a layer that holds the gate of the shared experts. Default none: the preset's."""

    top_k: OrAuto[ExactPositive] = "auto"
    """Experts per token. Default "auto"."""

    score_func: Literal["auto", "softmax", "sigmoid"] = "auto"
    """How the router's scores become weights. Default "auto"."""

    score_apply: Literal["auto", "pre", "post"] = "auto"
    """Whether weights are applied before or after the experts. Default "auto"."""

    route_norm: bool | None = None
    """Scale the weights of a token to a sum of 1. Default none: the preset's."""

    route_scale: float = 1.0
    """Factor on the weights. Default 1."""

    routed_scaling_factor: OrAuto[float] = "auto"
    """The same factor under the model's name for it. Default "auto": the model's own."""

    num_expert_groups: ExactPositive | None = None
    """Groups of experts; a token may choose from a few of them only. Default none: the model's own."""

    num_limited_groups: ExactPositive | None = None
    """How many of them. Default none: the model's own."""

    load_balance_coeff: None = None
    """Balancing without an auxiliary loss, which DeepSpeed does not support: only `null` is accepted."""

    use_grouped_mm: bool = True
    """Multiply the matrices of all experts at once. Default true."""

    disable_triton_grouped_mm: Annotated[bool, Acts(since="0.19.4")] = False
    """Do not use the Triton kernel for that. Default false."""

    gate_up_impl: Annotated[Literal["separate", "fused"], Acts(since="0.19.8")] = "separate"
    """Multiply gate and up one after the other, or as one; `fused` needs `use_grouped_mm`. Default
    separate."""

    combine_impl: Literal["auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"] = "auto"
    """How the experts' outputs are put together. Default "auto"."""

    row_weighting_impl: Annotated[Literal["auto", "eager", "fused"], Acts(since="0.19.8")] = "auto"
    """How outputs are weighted under the backend `deepep`. Default "auto"."""

    comm_backend: Annotated[Literal["comm", "deepep"], Acts(since="0.19.7")] = "comm"
    """What exchanges tokens: `torch.distributed`, or the library DeepEP. Default comm."""

    comm_num_sm: Annotated[ExactPositive, Acts(since="0.19.7")] = 12
    """GPU multiprocessors that DeepEP may use. Default 12."""

    comm_qp_margin: Annotated[ExactInt, Field(ge=0), Acts(since="0.19.7")] = 4
    """Queue pairs of DeepEP beyond those needed. Default 4."""

    comm_max_tokens_per_rank: Annotated[ExactInt, Field(ge=0), Acts(since="0.19.7")] = 0
    """Tokens that one rank may send under `deepep`, which needs it. Default 0: not given."""

    async_split_plan: Annotated[ExactBool, Acts(since="0.19.8")] = False
    """Exchange the numbers of tokens while the computation goes on. Default false."""

    validate_folding_routing: Annotated[ExactBool, Acts(since="0.19.3")] = False
    """Check that tensor-parallel ranks route alike; slow. Default false."""
