"""Where a command's result goes: stdout, or a file that is written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import typer

from zerokit.errors import ZerokitError


def print_json(data: Any) -> None:
    """Print one JSON value on stdout."""
    typer.echo(to_json(data), nl=False)


def to_json(data: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write `text` to a file beside `path` and then put it in its place, so that no half file is ever seen.

    Raises:
        ZerokitError: the file exists and `force` is false, or it cannot be written.
    """
    temporary = None
    try:
        if path.is_dir():
            raise ZerokitError("is a folder", where=str(path), hint="Name a file in it")
        if path.exists() and not path.is_file():  # a device or a pipe must not be replaced by a file
            path.write_text(text, encoding="utf-8")
            return
        if path.exists() and not force:
            raise ZerokitError("the file exists", where=str(path), hint="Add --force to overwrite it")
        target = path.resolve()  # a link stays a link
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(_usual_mode(target))
        temporary.replace(target)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise ZerokitError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            hint="Name a file in a folder you may write to",
        ) from None


def _usual_mode(path: Path) -> int:
    """The mode of the file that is replaced, or that which `open` would have given a new one."""
    if path.exists():
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
