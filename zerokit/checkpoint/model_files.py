"""Config, tokenizer and other files of the trained model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerokit.checkpoint.source import check_file
from zerokit.checkpoint.step_folder import is_numbered, is_of_run
from zerokit.documents import read_document
from zerokit.errors import CheckpointError, printable
from zerokit.tables import table_of

CONFIG = "config.json"
_COPIED: Sequence[str] = table_of(__file__)["copied"]
"""Files of a model besides config and weights."""
_TEMPLATES = "additional_chat_templates"


def find_file(step: Path, base: Path | None, name: str) -> Path | None:
    """A file of the trained model: in `base`, or in the checkpoint's or run's folder."""
    places = [base] if base is not None else [step]
    if base is None and is_of_run(step):
        places.append(step.parent)
        # The Trainer and accelerate have a folder in between.
        places += [step.parent.parent] if is_numbered(step.parent.name) else []
    return next((place / name for place in places if (place / name).is_file()), None)


def read_config(file: Path) -> dict[str, Any]:
    """Read a JSON object. ZerokitError if it cannot be read, or is no object."""
    data = read_document(file, folder=file.parent).data
    if not isinstance(data, dict):
        raise CheckpointError("is not a JSON object", where=file, hint="Copy it again")
    return dict(data)


def model_files(folder: Path, *, code: bool) -> list[Path]:
    """The files of a model besides config and weights.

    Raises:
        ZerokitError: a file is special, leads out of the folder, or is far too large.
    """
    patterns = [*_COPIED, f"{_TEMPLATES}/*", *(["*.py"] if code else [])]
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    for file in files:
        check_file(file, folder, where=printable(folder))
    return [file for file in files if file.is_file()]


def copy_files(files: Sequence[Path], folder: Path, to: Path) -> list[str]:
    """Copy files of a folder to another; return their names there."""
    copied = []
    for file in files:
        name = file.relative_to(folder)
        (to / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, to / name)
        copied.append(name.as_posix())
    return copied
