"""Writes files for `torch.load`, block by block and without torch.

Names of classes and functions are written as :mod:`zerokit.checkpoint.torch_file` has read them; none is
imported. The format is that of torch/serialization.py (`_save`).
"""

from __future__ import annotations

import codecs
import copyreg
import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

from zerokit.checkpoint.element_reader import BLOCK_ELEMENTS, Block, ElementReader, converter
from zerokit.checkpoint.tensors import NamedTensor, Piece
from zerokit.checkpoint.torch_file import (
    ITEMSIZES,
    STORAGES,
    Record,
    Size,
    Storage,
    StoredTensor,
    TensorSize,
    record_class,
)
from zerokit.documents.pickle_limits import CheckedDict
from zerokit.files import new_file

_NAMES = {dtype: f"torch.{name}" for name, dtype in STORAGES.items() if name != "UntypedStorage"}
_ALIGNMENT = 64
"""Alignment of tensors in the file in bytes, so that they can be mapped."""
_EXTRA = struct.Struct("<HH")
"""Prefix of a zip extra field: its id and length."""
_PADDING = 0x4246
"""Id of torch's padding field."""
_ZIP64_BYTES = 20
"""Size of the field that zipfile adds with `force_zip64`."""
_LOCAL_HEADER_BYTES = 30
_MEMBER_BYTES = 700
"""Upper bound of a member's overhead: two headers, name and padding."""
_OTHER_MEMBERS = 3


@dataclass(frozen=True)
class NewTensor(TensorSize):
    """A tensor to write: parts of other tensors, and zeros."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[NamedTensor | int, ...] = ()
    """Tensors, which are converted, and numbers of zeros."""


@dataclass(frozen=True)
class Pickled:
    """A pickle that is ready to be written."""

    content: bytes
    storages: list[NewTensor]

    @property
    def nbytes(self) -> int:
        """Upper bound of the file's size."""
        members = len(self.storages) + _OTHER_MEMBERS
        return len(self.content) + sum(one.nbytes for one in self.storages) + members * _MEMBER_BYTES


def make_pickle(content: Any) -> Pickled:
    """Make the pickle of an object.

    Args:
        content: dicts, lists, tuples, numbers, strings, `Record`, and tensors: `StoredTensor` or `NewTensor`.

    Raises:
        ValueError: it has something else in it, or is nested too deeply.
    """
    text = io.BytesIO()
    pickler = _Pickler(text)
    try:
        pickler.dump(content)
    except RecursionError:
        raise ValueError("its pickle is nested too deeply") from None
    return Pickled(text.getvalue(), pickler.storages)


def write_archive(file: Path, saved: Pickled, reader: ElementReader) -> None:
    """Write a complete file or none. ZerokitError if it cannot be written, or its tensors cannot be read."""
    with new_file(file) as opened, zipfile.ZipFile(opened, "w") as archive:

        def write(name: str, blocks: Iterable[bytes | memoryview], alignment: int = 1) -> None:
            member = zipfile.ZipInfo(f"{file.stem}/{name}")
            begin = opened.tell() + _LOCAL_HEADER_BYTES + len(member.filename) + _ZIP64_BYTES + _EXTRA.size
            padding = -begin % alignment
            member.extra = _EXTRA.pack(_PADDING, padding) + bytes(padding)
            with archive.open(member, "w", force_zip64=True) as into:
                for block in blocks:
                    into.write(block)

        write("data.pkl", [saved.content])
        write("byteorder", [b"little"])
        for key, storage in enumerate(saved.storages):
            write(f"data/{key}", (block.data for block in blocks(storage, reader)), _ALIGNMENT)
        write("version", [b"3\n"])


def blocks(tensor: NewTensor, reader: ElementReader) -> Iterator[Block]:
    """Yield the bytes of a tensor in order. CheckpointError if a file of its parts cannot be read."""
    import numpy as np

    for part in tensor.parts:
        if isinstance(part, NamedTensor):
            yield from map(converter(part.dtype, tensor.dtype), reader.blocks(part))
            continue
        for begin in range(0, part, BLOCK_ELEMENTS):
            yield np.zeros(min(part - begin, BLOCK_ELEMENTS) * ITEMSIZES[tensor.dtype], np.uint8)


@dataclass(frozen=True)
class _StorageOf:
    """The storage of a tensor, as the pickle names it."""

    key: int
    dtype: str
    numel: int


_PLAIN = (bool, float, bytes, bytearray, str, tuple, list, dict, set, frozenset, type)
"""Types that `pickle._Pickler` has a method for, by their names."""


class _Pickler(pickle._Pickler):
    """Makes protocol 2, like torch. Nothing that it names is imported: unlike the faster C pickler, this one
    accepts the name of a class."""

    # Not pickle's own table: dill, which datasets imports, replaces methods in it.
    dispatch: ClassVar[Any] = {
        **{kind: getattr(pickle._Pickler, f"save_{kind.__name__}") for kind in _PLAIN},
        **{type(None): pickle._Pickler.save_none, int: pickle._Pickler.save_long},  # type: ignore[attr-defined]
        **{FunctionType: pickle._Pickler.save_global, CheckedDict: pickle._Pickler.save_dict},  # type: ignore[attr-defined]
    }

    def __init__(self, text: io.BytesIO) -> None:
        super().__init__(text, protocol=2)
        self.storages: list[NewTensor] = []
        self._keys: dict[tuple[Path, int], int] = {}
        """Keys of storages that are copied, by file and offset."""

    def persistent_id(self, value: Any) -> Any:
        """What torch writes for a storage."""
        if not isinstance(value, _StorageOf):
            return None
        return "storage", record_class(_NAMES[value.dtype]), str(value.key), "cpu", value.numel

    def reducer_override(self, value: Any) -> Any:
        """Function, arguments, state, elements and items of a value that plain pickle does not know."""
        if isinstance(value, StoredTensor | NewTensor):
            return record_class("torch._utils._rebuild_tensor_v2"), self._tensor(value)
        if isinstance(value, Record):
            kind, items = type(value), iter(value.items) if value.items else None
            made = (kind, value.arguments) if value.called else (copyreg.__newobj__, (kind, *value.arguments))  # type: ignore[attr-defined]
            return *made, value.state, iter(value.elements) if value.elements else None, items
        if isinstance(value, OrderedDict):
            return OrderedDict, (), vars(value) or None, None, iter(value.items())
        return (Size, (tuple(value),)) if isinstance(value, Size) else NotImplemented

    def save_global(self, value: Any, name: str | None = None) -> None:
        """Write the name of a class or function."""
        is_record = isinstance(value, type) and issubclass(value, Record)
        known = value.name if is_record else _GLOBALS.get(value)
        if known is None:
            raise ValueError(f"its pickle contains a {name or value.__name__}")
        self.write(_named(known))  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    def _tensor(self, tensor: StoredTensor | NewTensor) -> tuple[Any, ...]:
        if isinstance(tensor, StoredTensor):
            key = self._key(tensor.storage)
            offset, stride = tensor.offset // ITEMSIZES[tensor.dtype], tensor.stride
        else:
            key, offset, stride = len(self.storages), 0, _strides(tensor.shape)
            self.storages.append(tensor)
        storage = _StorageOf(key, tensor.dtype, self.storages[key].nbytes // ITEMSIZES[tensor.dtype])
        return storage, offset, tuple(tensor.shape), tuple(stride), False, OrderedDict()

    def _key(self, storage: Storage) -> int:
        where = (storage.file, storage.offset)
        if where not in self._keys:
            self._keys[where] = len(self.storages)
            size = storage.nbytes
            copied = NamedTensor(storage.key, "uint8", (size,), (Piece(storage, 0, size),))
            self.storages.append(NewTensor("uint8", (size,), (copied,)))
        return self._keys[where]


_GLOBALS: Mapping[Any, str] = {
    OrderedDict: "collections.OrderedDict",
    Size: "torch.Size",
    bytes: "builtins.bytes",
    codecs.encode: "_codecs.encode",  # by which protocol 2 makes bytes
}


def _named(name: str) -> bytes:
    """Opcodes that load a class or function by its full name."""
    module, _, attribute = name.rpartition(".")
    module = "__builtin__" if module == "builtins" else module  # as protocol 2 calls it
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides[: len(shape)]))
