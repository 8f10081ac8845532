"""What litgpt trains from: a folder of a model with its own config and weights, Pythia-14M's, all zeros."""

from __future__ import annotations

import json
from pathlib import Path

from tests.validation.rehearsal.local_inputs import write_tokenizer

LAYERS, WIDTH, INNER, VOCABULARY = 6, 128, 512, 50304
_CONFIG = {
    "name": "pythia-14m",
    "hf_config": {"org": "EleutherAI", "name": "pythia-14m"},
    "block_size": 512,
    "n_layer": LAYERS,
    "n_embd": WIDTH,
    "n_head": 4,
    "intermediate_size": INNER,
    "vocab_size": 50254,
    "padding_multiple": 128,
}


def write_checkpoint(folder: Path) -> None:
    """Write ``checkpoints/EleutherAI/pythia-14m`` in `folder`, 28 MB, if it is not there."""
    import torch

    place = folder / "checkpoints" / "EleutherAI" / "pythia-14m"
    file = place / "lit_model.pth"
    if file.exists():
        return
    write_tokenizer(place, model_max_length=512)
    (place / "model_config.yaml").write_text(json.dumps(_CONFIG), encoding="utf-8")
    torch.save({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in _shapes().items()}, file)


def _shapes() -> dict[str, tuple[int, ...]]:
    of_layer: dict[str, tuple[int, ...]] = {"norm_1": (WIDTH,), "norm_2": (WIDTH,)}
    of_layer |= {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
    of_layer |= {"mlp.fc": (INNER, WIDTH), "mlp.proj": (WIDTH, INNER)}
    parts = {f"h.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in of_layer.items()}
    weights = {f"transformer.{name}.weight": shape for name, shape in (parts | {"ln_f": (WIDTH,)}).items()}
    biases = {name.removesuffix("weight") + "bias": shape[:1] for name, shape in weights.items()}
    words = (VOCABULARY, WIDTH)
    return weights | biases | {"transformer.wte.weight": words, "lm_head.weight": words}
