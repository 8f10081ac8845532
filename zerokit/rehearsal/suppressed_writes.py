"""What a rehearsed script does not write: checkpoints, logs of trackers, uploads.

The values are not there to be saved, and nothing that a person already has may be written over. What holds
values is written: scripts save the data they have prepared, and read it again.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.rehearsal.imports import when_imported
from zerokit.rehearsal.library import Backend

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


def install(suppressed: SuppressedWrites, backend: Backend) -> None:
    """Replace the savers of torch, safetensors, DeepSpeed, transformers, peft and the Hub."""
    os.environ.update(_NO_TRACKERS)
    _install_torch_save(suppressed, backend)
    when_imported("safetensors.torch", lambda module: _install_save_file(module, suppressed, backend))

    def change(module: str, owner: str | None, names: tuple[str, ...], what: str, result: Any = None) -> None:
        def replace(imported: ModuleType) -> None:
            target = getattr(imported, owner, None) if owner else imported
            for name in names:
                if target is not None and hasattr(target, name):
                    setattr(target, name, suppressed.instead_of(what, result))

        when_imported(module, replace)

    checkpoints = ("save_checkpoint", "save_16bit_model", "save_fp16_model")
    change("deepspeed.runtime.engine", "DeepSpeedEngine", checkpoints, "DeepSpeed checkpoints", True)
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
    change("accelerate.accelerator", "Accelerator", ("save_state", "save_model"), "accelerate checkpoints")
    change("deepspeed.monitor.monitor", "MonitorMaster", ("write_events",), "logs of DeepSpeed's monitors")
    change("peft.peft_model", "PeftModel", ("save_pretrained",), "adapters (save_pretrained)")
    uploads = ("create_repo", "upload_file", "upload_folder", "upload_large_folder", "create_commit")
    change("huggingface_hub.hf_api", "HfApi", uploads, "uploads to the Hub")
    change("huggingface_hub.hf_api", None, uploads, "uploads to the Hub")


def _install_torch_save(suppressed: SuppressedWrites, backend: Backend) -> None:
    import torch

    save = torch.save

    def save_values(what: Any, f: Any, *arguments: Any, **given: Any) -> None:
        # What is only kept in memory is how objects travel between ranks.
        if isinstance(f, io.BytesIO) or not lacks_values(what, backend):
            save(what, f, *arguments, **given)
        else:
            suppressed.add(f"torch.save to {_file_name(f)}")

    torch.save = save_values  # type: ignore[assignment]


def _install_save_file(module: ModuleType, suppressed: SuppressedWrites, backend: Backend) -> None:
    save_file, save_model = module.save_file, module.save_model

    def save_values(tensors: Any, filename: Any, *arguments: Any, **given: Any) -> None:
        if lacks_values(tensors, backend):
            suppressed.add(f"safetensors to {_file_name(filename)}")
        else:
            save_file(tensors, filename, *arguments, **given)

    def save_module(model: Any, filename: Any, *arguments: Any, **given: Any) -> None:
        if lacks_values(model.state_dict(), backend):
            suppressed.add(f"safetensors to {_file_name(filename)}")
        else:
            save_model(model, filename, *arguments, **given)

    module.save_file, module.save_model = save_values, save_module  # type: ignore[attr-defined]


def _file_name(target: Any) -> str:
    path = target if isinstance(target, str | os.PathLike) else getattr(target, "name", None)
    return Path(path).name if isinstance(path, str | os.PathLike) else "a file"


def lacks_values(what: Any, backend: Backend) -> bool:
    """Whether `what` holds a tensor of the virtual GPU, or one of the host whose contents are made up.

    It is looked through as pickle would write it, tensors excepted, which are only looked at.
    """
    search = _TensorSearch(backend)
    try:
        search.dump(what)
    except _Found:
        return True
    except Exception:
        # What pickle cannot write is for the real saver to refuse.
        return False
    return False


class _Found(BaseException):
    """A tensor without values. Not an Exception, so that no object's own pickling code catches it."""


class _Nowhere(io.RawIOBase):
    """A file that forgets."""

    def write(self, data: Any) -> int:
        return len(data)


class _TensorSearch(pickle.Pickler):
    """Goes through an object without writing it, and raises :class:`_Found` at a tensor without values."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(_Nowhere(), protocol=pickle.HIGHEST_PROTOCOL)
        self._backend = backend

    def persistent_id(self, item: Any) -> str | None:
        import torch

        if isinstance(item, torch.storage.TypedStorage):
            item = item.untyped()  # type: ignore[no-untyped-call]
        if not isinstance(item, torch.Tensor | torch.UntypedStorage):
            return None
        if item.device.type == "cuda" or (item.device.type == "cpu" and self._is_made_up(item)):
            raise _Found
        return "looked at"

    def _is_made_up(self, item: Any) -> bool:
        import torch

        if isinstance(item, torch.UntypedStorage):
            return self._backend.is_made_up(item)
        parts = [item]
        if item.layout != torch.strided:
            names = ("_indices", "_values", "crow_indices", "col_indices", "values")
            parts = [getattr(item, name)() for name in names if hasattr(item, name)]
        return any(self._backend.is_made_up(part.untyped_storage()) for part in parts)
