"""Which sizes of sequence and tensor parallelism a model and its run can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any, NamedTuple

from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Parallelism
from zerokit.models.shape import ModelShape
from zerokit.tables import table_of

_TABLE = table_of(__file__)
SEQUENCE_SIZES = (2, 4, 8)
"""GPUs of a node that are tried for each sequence."""


class DividedModel(NamedTuple):
    """What parallelism divides of a model, or of its text part."""

    model_type: str
    heads: int
    key_value_heads: int
    attention: str = "sdpa"
    undivided_layers: tuple[str, ...] = ()
    """Types of layers whose tokens DeepSpeed does not exchange."""

    @classmethod
    def of(cls, shape: ModelShape, attention: str | None = None) -> DividedModel:
        """The facts of a shape; `attention` None: transformers' default for it."""
        text, heads = shape.config.get("text_config") or shape.config, shape.num_attention_heads or 1
        attention = attention or ("sdpa" if shape.has_sdpa else "eager")
        model_type = text.get("model_type") or shape.model_type
        return cls(model_type, heads, shape.num_key_value_heads or heads, attention, undivided_layers(text))


def undivided_layers(text: Mapping[str, Any]) -> tuple[str, ...]:
    """:attr:`DividedModel.undivided_layers` of a text config."""
    layers = set(text.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if text.get("kv_lora_rank") is not None:
        layers.add("latent attention")
    return tuple(sorted(layers))


def parallelism_misfit(
    sizes: Parallelism,
    *,
    zero_stage: int | None = None,
    num_gpus: int | None = None,
    model: DividedModel | None = None,
    has_adapter: bool = False,
) -> ZerokitError | None:
    """The first reason why a run cannot have these sizes; None if what is known gives none."""
    if num_gpus is not None and 1 in (sizes.sequence, sizes.tensor):  # otherwise no number of GPUs is right
        try:
            sizes.data_ranks(num_gpus)
        except ZerokitError as error:
            return error
    for kind, why, hint in _misfits(sizes, zero_stage, model, has_adapter=has_adapter):
        return ZerokitError(f"{kind} parallelism {why}", where=f"--{kind}-parallel", hint=hint)
    return None


def _misfits(
    sizes: Parallelism, stage: int | None, model: DividedModel | None, *, has_adapter: bool
) -> Iterator[tuple[str, str, str]]:
    sequence, tensor = sizes.sequence, sizes.tensor
    if sequence > 1 and tensor > 1:  # DeepSpeedEngine._configure_tensor_parallel_states
        yield "tensor", "does not go with sequence parallelism: AutoTP replaces its groups", "Remove one of the two"
    if sequence > 1 and stage is not None and stage < 3:
        # stage_1_and_2.py divides by the groups that read different data, after a sum over all ranks.
        why = "DeepSpeed multiplies gradients by the size of the group in stages 1 and 2"
        why = f"the run has stage {stage}: {why if stage else 'without ZeRO, DeepSpeed has no groups for it'}"
        yield "sequence", f"needs ZeRO-3, and {why}", "Set stage 3, in a ds_config by zero_optimization.stage"
    if tensor > 1 and has_adapter:
        yield "tensor", "does not go with peft: AutoTP does not divide adapters", "Remove one of the two"
    if model is None:
        return
    kind, heads, keys = model[:3]
    undivided = f"does not divide {heads} attention heads, {keys} of keys and values"
    if sequence > 1 and kind in _TABLE["without_key_value_heads"]:  # UlyssesSPAttentionHF.register_with_transformers
        yield "sequence", f"does not go with {kind}: DeepSpeed reads num_key_value_heads of its config", "Leave it out"
    if heads % sequence or (keys % sequence and sequence % keys):
        hint = f"Choose a divisor of {heads} that divides {keys}, or is a multiple of it"
        yield "sequence", f"over {sequence} GPUs {undivided}", hint
    if sequence > 1 and model.attention == "eager":
        yield "sequence", "does not go with eager attention", "Choose sdpa or flash attention"
    if sequence > 1 and model.undivided_layers:
        yield "sequence", f"does not divide layers of {', '.join(model.undivided_layers)}", "Leave it out"
    if tensor > 1 and kind not in _TABLE["tensor"]:
        why = f"does not go with {kind}: transformers has no plan for its layers that DeepSpeed knows"
        yield "tensor", why, "Leave it out"
    if gcd(heads, keys) % tensor:
        yield "tensor", f"over {tensor} GPUs {undivided}", f"Choose a divisor of {gcd(heads, keys)}"
