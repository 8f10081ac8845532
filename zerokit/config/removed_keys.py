"""Keys that DeepSpeed 0.19.8 refuses by their mere presence, and what to do about each.

The keys are those of `_reject_removed_config_keys` in `deepspeed/runtime/config.py`; a test compares them.
"""

from collections.abc import Mapping

from zerokit.documents import KeyPath
from zerokit.tables import table_of

REMOVED_KEYS: Mapping[KeyPath, tuple[str, str]] = {
    tuple(key.split(".")): (feature, hint) for key, (feature, hint) in table_of(__file__).items()
}
"""Key -> (the feature that is gone, what to do)."""
