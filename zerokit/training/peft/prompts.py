"""Virtual tokens: their logits, and how to save them under ZeRO-3."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from zerokit import patches
from zerokit.patches import Patch

_TO_SAVE = Patch(
    "peft.peft_model:PeftModel", "get_prompt_embedding_to_save", "save learned tokens that ZeRO-3 has divided"
)
_whole_weights: ContextVar[Mapping[str, Any] | None] = ContextVar("weights of a model that is saved", default=None)


def drop_virtual_token_logits(_: Any, args: Any, given: Mapping[str, Any], output: Any) -> Any:
    """A hook on a model: removes the logits of the learned tokens, which come first and have no label."""
    if output.logits is not None:  # a loss in chunks has made none
        output.logits = output.logits[:, -given["input_ids"].shape[1] :]
    return output


@contextmanager
def save_virtual_tokens(model: Any, weights: Mapping[str, Any] | None) -> Iterator[None]:
    """A context in which virtual tokens are saved from whole weights.

    peft calls their module on the rank that saves; under ZeRO-3 the other ranks would have to call it, too.

    Args:
        weights: of the whole model, by name; None if no module is partitioned.
    """
    config = next(iter(getattr(model, "peft_config", {}).values()), None)
    if weights is None or config is None or not config.is_prompt_learning:
        yield
        return

    token = _whole_weights.set(weights)
    try:
        yield
    finally:
        _whole_weights.reset(token)


def _from_whole_weights(original: Any, model: Any, adapter: str) -> Any:
    weights = _whole_weights.get()
    return original(model, adapter) if weights is None else _learned_tokens(model, adapter, weights)


patches.wrap(_TO_SAVE, _from_whole_weights)


def _learned_tokens(model: Any, adapter: str, weights: Mapping[str, Any]) -> Any:
    """Embeddings of all virtual tokens, computed by a module with the whole weights: (tokens, width)."""
    import torch

    prefix = f"prompt_encoder.{adapter}."
    own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    config = copy.copy(model.peft_config[adapter])
    if hasattr(config, "prompt_tuning_init"):  # which would read the model's embeddings
        config.prompt_tuning_init = "RANDOM"
        whole = type(model.prompt_encoder[adapter])(config, None)
    else:
        whole = type(model.prompt_encoder[adapter])(config)
    whole.to(own["embedding.weight"].dtype).load_state_dict(own)
    with torch.no_grad():
        return whole(torch.arange(len(whole.embedding.weight))[None])[0]
