"""Writes files for `torch.load`, block by block and without torch.

Names of classes and functions are written as :mod:`zerokit.checkpoint.torch_file` has read them; none is
imported. The format is that of torch/serialization.py (`_save`).
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.element_reader import BLOCK_ELEMENTS, ElementReader, converter
from zerokit.checkpoint.tensors import NamedTensor, Piece
from zerokit.checkpoint.torch_file import ITEMSIZES, STORAGES, Record, Size, Storage, StoredTensor, TensorSize
from zerokit.files import new_file

if TYPE_CHECKING:
    from zerokit.checkpoint.element_reader import Block

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
_NUMBER = struct.Struct("<I")
"""Number of a memo entry."""
_WORTH_KEEPING = 12
"""Plain values of this size in bytes are memoized."""


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
        ValueError: it has something else in it, or contains itself.
    """
    pickler = _Pickler()
    try:
        text = b"".join([pickle.PROTO, b"\x02", *pickler.opcodes(content), pickle.STOP])
    except RecursionError:
        raise ValueError("its pickle contains itself") from None
    return Pickled(text, pickler.storages)


def write_archive(file: Path, saved: Pickled, reader: ElementReader) -> None:
    """Write a complete file or none.

    Raises:
        ZerokitError: it cannot be written, or its tensors cannot be read.
    """
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
    """Yield the bytes of a tensor in order.

    Raises:
        CheckpointError: a file of its parts cannot be read.
    """
    import numpy as np

    for part in tensor.parts:
        if isinstance(part, NamedTensor):
            yield from map(converter(part.dtype, tensor.dtype), reader.blocks(part))
            continue
        for begin in range(0, part, BLOCK_ELEMENTS):
            yield np.zeros(min(part - begin, BLOCK_ELEMENTS) * ITEMSIZES[tensor.dtype], np.uint8)


class _Pickler:
    """Makes protocol 2, like torch. Shared objects stay shared, because a small pickle can refer to them
    without end."""

    def __init__(self) -> None:
        self.storages: list[NewTensor] = []
        self._memo: dict[int, tuple[int, Any]] = {}
        """Objects by id, with their memo number; holding them keeps the ids valid."""
        self._keys: dict[tuple[Path, int], int] = {}
        """Keys of storages that are copied, by file and offset."""

    def opcodes(self, value: Any) -> Iterator[bytes]:
        if id(value) in self._memo:
            yield pickle.LONG_BINGET + _NUMBER.pack(self._memo[id(value)][0])
        elif isinstance(value, StoredTensor | NewTensor):
            yield from self._tensor(value)
        elif isinstance(value, type) and issubclass(value, Record):
            yield _named(value.name)
        elif value is None or type(value) in (bool, int, float, str, bytes):
            text = _plain(value)
            yield text
            if len(text) >= _WORTH_KEEPING:
                yield self._keep(value)
        else:
            yield from self._structure(value)
            yield self._keep(value)  # now that it is whole: one that holds itself never is

    def _keep(self, value: Any) -> bytes:
        number = len(self._memo)
        self._memo[id(value)] = number, value
        return pickle.LONG_BINPUT + _NUMBER.pack(number)

    def _structure(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, Record):
            yield from self._record(value)
        elif isinstance(value, OrderedDict):
            yield from (_named("collections.OrderedDict"), pickle.EMPTY_TUPLE, pickle.REDUCE)
            yield from self._items(value)
            if vars(value):
                yield from (*self.opcodes(vars(value)), pickle.BUILD)
        elif isinstance(value, dict):
            yield from (pickle.EMPTY_DICT, *self._items(value))
        elif isinstance(value, Size):
            yield from (_named("torch.Size"), *self.opcodes((tuple(value),)), pickle.REDUCE)
        elif isinstance(value, tuple):
            yield from (pickle.MARK, *self._all(value), pickle.TUPLE)
        elif isinstance(value, list):
            yield from (pickle.EMPTY_LIST, pickle.MARK, *self._all(value), pickle.APPENDS)
        else:
            raise ValueError(f"its pickle contains a {type(value).__name__}")

    def _all(self, values: Iterable[Any]) -> Iterator[bytes]:
        for value in values:
            yield from self.opcodes(value)

    def _items(self, items: Mapping[Any, Any]) -> Iterator[bytes]:
        flat = (one for item in items.items() for one in item)
        yield from (pickle.MARK, *self._all(flat), pickle.SETITEMS)

    def _record(self, record: Record) -> Iterator[bytes]:
        yield from (_named(record.name), *self.opcodes(record.arguments))
        yield pickle.REDUCE if record.called else pickle.NEWOBJ
        if record.elements:
            yield from (pickle.MARK, *self._all(record.elements), pickle.APPENDS)
        if record.items:
            yield from (pickle.MARK, *self._all(one for item in record.items for one in item))
            yield pickle.SETITEMS
        if record.state is not None:
            yield from (*self.opcodes(record.state), pickle.BUILD)

    def _tensor(self, tensor: StoredTensor | NewTensor) -> Iterator[bytes]:
        if isinstance(tensor, StoredTensor):
            key = self._key(tensor.storage)
            offset, stride = tensor.offset // ITEMSIZES[tensor.dtype], tensor.stride
        else:
            key, offset, stride = len(self.storages), 0, _strides(tensor.shape)
            self.storages.append(tensor)
        numel = self.storages[key].nbytes // ITEMSIZES[tensor.dtype]
        yield from (_named("torch._utils._rebuild_tensor_v2"), pickle.MARK, pickle.MARK)
        yield from (*self.opcodes("storage"), _named(_NAMES[tensor.dtype]))
        yield from (*self._all((str(key), "cpu", numel)), pickle.TUPLE, pickle.BINPERSID)
        yield from self._all((offset, tuple(tensor.shape), tuple(stride), False, OrderedDict()))
        yield from (pickle.TUPLE, pickle.REDUCE)

    def _key(self, storage: Storage) -> int:
        where = (storage.file, storage.offset)
        if where not in self._keys:
            self._keys[where] = len(self.storages)
            size = storage.nbytes
            copied = NamedTensor(storage.key, "uint8", (size,), (Piece(storage, 0, size),))
            self.storages.append(NewTensor("uint8", (size,), (copied,)))
        return self._keys[where]


def _plain(value: Any) -> bytes:
    """Opcodes without a memo."""
    text = io.BytesIO()
    pickler = pickle.Pickler(text, protocol=2)
    pickler.fast = True
    pickler.dump(value)
    return text.getvalue()[2:-1]


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
