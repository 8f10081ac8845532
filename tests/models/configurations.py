"""Configs with one thing odd about each: the branches of every architecture, at sizes that build at once."""

from __future__ import annotations

from typing import Any

from tests.json_data import load_json


def odd_configurations() -> dict[str, dict[str, Any]]:
    """By what is odd about each: every decoder tied and untied, and the branches of every architecture.

    `configurations.json` has sizes by name (``bases``), the sizes of each decoder (``decoders``), and rows of
    model type, oddity, the base or null, and keys on top of it (``odd``).
    """
    known = load_json("models/configurations.json")
    bases = {**known["bases"], None: {}}
    found: dict[str, dict[str, Any]] = {}
    for model_type, base in known["decoders"].items():
        for tied in (True, False):
            name = f"{model_type}: {'tied' if tied else 'untied'}"
            found[name] = {**bases[base], "model_type": model_type, "tie_word_embeddings": tied}
    for model_type, oddity, base, config in known["odd"]:
        found[f"{model_type}: {oddity}"] = {"model_type": model_type, **bases[base], **config}
    return found
