"""What a rehearsed script does not write: checkpoints, logs of trackers, uploads.

The values are not there to be saved, and nothing that a person already has may be written over.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.rehearsal.imports import when_imported

_NO_TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}


class SuppressedWrites:
    """Counts the writes that were left out, by what would have been written."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str) -> None:
        self._counts[what] += 1

    def lines(self) -> list[str]:
        """One line for each kind of write, with how often it was asked for."""
        return [what if count == 1 else f"{what} ({count} times)" for what, count in self._counts.items()]

    def instead_of(self, what: str, result: Any = None) -> Callable[..., Any]:
        """A function that writes nothing, notes it and returns `result`."""

        def leave_out(*_: Any, **__: Any) -> Any:
            self.add(what)
            return result

        return leave_out


def install(suppressed: SuppressedWrites) -> None:
    """Replace the savers of torch, safetensors, DeepSpeed, transformers, peft and the Hub."""
    os.environ.update(_NO_TRACKERS)
    import torch

    save = torch.save

    def save_values(what: Any, target: Any, *arguments: Any, **given: Any) -> None:
        if isinstance(target, str | os.PathLike):
            suppressed.add(f"torch.save to {Path(target).name}")
        else:
            save(what, target, *arguments, **given)

    torch.save = save_values

    def change(module: str, owner: str | None, names: tuple[str, ...], what: str, result: Any = None) -> None:
        def replace(imported: ModuleType) -> None:
            target = getattr(imported, owner, None) if owner else imported
            for name in names:
                if target is not None and hasattr(target, name):
                    setattr(target, name, suppressed.instead_of(what, result))

        when_imported(module, replace)

    checkpoints = ("save_checkpoint", "save_16bit_model", "save_fp16_model")
    change("deepspeed.runtime.engine", "DeepSpeedEngine", checkpoints, "DeepSpeed checkpoints", True)
    change("safetensors.torch", None, ("save_file", "save_model"), "safetensors files")
    change("transformers.modeling_utils", "PreTrainedModel", ("save_pretrained",), "models (save_pretrained)")
    change(
        "transformers.tokenization_utils_base",
        "PreTrainedTokenizerBase",
        ("save_pretrained",),
        "tokenizers",
        (),
    )
    change("transformers.trainer", "Trainer", ("_save_checkpoint", "save_state"), "Trainer checkpoints")
    change("transformers.trainer", None, ("get_reporting_integration_callbacks",), "logs of trackers", [])
    change("accelerate.accelerator", None, ("filter_trackers",), "logs of trackers", [])
    change("peft.peft_model", "PeftModel", ("save_pretrained",), "adapters (save_pretrained)")
    uploads = ("create_repo", "upload_file", "upload_folder", "upload_large_folder", "create_commit")
    change("huggingface_hub.hf_api", "HfApi", uploads, "uploads to the Hub")
    change("huggingface_hub.hf_api", None, uploads, "uploads to the Hub")
