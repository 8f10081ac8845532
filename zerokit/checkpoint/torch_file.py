"""Reads files of `torch.save` without torch and without running code; tensors stay on disk.

The file is a zip archive with uncompressed members: a pickle (``data.pkl``) of everything but the elements of
tensors, and a member per storage (torch/serialization.py, ``_save``). Nothing that the pickle names is
imported: allowed names become inert :class:`Record` objects, other names are refused.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from zerokit.documents import unreadable_reason
from zerokit.documents.pickle_limits import (
    CHECKED_DICT,
    CHECKED_SET,
    CheckedDict,
    CheckedOrderedDict,
    PickleLimitError,
    guarded,
)
from zerokit.errors import CheckpointError
from zerokit.tables import table_of


class ElementType(NamedTuple):
    """An element type of tensors, as torch and safetensors store it."""

    itemsize: int
    """Bytes per element."""
    torch_storage: str
    """torch's storage class."""
    safetensors_name: str


_TABLE = table_of(__file__)
ELEMENT_TYPES = {dtype: ElementType(*row) for dtype, row in _TABLE["element_types"].items()}
"""torch's name of an element type -> how files store it."""
ITEMSIZES = {dtype: element.itemsize for dtype, element in ELEMENT_TYPES.items()}
STORAGES = {element.torch_storage: dtype for dtype, element in ELEMENT_TYPES.items()}
STORAGES["UntypedStorage"] = "uint8"
_ALLOWED_NAMES = frozenset[str](_TABLE["allowed_names"])
"""Names of classes and functions that a pickle may load.

zerokit calls none of them: a call becomes a record. DeepSpeed's engine saves objects of its own with the
tensors (runtime/engine.py, `_common_checkpoint_state`).
"""
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
"""Header of a zip member (PKWARE's APPNOTE.TXT, 4.3.7)."""


@dataclass(frozen=True)
class Storage:
    """A storage that tensors share: a member of the archive."""

    file: Path
    key: str
    offset: int
    """Bytes from the start of the file."""
    nbytes: int
    crc: int | None
    """The CRC-32 from when it was saved, if the file has it."""


class TensorSize:
    """Sizes that follow from a type and a shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZES[self.dtype]

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype


@dataclass(frozen=True)
class StoredTensor(TensorSize):
    """A tensor whose elements are in a file."""

    storage: Storage
    offset: int
    """Bytes from the start of the storage to its first element."""
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def file(self) -> Path:
        return self.storage.file

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class Record:
    """An object of a pickle: its class or function, and the arguments."""

    name = ""
    state: Any = None
    arguments: tuple[Any, ...]
    called = False
    """True for functions; objects are mostly made without ``__init__``."""
    items: list[tuple[Any, Any]]
    """Items of a dict subclass."""
    elements: list[Any]
    """Elements of a list subclass."""

    def __new__(cls, *arguments: Any, **_: Any) -> Record:
        """Also covers pickles that skip ``__init__``."""
        self = super().__new__(cls)
        self.arguments = arguments
        self.items, self.elements = [], []
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        self.called = True

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        """Add an element of a list."""
        self.elements.append(value)

    def extend(self, values: Any) -> None:
        """Add several elements."""
        self.elements.extend(values)

    def __repr__(self) -> str:
        return f"<{self.name}>"


def record(name: str, *arguments: Any, state: Any = None) -> Record:
    """A record of the class `name` (with its module); without a state, a record of a call."""
    made = record_class(name).__new__(record_class(name), *arguments)
    made.called, made.state = state is None, state
    return made


@cache
def record_class(name: str) -> type[Record]:
    """The record class for a class or function, by its full name."""
    return type(name.rpartition(".")[2], (Record,), {"name": name})


class _Set(Record):
    """A set whose elements are added one by one; equal to one that gets all at once."""

    name = "builtins.set"
    called = True

    def __new__(cls) -> _Set:
        """Make it empty."""
        made = super().__new__(cls, [])
        assert isinstance(made, _Set)
        return made

    def add(self, value: Any) -> None:
        self.arguments[0].append(value)


class Size(tuple[int, ...]):
    """A shape (`torch.Size`)."""

    __slots__ = ()


@dataclass(frozen=True)
class Archive:
    file: Path
    saved_as: str
    """The file's name when it was written, without suffix (``PyTorchFileWriter`` keeps it)."""
    content: Any
    """The saved object, with tensors as :class:`StoredTensor`."""
    storages: Sequence[Storage]
    """Storages of its tensors."""


def read_archive(file: Path) -> Archive:
    """Read a file of `torch.save` except the elements of its tensors.

    Raises:
        CheckpointError: it is no such file, is damaged or cut short, or its pickle names something that no
            checkpoint needs.
    """
    if (reason := unreadable_reason(file)) is not None:
        raise CheckpointError(reason, where=file, hint=_HINT)
    try:
        with file.open("rb") as opened:
            if opened.read(1) == b"\x80":
                _refuse_plain_pickle(file, opened)
            with zipfile.ZipFile(opened) as archive:
                return _Reader(file, archive, opened).read()
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=file, hint=_HINT) from None
    except Exception as error:
        # Errors of zipfile and pickle, and any other error of a damaged pickle.
        problem = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise CheckpointError(
            f"is damaged, cut short, or not written by torch.save ({problem})", where=file, hint=_HINT
        ) from None


_HINT = "Use another checkpoint, or copy the file again"
_MAX_PICKLE_BYTES = 64 << 20
"""Bytes; a hundred thousand tensors take about 20 MB."""
_MAX_BYTEORDER_BYTES = 16
_PLAIN_PICKLES = 5
"""torch before 1.6 wrote: a magic number, the protocol, the machine, the object, the storage keys."""


def _refuse_plain_pickle(file: Path, opened: io.BufferedReader) -> NoReturn:
    """Explain a file of torch before 1.6 or of `pickle`, which is a sequence of pickles."""
    opened.seek(0)
    content = io.BytesIO(opened.read(_MAX_PICKLE_BYTES))
    with suppress(EOFError, pickle.UnpicklingError):
        for _ in range(_PLAIN_PICKLES):
            unpickler = _Unpickler(guarded(content))
            unpickler.file = file
            unpickler.persistent_load = lambda _: None  # type: ignore[method-assign]
            unpickler.load()
    raise ValueError("it is a pickle")


def check_pickles_of(file: Path) -> None:
    """Check that any unpickler can load the file in time and memory proportional to its size.

    It does not check names.

    Raises:
        PickleLimitError: it cannot.
        Exception: of zipfile or pickle, or any other error of a damaged file.
    """
    with file.open("rb") as opened:
        pickled = _pickled(opened)
    for _ in range(_PLAIN_PICKLES):
        unpickler = _AnyUnpickler(guarded(pickled))
        unpickler.persistent_load = lambda _: None  # type: ignore[method-assign]
        unpickler.load()
        if pickled.tell() == len(pickled.getbuffer()):
            return


def _pickled(opened: io.BufferedReader) -> io.BytesIO:
    """The pickle of an archive, or the start of another file, which may consist of pickles."""
    if not zipfile.is_zipfile(opened):
        opened.seek(0)
        return io.BytesIO(opened.read(_MAX_PICKLE_BYTES))
    with zipfile.ZipFile(opened) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise PickleLimitError("it is compressed, so that it may unpack to any size")
        (name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        return io.BytesIO(archive.read(name))


class _Reader:
    def __init__(self, file: Path, archive: zipfile.ZipFile, opened: io.BufferedReader) -> None:
        self._file = file
        self._archive = archive
        self._opened = opened
        self._size = file.stat().st_size
        self._names = archive.namelist()
        (pickled,) = [name for name in self._names if name.endswith("/data.pkl")]
        self._folder = pickled.removesuffix("data.pkl")
        self._storages: dict[str, Storage] = {}
        self._has_crcs = any(member.CRC for member in archive.infolist())
        """torch can leave them out (`torch.serialization.set_crc32_options`)."""

    def read(self) -> Archive:
        order = f"{self._folder}byteorder"
        if order in self._names and self._read(order, _MAX_BYTEORDER_BYTES) != b"little":
            raise CheckpointError("was written on a big-endian machine", where=self._file, hint=_HINT)
        pickled = io.BytesIO(self._read(f"{self._folder}data.pkl", _MAX_PICKLE_BYTES))
        unpickler = _Unpickler(guarded(pickled))
        unpickler.file = self._file
        unpickler.persistent_load = self._typed_storage  # type: ignore[method-assign]
        content = unpickler.load()
        return Archive(self._file, self._folder.removesuffix("/"), content, list(self._storages.values()))

    def _typed_storage(self, saved: Any) -> tuple[Storage, str]:
        """The storage and element type for ``("storage", type, key, location, numel)``."""
        _, kind, key, _, numel = saved
        dtype = STORAGES[kind.name.rpartition(".")[2]]
        if not isinstance(key, str):
            raise ValueError(f"a storage with a {type(key).__name__} for its key")
        if key not in self._storages:
            self._storages[key] = self._find(f"{self._folder}data/{key}")
        storage = self._storages[key]
        if storage.nbytes < numel * ITEMSIZES[dtype]:
            raise ValueError(f"storage {key} has {storage.nbytes:,} bytes for {numel:,} elements")
        return storage, dtype

    def _read(self, name: str, most: int) -> bytes:
        """Read a member of at most `most` bytes."""
        found = self._find(name)
        if found.nbytes > most:
            raise ValueError(f"{name} has {found.nbytes:,} bytes")
        self._opened.seek(found.offset)
        content = self._opened.read(found.nbytes)
        if found.crc not in (None, zlib.crc32(content)):
            raise ValueError(f"Bad CRC-32 for file {name!r}")
        return content

    def _find(self, name: str) -> Storage:
        """Find the bytes of a member."""
        member = self._archive.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        header = _LOCAL_HEADER.unpack(os.pread(self._opened.fileno(), _LOCAL_HEADER.size, member.header_offset))
        offset = member.header_offset + _LOCAL_HEADER.size + header[-2] + header[-1]
        if header[0] != b"PK\x03\x04" or offset + member.file_size > self._size:
            raise ValueError("the file ends within a tensor")
        key = name.rpartition("/")[2]
        return Storage(self._file, key, offset, member.file_size, member.CRC if self._has_crcs else None)


class _Unpickler(pickle.Unpickler):
    file: Path

    def find_class(self, module: str, name: str) -> Any:
        """The record class for a name; nothing is imported."""
        full = _full_name(module, name)
        if full in _REPLACEMENTS:
            return _REPLACEMENTS[full]
        of_torch = module in _OF_TORCH and (name in STORAGES or name in ITEMSIZES)
        if of_torch or full in _ALLOWED_NAMES:
            return record_class(full)
        raise CheckpointError(
            f"its pickle would load '{full}', which may run code and is not in DeepSpeed's checkpoints",
            where=self.file,
            hint="Do not use checkpoints from untrusted sources",
        )


class _AnyUnpickler(_Unpickler):
    """Accepts every name, to find out what the pickle costs to load."""

    def find_class(self, module: str, name: str) -> Any:
        """The record class for a name; nothing is imported."""
        full = _full_name(module, name)
        hashes = {**_CHECKED, "collections.Counter": CheckedOrderedDict, "builtins.set": CheckedDict.fromkeys}
        return hashes.get(full) or type(name, (Record,), {"name": full})


def _full_name(module: str, name: str) -> str:
    """The full name of a class or function; protocol 2 uses the module names of Python 2."""
    return f"{module.replace('__builtin__', 'builtins')}.{name}"


def _tensor(
    typed: tuple[Storage, str], offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> StoredTensor:
    storage, dtype = typed
    if {*map(type, (offset, *shape, *stride))} != {int}:
        raise ValueError("a tensor's shape is not of integers")
    check_shape(shape)
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    within = offset >= 0 and min((*stride, *shape, 0)) >= 0
    if math.prod(shape) and not (within and (last + 1) * ITEMSIZES[dtype] <= storage.nbytes):
        raise ValueError(f"a tensor of {shape} does not fit its storage of {storage.nbytes:,} bytes")
    return StoredTensor(storage, offset * ITEMSIZES[dtype], dtype, tuple(shape), tuple(stride))


def _first(data: Any, *_: Any) -> Any:
    return data


def _of_type(function: Any, _: Any, arguments: tuple[Any, ...], __: Any) -> Any:
    """A tensor with attributes (`torch._tensor._rebuild_from_type_v2`)."""
    if function is not _tensor:
        raise ValueError("a tensor is made in an unknown way")
    return _tensor(*arguments)


def _stage(enum: Any, name: str) -> Any:
    """A ZeRO stage as early releases of Python 3.11 pickle members of enums: `getattr(ZeroStageEnum, "weights")`."""
    if getattr(enum, "name", None) != _STAGE_ENUM or name not in _STAGES:
        raise ValueError("its pickle would look up an attribute")
    return enum(_STAGES[name])


_STAGE_ENUM = "deepspeed.runtime.zero.config.ZeroStageEnum"
_STAGES = {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3}
_MAX_DIMENSIONS, _MAX_SIZE = 64, 2**63


def check_shape(shape: Sequence[int]) -> None:
    """Refuse shapes that no tensor has, whose number of elements would take long to compute.

    Raises:
        ValueError: there are too many dimensions, or one is too large.
    """
    if len(shape) > _MAX_DIMENSIONS or any(size >= _MAX_SIZE for size in shape):
        raise ValueError(f"a tensor of {len(shape)} dimensions, or a size beyond 64 bits")


_OF_TORCH = ("torch", "torch.storage", "torch.cuda")
"""Modules of storages and types."""
_CHECKED: dict[str, Any] = {
    "collections.OrderedDict": CheckedOrderedDict,
    CHECKED_DICT: CheckedDict,
    CHECKED_SET: _Set,
}
"""Replacements for classes that hash their content."""
_REPLACEMENTS = {
    **_CHECKED,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch.Size": Size,
    "builtins.getattr": _stage,
}
"""Replacements for functions of torch."""
