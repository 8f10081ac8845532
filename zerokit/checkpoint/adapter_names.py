"""Names of peft's adapter tensors, in a model and in peft's own files.

Names in a model contain the adapter's name, names in ``adapter_model.safetensors`` do not
(peft/utils/save_and_load.py, `get_peft_model_state_dict`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zerokit.documents import read_document
from zerokit.errors import CheckpointError, ModelError

ADAPTER_CONFIG = "adapter_config.json"
LEARNED_TOKENS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT", "CARTRIDGE")
"""Adapters that are separate from the weights of the model."""
WITH_PEFT = "Load both with peft: PeftModel.from_pretrained(model, FOLDER)"
_OF_ADAPTER = re.compile(
    r"(?P<module>.*\.)(?:modules_to_save\.|(?P<kind>(?:lora|ia3|vera|hada|lokr|oft|boft|randlora)_\w+)\.)"
    r"(?P<adapter>[^.]+)(?P<rest>\..+)?"
)
_PROMPTS = "prompt_encoder."


def find_adapter(name: str) -> Path | None:
    """The folder of a peft adapter, if `name` is one."""
    folder = Path(name).expanduser()
    return folder if (folder / ADAPTER_CONFIG).is_file() else None


def read_adapter(adapter: Path, *, hint: str) -> tuple[str, str]:
    """The kind of an adapter, in capitals, and the model that it belongs to.

    Raises:
        ModelError: its settings name no model; `hint` says what to do.
    """
    settings = read_document(adapter / ADAPTER_CONFIG, folder=adapter).data
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not isinstance(base, str) or not base:
        raise ModelError("does not name its model", where=adapter, hint=hint)
    return str(settings.get("peft_type", "lora")).upper(), base


def is_adapted(names: Iterable[str]) -> bool:
    """Whether tensors with these names belong to a model with an adapter."""
    return any(_OF_ADAPTER.fullmatch(name) or name.startswith(_PROMPTS) for name in names)


def adapter_names(names: Iterable[str], config: dict[str, Any], *, where: str) -> dict[str, str]:
    """Map the adapter's tensor names in the model to their names in the adapter's file.

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
