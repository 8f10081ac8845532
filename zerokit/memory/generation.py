"""What generation holds on the GPU: the cache of keys and values, and the logits of one token."""

from __future__ import annotations

from zerokit.memory.layout import Layout
from zerokit.memory.settings import Settings
from zerokit.memory.term import Term
from zerokit.memory.training_run import Generation
from zerokit.models import ModelShape

KV_CACHE = "cache of keys and values"


def generation_terms(
    model: ModelShape, layout: Layout, settings: Settings, generation: Generation
) -> list[Term]:
    """Terms of the phase "generation", beside what lives always.

    Under stage 3 parameters are gathered ahead as far as `stage3_max_live_parameters` allows.
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
    terms = [
        Term(
            KV_CACHE,
            2 * e * layers * tokens * width,
            "generation",
            "2·e·L·b·s·kv",
            f"2·{e}·{layers}·{generation.batch_size}·{generation.seq_len:,}·{width:,}",
            "transformers cache_utils.py DynamicLayer.update",
            certainty="modelled",
        ),
        Term(
            "logits of one token",
            (e + 4) * generation.batch_size * model.vocab_size,
            "generation",
            "(e + 4)·b·V",
            f"{e + 4}·{generation.batch_size}·{model.vocab_size:,}",
            "transformers generation/utils.py GenerationMixin._sample",
            certainty="modelled",
        ),
    ]
    if settings.stage == 3 and settings.world_size > 1:
        live = min(layout.num_parameters, settings.max_live)
        terms.append(
            Term(
                "gathered parameters",
                e * live,
                "generation",
                "e·min(Φ, stage3_max_live_parameters)",
                f"{e}·{live:,}",
                "deepspeed/runtime/zero/partitioned_param_coordinator.py",
                certainty="modelled",
            )
        )
    return terms
