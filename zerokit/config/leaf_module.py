"""The section `zero_optimization.leaf_module`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from zerokit.config.base import AUTO, Reader, Section

LEAF_MODULE_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)
"""What DeepSpeed treats as leaf modules by default (`deepspeed/runtime/zero/leaf_module_config.py`)."""


def _names_as_list(value: object) -> object:
    return [value] if isinstance(value, str) and value != AUTO else value


Names = Annotated[list[str], BeforeValidator(_names_as_list)]


class LeafModule(Section):
    """Modules whose parameters stage 3 gathers as one, such as mixture-of-experts blocks."""

    read_by: ClassVar[Reader] = "model"

    classes: Names = Field(default_factory=lambda: list(LEAF_MODULE_CLASSES))
    """Class names, short or in full. Default: the blocks of Mixtral, Qwen2-MoE and Qwen3-MoE."""

    names: Names = Field(default_factory=list)
    """Full names of modules. Default none."""

    name_suffixes: Names = Field(default_factory=list)
    """Ends of names of modules. Default none."""
