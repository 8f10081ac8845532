"""Finds the local files that a name stands for, their format, and opens them.

A name is a file, a pattern, or a folder. In a folder with a file for each split, only the requested split
counts.
"""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
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
"""Prefix of names of data that zerokit ships."""
_DEMO = Path(__file__).parent / "demo"


def is_builtin(source: str | Sequence[str]) -> bool:
    """Whether a source is data that zerokit ships."""
    return isinstance(source, str) and source.startswith(BUILTIN)


@dataclass(frozen=True)
class FileFormat:
    kind: str
    """``json``, ``csv``, ``text``, ``parquet`` or ``arrow``."""
    separator: str | None = None
    """Between the columns of a text table."""


_JSON, _CSV = FileFormat("json"), FileFormat("csv", ",")
TABLES = ("parquet", "arrow")
"""Kinds of files with typed columns; the others are text."""
_FORMATS = {
    **{".jsonl": _JSON, ".json": _JSON, ".ndjson": _JSON, ".csv": _CSV, ".tsv": FileFormat("csv", "\t")},
    **{".parquet": FileFormat("parquet"), ".arrow": FileFormat("arrow"), ".txt": FileFormat("text")},
}
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
"""Endings that errors name."""
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}
"""Ending after that of a text file -> the module that opens it; parquet and arrow compress inside."""
_DAMAGE = {"gzip": "zlib:error", "lzma": "lzma:LZMAError", "zstandard": "zstandard:ZstdError"}
"""What these modules raise for damaged files, in addition to OSError and EOFError."""
_NO_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files that `datasets` saves next to data; its computed results (``cache-*.arrow``) are there, too."""
_ABOUT_DATA = re.compile(r"(?:readme|licen[cs]e|copying|notice|changelog|citation)(?![a-z])")
"""Beginnings of names of texts about the data."""

_SPLITS = (("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing", "eval", "evaluation"))
"""Names of splits in file names, as in `datasets` (data_files.py SPLIT_KEYWORDS)."""


def format_of(file: Path) -> FileFormat | None:
    """The format by the file's ending; None if unknown."""
    endings = [ending.lower() for ending in file.suffixes[-2:]]
    if endings and endings[-1] in _COMPRESSED:
        found = _FORMATS.get(endings[0]) if len(endings) > 1 else None
        return None if found is None or found.kind in TABLES else found
    return _FORMATS.get(endings[-1]) if endings else None


def opened(file: Path, mode: str = "rb", **options: Any) -> IO[Any]:
    """Open a file, decompressed."""
    module = _COMPRESSED.get(file.suffix.lower())
    if module is None:
        return file.open(mode, **options)
    found: IO[Any] = import_module(module).open(file, mode, **options)
    return found


@contextmanager
def report_read_errors(file: Path) -> Iterator[None]:
    """Turn errors of reading `file` in this context into DataErrors with its name."""
    module = _COMPRESSED.get(file.suffix.lower())
    damage = [resolve_name(_DAMAGE[module])] if module in _DAMAGE else []
    try:
        yield
    except (OSError, EOFError, *damage) as error:
        if module is None or getattr(error, "errno", None) is not None:  # of the system, not of what is in it
            raise DataError(str(error), where=file, hint="Check that it can be read") from None
        raise DataError(
            f"the file is damaged or cut off: {error}", where=file, hint="Copy or download it again"
        ) from None


@contextmanager
def opened_text(file: Path, newline: str | None) -> Iterator[IO[str]]:
    """A file as text without a byte order mark. DataError if it is damaged or not UTF-8."""
    with report_read_errors(file):
        _refuse_wide_characters(file)
        try:
            with opened(file, "rt", encoding="utf-8-sig", newline=newline) as text:
                yield text
        except UnicodeDecodeError as error:
            _refuse_line(file)
            raise DataError(str(error), where=file, hint="Save it as UTF-8") from None


def numbered_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and content of each line that is not blank, without line end. Raises DataError."""
    with report_read_errors(file):
        _refuse_wide_characters(file)
        with opened(file) as content:
            for number, line in enumerate(content, start=1):
                text = line.removeprefix(BOM_UTF8) if number == 1 else line
                if text and not text.isspace():
                    yield number, text.removesuffix(b"\n")


def decoded(line: bytes, where: str) -> str:
    """A line as text; DataError if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(str(error), where=where, hint="Save it as UTF-8") from None


def _refuse_line(file: Path) -> None:
    """Raise DataError for the first line that is not UTF-8."""
    with opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            decoded(line, f"{file}:{number}")


def _refuse_wide_characters(file: Path) -> None:
    with opened(file) as content:
        start: bytes = content.read(64)
    has_mark = start.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    # Without a mark: every second byte is zero, but not all are.
    halves = start[::2], start[1::2]
    is_wide = len(start) >= 8 and any(start) and not all(any(half) for half in halves)
    if has_mark or is_wide:
        raise DataError("the file is not UTF-8 but UTF-16 or UTF-32", where=file, hint="Save it as UTF-8")


def local_files(name: str, where: str, split: str | None = "train") -> list[Path]:
    """The files that `name` stands for; empty if it is not local.

    Args:
        split: the split to read of a folder whose files name their splits; None for all files.

    Raises:
        DataError: no file, none of the split, or no valid name on the Hub.
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
        raise DataError(f"'{name}' is neither a file nor a Hub data set", where=where, hint="Check the spelling")
    return []


def other_split_files(sources: Sequence[str], where: str, split: str = "train") -> list[Path]:
    """Files of other splits in folders, relative to the folder if it is the only source."""
    folders = [folder for name in sources if (folder := Path(name).expanduser()).is_dir()]
    files = [
        (folder, file) for folder in folders for file in _of_split(folder, _in_folder(folder, where), split, where)[1]
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
            f"the folder '{folder}' has no data files", where=where, hint=f"Put {', '.join(ENDINGS)} files in it"
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
    """Refuse special files and links to missing files. Other links may lead anywhere.

    git-annex and DVC keep the content of files in a store elsewhere, and fetch it later.
    """
    if (reason := unreadable_reason(file)) is not None:
        raise DataError(f"'{file}' {reason}", where=where, hint="Name a regular file")
    if _is_dangling(file):
        hint = "Fetch or restore the file, or remove the link"
        raise DataError(f"'{file}' is a link to a missing file", where=where, hint=hint)


def _below(folder: Path) -> Iterator[Path]:
    """All files in a folder, also through links, except hidden ones."""
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


def _of_split(folder: Path, files: list[Path], split: str | None, where: str) -> tuple[list[Path], list[Path]]:
    """The files of a split, and the others; DataError if there are none of the split.

    Files that name no split belong to training; if no file names a split, all belong to each. The test split
    serves for validation if there is nothing else for it.
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
            f"no file in '{folder}' is by its name of split '{split}'", where=where, hint=did_you_mean(split, there)
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
    """Whether a file, or a folder that contains it, is named by one of these words.

    No letter may be next to the word, numbers may (``train2017``).
    """
    words = "|".join(re.escape(name.lower()) for name in names)
    text = str(file.relative_to(folder)).lower()
    return re.search(rf"(?<![a-z])(?:{words})(?:(?<!\d)|(?!\d))(?![a-z])", text) is not None


def find_files(sources: str | Sequence[str], where: str, split: str | None = "train") -> list[Path]:
    """The files of `sources`; empty for one name that may be on the Hub. ``builtin:NAME`` is a folder of this
    package.

    Raises:
        DataError: one of several is not a file, the built-in name is unknown, or as :func:`local_files`.
    """
    sources = [sources] if isinstance(sources, str) else sources
    if len(sources) == 1 and is_builtin(sources[0]):
        return local_files(str(_builtin_folder(sources[0], where)), where, split)
    found = [local_files(name, where, split) for name in sources]
    missing = [name for name, files in zip(sources, found, strict=True) if not files]
    if missing and len(sources) > 1:
        raise DataError(f"no such file: '{missing[0]}'", where=where, hint="Check the paths; only files can be listed")
    return [file for files in found for file in files]


def _builtin_folder(source: str, where: str) -> Path:
    name = source.removeprefix(BUILTIN)
    names = sorted(folder.name for folder in _DEMO.iterdir() if folder.is_dir())
    if name not in names:
        raise DataError(f"no built-in data set '{name}'", where=where, hint=did_you_mean(name, names))
    return _DEMO / name


def common_format(files: list[Path], where: str) -> FileFormat:
    """The common format of files. DataError if unknown, different, or without a decompressor."""
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
            "zstandard is not installed, which reads .zst files", where=where, hint="Run pip install zstandard"
        )
    (found,) = formats
    assert found is not None
    return found
