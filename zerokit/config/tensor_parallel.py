"""The section `tensor_parallel`: automatic tensor parallelism (AutoTP)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from zerokit.config.base import (
    LOWER,
    NonNegative,
    Positive,
    Reader,
    Section,
    Sub,
    SwitchedOnByContent,
    two_names,
)
from zerokit.config.conditions import TENSOR_PARALLEL, Acts

Preset = Literal["llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"]
"""The names that `AutoTPPresets.get_preset` knows (`deepspeed/module_inject/autotp_config.py`)."""

Dimension = Annotated[int, Field(ge=-1)]


class LayerSpec(Section):
    """How the parameters whose names match some patterns are divided."""

    patterns: list[str] = Field(default_factory=list)
    """Regular expressions that must match a parameter's name from its start. Default none."""

    partition_type: Annotated[Literal["column", "row", "skip"], LOWER] = "column"
    """`column`: by rows of the output; `row`: by columns of the input; `skip`: not at all. Default
    column."""

    shape: list[Dimension | list[Positive]] | None = None
    """View the weight in this shape first; -1 for one dimension that follows from the others, a list for
    parts of unequal size. Default none: as it is."""

    partition_dim: NonNegative | None = None
    """Dimension of `shape` that is divided. Default none: 0 for `column`, 1 for `row`."""

    model_types: list[str] | None = None
    """Values of `model_type` for which this holds. Default none: for all."""

    gather_output: Annotated[bool, Acts(since="0.19.4")] = False
    """Of `column`: give each rank the whole output. Default false."""

    grad_allreduce: Annotated[bool, Acts(since="0.19.6")] = False
    """Of `skip`: sum the gradients over the tensor-parallel ranks. Default false."""


class PartitionConfig(SwitchedOnByContent):
    """Which layers are divided, and how, in place of what DeepSpeed detects."""

    use_default_specs: bool = True
    """Keep the specs of `preset_model` after the ones given here. Default true."""

    layer_specs: list[Sub[LayerSpec]] = Field(default_factory=list)
    """How parameters are divided; the first that matches a name counts. Default none."""

    strict_mode: bool = False
    """Stop when a linear layer matches no spec. Default false."""

    tp_size: Positive = 1
    """Overwritten by `autotp_size`. Default 1."""

    embedding_partition_dim: NonNegative = 1
    """Dimension in which embeddings are divided. Default 1."""

    lm_head_patterns: list[str] = Field(default_factory=lambda: ["lm_head", "embed_out"])
    """Parts of the names of output layers. Default lm_head and embed_out."""


class TensorParallelGroup(Section):
    """The tensor-parallel group. Its keys `mpu` and `tp_group` take Python objects, which a file cannot
    hold."""

    read_by: ClassVar[Reader] = "model"

    tp_size: Annotated[Positive, Acts(when=TENSOR_PARALLEL)] = 1
    """Ranks of the group; training reads `autotp_size` instead. Default 1."""

    tp_grain_size: Positive = 1
    """Granularity of uneven division; not used in training. Default 1."""


class TensorParallel(Section):
    """Divide the linear layers of a model among ranks that see the same samples.

    The key `dtype` takes a Python object, which a file cannot hold.
    """

    read_by: ClassVar[Reader] = "model"

    autotp_size: NonNegative = 0
    """Ranks that share the model. Default 0, off."""

    tp_overlap_comm: Annotated[bool, Acts(since="0.16.6")] = False
    """Sum partial outputs while the next computation goes on. Default false."""

    preset_model: Annotated[Annotated[Preset, LOWER] | None, Acts(since="0.18.6")] = None
    """Use the built-in division for this kind of model. Default none: DeepSpeed detects it."""

    partition_config: Annotated[Sub[PartitionConfig] | None, Acts(since="0.18.6")] = None
    """Which layers are divided, and how. Default none: DeepSpeed detects them."""

    vocab_parallel_lm_head: Annotated[bool | None, Acts(since="0.19.8")] = None
    """Divide the output layer by its vocabulary. Default none: as the model's own plan says."""

    vocab_parallel_ce_backend: Annotated[Literal["torch", "liger"], Acts(since="0.19.8")] = "torch"
    """What computes the cross entropy over a divided vocabulary. Default torch."""

    tp: Sub[TensorParallelGroup] = Field(
        default_factory=TensorParallelGroup.defaults, validation_alias=two_names("tp", "tensor_parallel")
    )
    """The tensor-parallel group."""

    injection_policy_tuple: list[Any] | None = None
    """Names of linear layers whose outputs are summed, for inference. Default none."""

    keep_module_on_host: bool = False
    """Leave the weights on the host rather than move them to the GPU while they are divided. Default
    false."""

    kernel_inject: bool = Field(
        default=False, validation_alias=two_names("kernel_inject", "replace_with_kernel_inject")
    )
    """Replace modules by DeepSpeed's kernels, for inference. Default false."""
