"""Append-only files through which the processes of one rehearsal communicate.

Entries are never removed, so that a rank that starts later finds all earlier ones.
"""

from __future__ import annotations

import json
import os
import struct
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_LENGTHS = struct.Struct(">IQ")


class Entry(NamedTuple):
    """One entry of a journal, and the place of its payload in the file."""

    name: str
    words: tuple[str, ...]
    start: int
    size: int


class Journal:
    """Written by one process, its owner; each reader has an object of its own and reads on where it was."""

    def __init__(self, folder: Path, owner: str | int) -> None:
        self._file = folder / f"journal-{owner}"
        self._writes_to: int | None = None
        self._end = 0
        self.entries: dict[str, Entry] = {}
        """By name; of several with one name, the last."""
        self.of_kind: defaultdict[str, list[Entry]] = defaultdict(list)
        """In order, by the part of their names before the first dot."""

    def write(self, name: str, *words: str, payload: bytes = b"") -> None:
        """Add an entry, at the end of whatever this process has written before."""
        if self._writes_to is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._writes_to = os.open(self._file, flags, 0o600)
        head = json.dumps([name, *words]).encode()
        rest = memoryview(_LENGTHS.pack(len(head), len(payload)) + head + payload)
        while rest:
            rest = rest[os.write(self._writes_to, rest) :]

    def read_on(self) -> None:
        """Read the entries that have been added."""
        try:
            with self._file.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                while size - self._end >= _LENGTHS.size:
                    head_size, payload = _LENGTHS.unpack(os.pread(file.fileno(), _LENGTHS.size, self._end))
                    start = self._end + _LENGTHS.size + head_size
                    if start + payload > size:
                        return  # it is still being written
                    head = os.pread(file.fileno(), head_size, self._end + _LENGTHS.size)
                    self._add(json.loads(head), start, payload)
                    self._end = start + payload
        except FileNotFoundError:
            return

    def _add(self, head: list[str], start: int, size: int) -> None:
        name, *words = head
        entry = Entry(name, tuple(words), start, size)
        self.entries[name] = entry
        self.of_kind[name.partition(".")[0]].append(entry)

    def last(self, kind: str) -> Entry | None:
        """The last entry of a kind, as of :attr:`of_kind`."""
        return self.of_kind[kind][-1] if self.of_kind[kind] else None

    def payload(self, entry: Entry) -> bytes:
        """What was written with `entry`."""
        with self._file.open("rb") as file:
            file.seek(entry.start)
            return file.read(entry.size)
