"""DeepSpeed's hostfile: a line per machine with its number of GPUs."""

from __future__ import annotations

import re
from pathlib import Path

from zerokit.documents import read_bytes
from zerokit.errors import LaunchError, printable

_LINE = re.compile(r"(?P<host>[A-Za-z0-9_][\w.:%-]*)\s+slots\s*=\s*(?P<slots>\d{1,4})\s*(?:#.*)?")
"""A host must not start with a hyphen, because ssh would read an option."""


def read_hostfile(path: str | Path) -> dict[str, int]:
    """The GPUs of each host, in order; the first host runs rank 0.

    Raises:
        DocumentError: the file cannot be read.
        LaunchError: a line is not ``HOST slots=N``, a host is repeated or has no slots, or there is none.
    """
    name = printable(path)
    hosts: dict[str, int] = {}
    for number, line in enumerate(read_bytes(path).decode(errors="replace").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match, where = _LINE.fullmatch(text), f"{name}:{number}"
        if match is None:
            hint = "Write the host and its number of GPUs: worker-1 slots=8"
            raise LaunchError(f"'{text[:80]}' is not HOST slots=N", where=where, hint=hint)
        if match["host"] in hosts:
            hint = "Give each host one line, with all its GPUs"
            raise LaunchError(f"host '{match['host']}' is repeated", where=where, hint=hint)
        if int(match["slots"]) == 0:
            raise LaunchError(f"host '{match['host']}' has no slots", where=where, hint="Leave its line out")
        hosts[match["host"]] = int(match["slots"])
    if not hosts:
        raise LaunchError("names no host", where=name, hint="Write a line for each: worker-1 slots=8")
    return hosts
