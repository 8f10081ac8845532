"""Names of peft's adapter tensors, in a model and in peft's own files.

Names in a model contain the adapter's name, names in ``adapter_model.safetensors`` do not
(peft/utils/save_and_load.py, `get_peft_model_state_dict`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from zerokit.errors import CheckpointError

ADAPTER_CONFIG = "adapter_config.json"
LEARNED_TOKENS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT", "CARTRIDGE")
"""Adapters that are separate from the weights of the model."""
WITH_PEFT = "Load both with peft: PeftModel.from_pretrained(model, FOLDER)"
_OF_ADAPTER = re.compile(
    r"(?P<module>.*\.)(?:modules_to_save\.|(?P<kind>(?:lora|ia3|vera|hada|lokr|oft|boft|randlora)_\w+)\.)"
    r"(?P<adapter>[^.]+)(?P<rest>\..+)?"
)
_PROMPTS = "prompt_encoder."


def is_adapted(names: Iterable[str]) -> bool:
    """Whether tensors with these names belong to a model with an adapter."""
    return any(_OF_ADAPTER.fullmatch(name) or name.startswith(_PROMPTS) for name in names)


def adapter_names(names: Iterable[str], config: dict[str, Any], *, where: str) -> dict[str, str]:
    """Map the adapter's tensor names in the model to their names in the adapter's file.

    Args:
        names: of all tensors of the model.
        config: of the adapter.
        where: the checkpoint, for errors.

    Raises:
        CheckpointError: there are several adapters, or an unsupported kind.
    """
    names = list(names)
    found = {name: match for name in names if (match := _OF_ADAPTER.fullmatch(name))}
    adapters = sorted({match["adapter"] for match in found.values()})
    unread = next((name for name in names if name.startswith(_PROMPTS) or "trainable_tokens" in name), None)
    bias = config.get("bias", "none")
    problem = None
    if unread is not None:
        problem = f"'{unread}' belongs to an unsupported kind of adapter"
    elif bias != "none":
        problem = f"the adapter trains biases (bias: {bias}), which zerokit does not support"
    elif len(adapters) > 1:
        problem = f"it has several adapters: {', '.join(adapters)}"
    if problem is not None:
        raise CheckpointError(
            problem, where=where, hint="Save the adapter with save_pretrained in the script that made it"
        )
    return {
        name: f"{match['module']}{match['kind'] or ''}{match['rest'] or ''}".replace("..", ".")
        for name, match in found.items()
    }
