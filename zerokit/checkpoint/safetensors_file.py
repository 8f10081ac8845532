"""Writes a safetensors file a block at a time; the library's own writer takes all of it from memory.

The format: 8 bytes with the length of the header, the header as JSON, and the elements of all tensors
(https://github.com/huggingface/safetensors, section Format).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.files import new_file

if TYPE_CHECKING:
    from zerokit.checkpoint.elements import Block
    from zerokit.checkpoint.tensors import NamedTensor

TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What safetensors calls torch's types."""


def write_safetensors(
    file: Path, tensors: Sequence[NamedTensor], blocks: Callable[[NamedTensor], Iterable[Block]]
) -> str:
    """Write a file whole or not at all.

    Args:
        file: the file.
        tensors: as they are to be in it: name, type and shape.
        blocks: the bytes of each.

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
            "dtype": TYPES[tensor.dtype],
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
