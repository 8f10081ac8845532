"""Reads dumps of torch's flight recorder: a pickle or JSON file per rank, written when a collective times
out.

Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (`dump`, `dump_json`). Dumps may be untrusted, so
only pickles of plain data are read.
"""

import io
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit import documents
from zerokit.code_origin import is_in_library, is_no_file
from zerokit.documents.pickle_limits import CHECKED_DICT, CheckedDict, guarded
from zerokit.errors import DocumentError
from zerokit.exits.nccl import MOST_RANKS
from zerokit.units import format_bytes

_DUMP = re.compile(r"(?:[Ff]light [Rr]ecorder|debug info|NCCL trace)[^\n]{0,60}? to (?P<path>/[^\s:]{1,300})")
_MOST_BYTES = 4 << 20
"""Maximum size of a dump; a log with several must be explained within seconds."""
_TORCH_FOLDER = "/torch/distributed/"


def dumps(text: str) -> list[str]:
    """A line for each readable dump that a log names, or one line about unreadable ones."""
    paths = list(dict.fromkeys(match["path"].rstrip(".,") for match in _DUMP.finditer(text)))
    found = {path: _read(path) for path in paths[:MOST_RANKS]}
    read = [f"{path}: {_first_open(entries)}" for path, entries in found.items() if isinstance(entries, list)]
    others = [
        f"the flight recorder's dumps, such as {path}, {why}: torchfrtrace reads them"
        for path, why in found.items()
        if isinstance(why, str)
    ]
    return read or others[:1]


def _read(path: str) -> list[Any] | str:
    """The entries of a dump, or the reason why it cannot be read."""
    if not documents.is_file(Path(path)):
        return "are not on this machine"
    try:
        content = documents.read_bytes(Path(path), max_bytes=_MOST_BYTES)
        if len(content) > _MOST_BYTES:
            return f"are larger than {format_bytes(_MOST_BYTES)}"
        if content.startswith(b"\x80"):
            data = _plain_data(content)
        else:
            data = documents.parse_document(content, path, max_bytes=_MOST_BYTES).data
    except DocumentError:
        return "are no JSON"
    except ValueError as error:
        return str(error)
    entries = data.get("entries") if isinstance(data, dict) else None
    return entries if isinstance(entries, list) else "have no entries"


def _plain_data(content: bytes) -> Any:
    """Load a pickle of numbers, strings, lists and dicts. ValueError if it has something else, or is damaged."""
    try:
        return _PlainUnpickler(guarded(io.BytesIO(content))).load()
    except Exception:  # of a damaged pickle, whatever it leads to
        raise ValueError("are pickles of more than plain data, or damaged") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The only class that remains after :func:`guarded`."""
        if f"{module}.{name}" != CHECKED_DICT:
            raise ValueError
        return CheckedDict


def _first_open(entries: list[Any]) -> str:
    calls = [entry for entry in entries if isinstance(entry, Mapping)]
    # Entries of gloo have no state "completed".
    open_ = [entry for entry in calls if entry.get("state") != "completed" and not entry.get("retired")]
    if open_:
        return f"{_collective(open_[0])} was {_text(open_[0].get('state'))}{_where(open_[0])}"
    last = f", the last of them {_collective(calls[-1])}{_where(calls[-1])}" if calls else ""
    return f"all {len(entries)} collectives were done{last}"


def _collective(entry: Mapping[str, Any]) -> str:
    sizes = entry.get("input_sizes")
    rows = sizes if isinstance(sizes, list) and len(sizes) < 30 else []
    are_sizes = all(isinstance(row, list) and all(isinstance(one, int) for one in row) for row in rows)
    of = f" of {rows}" if rows and are_sizes and len(str(rows)) < 60 else ""
    number = _text(entry.get("collective_seq_id", entry.get("seq_id")))
    return f"collective {number} ({_text(entry.get('profiling_name'))}{of})"


def _text(value: Any) -> str:
    return str(value)[:300] if isinstance(value, str | int) else "?"


def _where(entry: Mapping[str, Any]) -> str:
    """The line of the script, not of torch's wrappers."""
    frames = entry.get("frames")
    lines = [
        (_text(frame["filename"]), _text(frame.get("line")))
        for frame in (frames if isinstance(frames, list) else [])
        if isinstance(frame, Mapping) and "filename" in frame
    ]
    scripts = [line for line in lines if not (is_no_file(line[0]) or is_in_library(line[0]))]
    others = [line for line in lines if _TORCH_FOLDER not in line[0]]
    return "".join(f" at {file}:{number}" for file, number in (scripts or others or lines)[:1])
