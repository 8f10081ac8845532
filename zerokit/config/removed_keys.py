"""Keys that DeepSpeed 0.19.8 refuses by their mere presence, and what to do about each.

The keys are those of `_reject_removed_config_keys` in `deepspeed/runtime/config.py`; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from zerokit.documents import KeyPath

REMOVED_KEYS: Mapping[KeyPath, tuple[str, str]] = {
    tuple(key.split(".")): (feature, hint)
    for key, (feature, hint) in json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    ).items()
}
"""Key -> (the feature that is gone, what to do)."""
