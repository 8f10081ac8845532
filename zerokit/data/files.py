"""Which local files a name stands for, what format they have, and how they are opened.

A name is a file, a pattern, or a folder: of one file for each split, as data sets are handed on, those of the
split that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any

from zerokit.errors import DataError
from zerokit.hub import is_hub_id


@dataclass(frozen=True)
class FileFormat:
    """How `datasets` reads files."""

    builder: str
    """Its name for them."""
    separator: str | None = None
    """Between the columns of a table that is text."""


_JSON, _CSV = FileFormat("json"), FileFormat("csv", ",")
_FORMATS = {
    **{".jsonl": _JSON, ".json": _JSON, ".ndjson": _JSON, ".csv": _CSV, ".tsv": FileFormat("csv", "\t")},
    **{".parquet": FileFormat("parquet"), ".arrow": FileFormat("arrow"), ".txt": FileFormat("text")},
}
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
"""Those that errors name."""
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}
"""May follow the ending of a text -> the module that opens it; parquet and arrow are compressed inside."""
_DAMAGE = {"gzip": "zlib:error", "lzma": "lzma:LZMAError", "zstandard": "zstandard:ZstdError"}
"""What these modules raise of damaged files, beside OSError and EOFError."""
_NO_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""What `datasets` saves beside data; what it has computed of them lies there, too (``cache-*.arrow``)."""

_SPLITS = (
    ("train", "training"),
    ("validation", "valid", "val", "dev"),
    ("test", "testing", "eval", "evaluation"),
)
"""What the files of a split are called, as `datasets` has it (data_files.py SPLIT_KEYWORDS)."""


def format_of(file: Path) -> FileFormat | None:
    """By its ending; None of one that is not known."""
    endings = [ending.lower() for ending in file.suffixes[-2:]]
    if endings and endings[-1] in _COMPRESSED:
        found = _FORMATS.get(endings[0]) if len(endings) > 1 else None
        return None if found is None or found.builder in ("parquet", "arrow") else found
    return _FORMATS.get(endings[-1]) if endings else None


def opened(file: Path, mode: str = "rb", **options: Any) -> IO[Any]:
    """A file as it is before it was compressed."""
    module = _COMPRESSED.get(file.suffix.lower())
    if module is None:
        return file.open(mode, **options)
    found: IO[Any] = import_module(module).open(file, mode, **options)
    return found


@contextmanager
def faults_named(file: Path) -> Iterator[None]:
    """Raise DataError with the name of the file where what is read of it within cannot be read."""
    module = _COMPRESSED.get(file.suffix.lower())
    damage = [resolve_name(_DAMAGE[module])] if module in _DAMAGE else []
    try:
        yield
    except (OSError, EOFError, *damage) as error:
        if module is None or getattr(error, "errno", None) is not None:  # of the system, not of what is in it
            raise DataError(str(error), where=str(file), hint="Check that it can be read") from None
        raise DataError(
            f"the file is damaged or cut off: {error}", where=str(file), hint="Copy or download it again"
        ) from None


def local_files(name: str, where: str, split: str = "train") -> list[Path]:
    """The files that `name` stands for, or none if it is not local.

    Args:
        name: of a file or a folder, or a pattern.
        where: its place in the user's input, for errors.
        split: of a folder whose files say which split they are of, what is read.

    Raises:
        DataError: there are none where it says, or it can be no name on the Hub.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        return _of_split(path, _in_folder(path, where), split)[0]
    if any(sign in name for sign in "*?["):
        root = Path(path.anchor)
        if not (files := sorted(one for one in root.glob(str(path.relative_to(root))) if one.is_file())):
            raise DataError(f"no file is called like '{name}'", where=where, hint="Check the pattern")
        return files
    if format_of(path) is not None or name.startswith(("/", "./", "../", "~")):
        raise DataError(f"no such file: '{name}'", where=where, hint="Check the path")
    if not is_hub_id(name):
        raise DataError(
            f"'{name}' is neither a file nor a Hub data set", where=where, hint="Check the spelling"
        )
    return []


def left_out(sources: Sequence[str], where: str, split: str = "train") -> list[Path]:
    """The files of folders that :func:`local_files` leaves out, because they are of other splits."""
    folders = [Path(name).expanduser() for name in sources]
    return [
        file
        for folder in folders
        if folder.is_dir()
        for file in _of_split(folder, _in_folder(folder, where), split)[1]
    ]


def _in_folder(folder: Path, where: str) -> list[Path]:
    """The data files of a folder; where it has none, those of the folders in it."""
    for pattern in ("*", "**/*"):
        files = sorted(file for file in folder.glob(pattern) if _is_data(file, folder))
        if files:
            return files
    raise DataError(
        f"the folder '{folder}' has no data files",
        where=where,
        hint=f"Put {', '.join(ENDINGS)} files in it",
    )


def _is_data(file: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    is_computed = file.match("cache-*.arrow") and (file.parent / "dataset_info.json").exists()
    return (
        not (is_hidden or is_computed)
        and file.name not in _NO_DATA
        and format_of(file) is not None
        and file.is_file()
    )


def _of_split(folder: Path, files: list[Path], split: str) -> tuple[list[Path], list[Path]]:
    """Those of a split, and the others.

    Files that name no split belong to training. Where none says that it is of this split, those that are of
    another are left out all the same, unless that leaves nothing.
    """
    groups: list[tuple[str, ...]] = [names for names in _SPLITS if _says(split, names)]
    if not any(split in names for names in groups):
        groups.insert(0, (split,))
    if groups[-1] == _SPLITS[1]:
        groups.append(_SPLITS[2])  # held out, too
    for group in groups:
        if any(_is_of(file, folder, group) for file in files):
            others = [name for names in _SPLITS if names != group for name in names]
            is_trained_on = _SPLITS[0] in groups
            read = [
                file
                for file in files
                if _is_of(file, folder, group) or (is_trained_on and not _is_of(file, folder, others))
            ]
            break
    else:
        others = [name for names in _SPLITS if names not in groups for name in names]
        read = [file for file in files if not _is_of(file, folder, others)] or files
    return read, [file for file in files if file not in read]


def _is_of(file: Path, folder: Path, names: Sequence[str]) -> bool:
    """Whether a file, or a folder that it is in, is called by one of these words."""
    return _says(str(file.relative_to(folder)), names)


def _says(text: str, names: Sequence[str]) -> bool:
    """Whether one of these words is in a text: no letter stands beside it, numbers may (``train2017``)."""
    words = "|".join(re.escape(name.lower()) for name in names)
    return re.search(rf"(?<![a-z])(?:{words})(?:(?<!\d)|(?!\d))(?![a-z])", text.lower()) is not None


def given_files(sources: Sequence[str], where: str, split: str = "train") -> list[Path]:
    """The files that `sources` stand for; none for one name that may be the Hub's.

    Raises:
        DataError: one of several is no file, or as of :func:`local_files`.
    """
    found = {name: local_files(name, where, split) for name in sources}
    missing = [name for name, files in found.items() if not files]
    if missing and len(sources) > 1:
        raise DataError(
            f"no such file: '{missing[0]}'", where=where, hint="Check the paths; only files can be listed"
        )
    return [file for files in found.values() for file in files]


def common_format(files: list[Path], where: str) -> FileFormat:
    """The format of files.

    Raises:
        DataError: it is none that is known, they are of several, or nothing here reads how they are
            compressed.
    """
    formats = {format_of(file): file for file in files}
    if (odd := formats.get(None)) is not None:
        raise DataError(
            f"'{odd}' ends in '{odd.suffix}', which is no known data format",
            where=where,
            hint=f"Use one of {', '.join(ENDINGS)}, each text also compressed: {', '.join(_COMPRESSED)}",
        )
    if len(formats) > 1:
        one, other, *_ = formats.values()
        raise DataError(
            f"files of different formats: {one.name}, {other.name}",
            where=where,
            hint="Convert them to one format, or list those that are meant",
        )
    if any(file.suffix.lower() == ".zst" for file in files) and find_spec("zstandard") is None:
        raise DataError(
            "zstandard is not installed, which reads .zst files",
            where=where,
            hint="Run pip install zstandard",
        )
    (found,) = formats
    assert found is not None
    return found
