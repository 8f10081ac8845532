"""Writes safetensors files block by block, and reads their headers, without torch.

The library's own writer needs all of a file in memory. The format: 8 bytes with the header's length, a JSON
header, and the elements of all tensors (https://github.com/huggingface/safetensors, section Format).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from zerokit.checkpoint.tensors import NamedTensor, Piece
from zerokit.checkpoint.torch_file import ELEMENT_TYPES, Storage
from zerokit.documents import unreadable_reason
from zerokit.errors import CheckpointError
from zerokit.files import new_file

if TYPE_CHECKING:
    from zerokit.checkpoint.element_reader import Block

_NAMES = {element.safetensors_name: dtype for dtype, element in ELEMENT_TYPES.items()}


def write_safetensors(
    file: Path, tensors: Sequence[NamedTensor], blocks: Callable[[NamedTensor], Iterable[Block]]
) -> str:
    """Write a complete file or none.

    Returns:
        its SHA-256, in hexadecimal.

    Raises:
        ZerokitError: it cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": ELEMENT_TYPES[tensor.dtype].safetensors_name,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with new_file(file) as opened:
        for begin_of_file in (len(text).to_bytes(8, "little"), text):
            digest.update(begin_of_file)
            opened.write(begin_of_file)
        for tensor in tensors:
            for block in blocks(tensor):
                digest.update(block.data)
                opened.write(block.data)
    return digest.hexdigest()


def read_safetensors(file: Path) -> dict[str, NamedTensor]:
    """The tensors of a file by name. CheckpointError if it is not a regular file, or is damaged or cut short."""
    if (reason := unreadable_reason(file)) is not None:
        raise CheckpointError(reason, where=file, hint="Copy or save it again")
    try:
        with file.open("rb") as opened:
            begin, header = read_header(opened)
        storage = Storage(file, "", begin, file.stat().st_size - begin, None)
        return {name: _tensor(name, entry, storage) for name, entry in header.items()}
    except (OSError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"is damaged or cut short ({error})", where=file, hint="Copy or save it again") from None


_MOST_OF_HEADER = 100 << 20
"""Bytes; the library has the same limit."""


def read_header(opened: BinaryIO) -> tuple[int, dict[str, Any]]:
    """The offset of the elements in bytes, and the header's entry of each tensor by name.

    Raises:
        ValueError: it ends within its header, or the header is no JSON object.
        RecursionError: the header is nested too deeply.
    """
    begin = 8 + int.from_bytes(opened.read(8), "little")
    if begin > min(os.fstat(opened.fileno()).st_size, _MOST_OF_HEADER):
        raise ValueError("it ends within its header")
    header = json.loads(opened.read(begin - 8))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    return begin, header


def _tensor(name: str, entry: dict[str, Any], storage: Storage) -> NamedTensor:
    dtype = _NAMES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    shape = tuple(map(int, entry["shape"]))
    tensor = NamedTensor(name, dtype, shape, (Piece(storage, begin, math.prod(shape)),))
    if not 0 <= begin <= end <= storage.nbytes or end - begin != tensor.nbytes:
        raise ValueError(f"'{name}' exceeds the file")
    return tensor
