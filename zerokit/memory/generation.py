"""Memory of generation on the GPU: the KV cache and the logits of one token."""

from __future__ import annotations

from dataclasses import replace

from zerokit.memory.layout import Layout
from zerokit.memory.param_coordinator import COORDINATOR, GATHERED
from zerokit.memory.settings import Settings
from zerokit.memory.term import Term, TermKind
from zerokit.memory.training_run import Generation
from zerokit.models import ModelShape

KV_CACHE = TermKind(
    "cache of keys and values",
    "activations",
    unit="e",
    count="2·L·kv·tokens",
    source="transformers cache_utils.py DynamicLayer.update",
    certainty="modelled",
)
ONE_TOKEN = TermKind(
    "logits of one token",
    "activations",
    unit="e + 4",
    count="V·sequences",
    source="transformers generation/utils.py GenerationMixin._sample",
    certainty="modelled",
)
GATHERED_AHEAD = replace(GATHERED, count="min(Φ, stage3_max_live_parameters)", source=COORDINATOR)


def generation_terms(
    model: ModelShape, layout: Layout, settings: Settings, generation: Generation
) -> list[Term]:
    """Terms of the phase "generation".

    Stage 3 gathers parameters ahead, up to `stage3_max_live_parameters`.
    """
    e = settings.parameter_bytes
    heads, hidden = model.num_attention_heads, model.hidden_size
    if heads is None or hidden is None or model.num_hidden_layers is None or model.vocab_size is None:
        return []
    width = (model.num_key_value_heads or heads) * (model.head_dim or hidden // heads)
    latent = model.config.get("kv_lora_rank")
    if isinstance(latent, int):
        # transformers caches the expanded keys and values of latent attention.
        width = heads * (model.head_dim or hidden // heads)
    tokens = generation.batch_size * generation.seq_len
    layers = model.num_hidden_layers
    held = [
        (KV_CACHE, e, 2 * layers * tokens * width),
        (ONE_TOKEN, e + 4, generation.batch_size * model.vocab_size),
    ]
    if settings.stage == 3 and settings.world_size > 1:
        held.append((GATHERED_AHEAD, e, min(layout.num_parameters, settings.max_live)))
    return [kind.term("generation", {unit: count}) for kind, unit, count in held]
