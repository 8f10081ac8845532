"""Which local files a name stands for, what format they have, and how they are opened.

A name is a file, a pattern, or a folder: of one file for each split, as data sets are handed on, those of the
split that is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any

from zerokit.documents import unreadable_reason
from zerokit.errors import DataError, did_you_mean
from zerokit.hub import is_hub_id

BUILTIN = "builtin:"
"""Begins the names of data that zerokit ships."""
_DEMO = Path(__file__).parent / "demo"


def is_builtin(source: str | Sequence[str]) -> bool:
    """Whether data have such a name."""
    return isinstance(source, str) and source.startswith(BUILTIN)


@dataclass(frozen=True)
class FileFormat:
    """How files are read."""

    kind: str
    """``json``, ``csv``, ``text``, ``parquet`` or ``arrow``."""
    separator: str | None = None
    """Between the columns of a table that is text."""


_JSON, _CSV = FileFormat("json"), FileFormat("csv", ",")
TABLES = ("parquet", "arrow")
"""Kinds of files that have typed columns; the others are text."""
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
_ABOUT_DATA = re.compile(r"(?:readme|licen[cs]e|copying|notice|changelog|citation)(?![a-z])")
"""How texts begin to be called that say something of the data beside them."""

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
        return None if found is None or found.kind in TABLES else found
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


def local_files(name: str, where: str, split: str | None = "train") -> list[Path]:
    """The files that `name` stands for, or none if it is not local.

    Args:
        name: of a file or a folder, or a pattern.
        where: its place in the user's input, for errors.
        split: of a folder whose files say which split they are of, what is read; None: all of them.

    Raises:
        DataError: there are none where it says, or none of the split, or it can be no name on the Hub.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _of_split(path, _in_folder(path, where), split, where)[0]
    if path.is_file():
        _refuse_parts(split, where)
        _check_regular(path, where)
        return [path]
    if any(sign in name for sign in "*?["):
        _refuse_parts(split, where)
        root = Path(path.anchor)
        found = root.glob(str(path.relative_to(root)))
        if not (files := sorted(file for file in found if file.is_file() or _is_dangling(file))):
            raise DataError(f"no file is called like '{name}'", where=where, hint="Check the pattern")
        for file in files:
            _check_regular(file, where)
        return files
    if format_of(path) is not None or name.startswith(("/", "./", "../", "~")):
        raise DataError(f"no such file: '{name}'", where=where, hint="Check the path")
    if not is_hub_id(name):
        raise DataError(
            f"'{name}' is neither a file nor a Hub data set", where=where, hint="Check the spelling"
        )
    return []


def left_out(sources: Sequence[str], where: str, split: str = "train") -> list[Path]:
    """The files of folders that :func:`local_files` leaves out, because they are of other splits.

    Returns:
        their paths, relative to the folder if that is all of `sources`.
    """
    folders = [folder for name in sources if (folder := Path(name).expanduser()).is_dir()]
    files = [
        (folder, file)
        for folder in folders
        for file in _of_split(folder, _in_folder(folder, where), split, where)[1]
    ]
    return [file if sources[1:] else file.relative_to(folder) for folder, file in files]


def _in_folder(folder: Path, where: str) -> list[Path]:
    """The data files of a folder, or of the folders in it."""
    files = sorted(file for file in _below(folder) if _is_data(file))
    for file in files:
        if file.is_symlink():
            _check_regular(file, where)
    if not files:
        raise DataError(
            f"the folder '{folder}' has no data files",
            where=where,
            hint=f"Put {', '.join(ENDINGS)} files in it",
        )
    here = [file for file in files if file.parent == folder]
    if here and (deeper := [file for file in files if file.parent != folder]):
        raise DataError(
            f"the folder '{folder}' has data both beside its folders and in them: "
            f"{here[0].name}, {deeper[0].relative_to(folder)}",
            where=where,
            hint="Name the files or the folder that are meant; a pattern takes both, as '**/*.jsonl' does",
        )
    return files


def _check_regular(file: Path, where: str) -> None:
    """Refuse a file that the kernel makes up, or a link to a missing file. Other links may lead anywhere.

    git-annex and DVC keep the content of files in a store elsewhere, and fetch it later.
    """
    if (reason := unreadable_reason(file)) is not None:
        raise DataError(f"'{file}' {reason}", where=where, hint="Name a regular file")
    if _is_dangling(file):
        hint = "Fetch or restore the file, or remove the link"
        raise DataError(f"'{file}' is a link to a missing file", where=where, hint=hint)


def _below(folder: Path) -> Iterator[Path]:
    """All files in a folder that are not hidden, also those in folders that links lead to."""
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        is_new = (real := os.path.realpath(place)) not in seen  # links may lead in a circle
        seen.add(real)
        folders[:] = [name for name in folders if is_new and not name.startswith(".")]
        yield from (Path(place, name) for name in names if is_new and not name.startswith("."))


def _is_data(file: Path) -> bool:
    found = format_of(file)
    is_computed = file.match("cache-*.arrow") and (file.parent / "dataset_info.json").exists()
    is_about_data = found is not None and found.kind == "text" and _ABOUT_DATA.match(file.name.lower())
    is_none = is_computed or is_about_data or file.name in _NO_DATA
    return found is not None and not is_none and (file.is_file() or _is_dangling(file))


def _is_dangling(file: Path) -> bool:
    return file.is_symlink() and not file.exists()


def _of_split(
    folder: Path, files: list[Path], split: str | None, where: str
) -> tuple[list[Path], list[Path]]:
    """Those of a split, and the others.

    Files that name no split belong to training; where none names any they are of every split. What is
    tested on is validated on where there is nothing else for that.

    Raises:
        DataError: there are none of this split.
    """
    if split is None:
        return files, []
    _refuse_parts(split, where)
    named = {names[0]: [file for file in files if _is_of(file, folder, names)] for names in _SPLITS}
    of_some = set().union(*named.values())
    unnamed = [file for file in files if file not in of_some]
    asked = next((names[0] for names in _SPLITS if split.lower() in names), None)
    if asked is None:
        chosen = [file for file in files if _is_of(file, folder, [split])]
    elif asked == "train" or unnamed == files:
        chosen = named[asked] + unnamed
    else:
        chosen = named[asked] or (named["test"] if asked == "validation" else [])
    if not chosen:
        there = [name for name, some in named.items() if some or (name == "train" and unnamed)]
        raise DataError(
            f"no file in '{folder}' is by its name of split '{split}'",
            where=where,
            hint=did_you_mean(split, there),
        )
    taken = set(chosen)
    return [file for file in files if file in taken], [file for file in files if file not in taken]


def _refuse_parts(split: str | None, where: str) -> None:
    if split is not None and any(sign in split for sign in "[]+"):
        raise DataError(
            f"split '{split}' is of parts, which only data sets of the Hub have",
            where=where,
            hint="Name one split, or list the files that are meant",
        )


def _is_of(file: Path, folder: Path, names: Sequence[str]) -> bool:
    """Whether a file, or a folder that it is in, is called by one of these words.

    No letter stands beside the word, numbers may (``train2017``).
    """
    words = "|".join(re.escape(name.lower()) for name in names)
    text = str(file.relative_to(folder)).lower()
    return re.search(rf"(?<![a-z])(?:{words})(?:(?<!\d)|(?!\d))(?![a-z])", text) is not None


def given_files(sources: str | Sequence[str], where: str, split: str | None = "train") -> list[Path]:
    """The files that `sources` stand for; none for one name that may be the Hub's.

    ``builtin:NAME`` is a folder of this package.

    Raises:
        DataError: one of several is no file, no built-in data has the name, or as of :func:`local_files`.
    """
    sources = [sources] if isinstance(sources, str) else sources
    if len(sources) == 1 and is_builtin(sources[0]):
        return local_files(str(_builtin_folder(sources[0], where)), where, split)
    found = [local_files(name, where, split) for name in sources]
    missing = [name for name, files in zip(sources, found, strict=True) if not files]
    if missing and len(sources) > 1:
        raise DataError(
            f"no such file: '{missing[0]}'", where=where, hint="Check the paths; only files can be listed"
        )
    return [file for files in found for file in files]


def _builtin_folder(source: str, where: str) -> Path:
    name = source.removeprefix(BUILTIN)
    names = sorted(folder.name for folder in _DEMO.iterdir() if folder.is_dir())
    if name not in names:
        raise DataError(f"no built-in data set '{name}'", where=where, hint=did_you_mean(name, names))
    return _DEMO / name


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
        named = list(formats.values())[:2]
        common = os.path.commonpath([file.parent.absolute() for file in named])
        one, other = (os.path.relpath(file, common) for file in named)
        raise DataError(
            f"files of different formats: {one}, {other}",
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
