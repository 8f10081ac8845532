"""Memory of generation on the GPU: the KV cache and the logits of one token."""

from __future__ import annotations

from zerokit.memory.layout import Layout
from zerokit.memory.settings import Settings
from zerokit.memory.term import Term, term_kind
from zerokit.memory.training_run import Generation
from zerokit.models import ModelShape

KV_CACHE = term_kind("generation.kv_cache")
ONE_TOKEN = term_kind("generation.one_token")
GATHERED_AHEAD = term_kind("generation.gathered_ahead")


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
