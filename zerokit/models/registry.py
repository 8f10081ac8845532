"""The model types with code: `model_types.json` has the family, and transformers' defaults, of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from zerokit.models.parts import ModelType


@cache
def model_types() -> Mapping[str, Mapping[str, Any]]:
    """The rows of `model_types.json` by the `model_type` of config.json."""
    text = Path(__file__).with_name("model_types.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def model_type(name: str) -> ModelType | None:
    """The model type of that name, or None without code; imports only its family."""
    row = model_types().get(name)
    if row is None:
        return None
    family = import_module(f"zerokit.models.families.{row['family']}")
    values = {key: value for key, value in row.items() if key != "family"}
    return ModelType(name, classes=family.CLASSES[name], **values)
