"""JSON Schema of a ds_config, for editors."""

from __future__ import annotations

from typing import Any

from zerokit.config.root import DeepSpeedConfig


def json_schema() -> dict[str, Any]:
    """The schema of :class:`DeepSpeedConfig` in draft 2020-12, with a description of every key."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **DeepSpeedConfig.model_json_schema()}
