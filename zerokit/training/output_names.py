"""What is in the way of a run in its output folder: a folder where it writes a file, or the reverse."""

from __future__ import annotations

import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path

from zerokit.errors import RecipeError

_FOLDERS = re.compile(r"checkpoint-\d+|earlier|runs|\.unfinished|\.saving|\.replaced")
_FILES = (
    *(
        "run.lock",
        "run.json",
        "metrics.jsonl",
        "metrics.csv",
        "loss.png",
        "emissions.csv",
        "training_args.bin",
    ),
    *("model*.safetensors*", "adapter_*", "README.md", "config.json", "generation_config.json"),
    *("tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.*"),
    *("merges.txt", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja"),
)
"""Patterns of names. A run removes what has the name of a file of its model, and all that is below it."""


def check_output_names(folder: Path, where: str) -> None:
    """See that nothing in an output folder keeps a run from writing there.

    Args:
        folder: the output folder, which may not exist yet.
        where: the place of its name in the recipe.

    Raises:
        RecipeError: something does.
        OSError: the folder cannot be read.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        needs_folder = _FOLDERS.fullmatch(path.name) is not None
        if not needs_folder and not any(fnmatchcase(path.name, pattern) for pattern in _FILES):
            continue
        hint = "Remove or rename it, or name another folder"
        if not path.exists():
            continue
        if needs_folder and not path.is_dir():
            problem = "is not a folder, and the run makes a folder of that name"
        elif not needs_folder and not path.is_file():
            problem = "is not a regular file, and the run writes a file of that name"
        elif not needs_folder and not path.stat().st_mode & stat.S_IWUSR:
            problem, hint = "is read-only, and the run writes it", "Try chmod u+w, or name another folder"
        else:
            continue
        raise RecipeError(f"'{path}' {problem}", where=where, hint=hint)
