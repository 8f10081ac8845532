"""Reads all of a checkpoint to see whether a run could go on from it, or a model be made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.checksums import SUMS_FILE, check_checksums, complete_checksums, has_checksums
from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.element_reader import ElementReader
from zerokit.checkpoint.safetensors_file import read_safetensors
from zerokit.checkpoint.step_folder import is_of_checkpoint, names_in
from zerokit.checkpoint.tensor_checks import TensorIssues, checked_blocks
from zerokit.checkpoint.torch_file import read_archive
from zerokit.errors import CheckpointError

if TYPE_CHECKING:
    from zerokit.checkpoint.saved_states import CheckpointInfo


@dataclass(frozen=True)
class Verified:
    """What was looked at, and nothing was wrong with."""

    facts: CheckpointInfo
    num_files: int
    nbytes: int
    hashes: bool
    """Whether the files had checksums to compare, beside those in each."""
    checksum_problem: CheckpointError | None
    """Why ``SHA256SUMS`` cannot be used: it is malformed or incomplete, or missing though it was saved."""
    without_checksums: Sequence[Path]
    """Of those that were looked at: nothing tells whether their tensors are as they were saved."""
    not_read: Sequence[Path]
    """Of the checkpoint's files: neither read nor compared with checksums."""
    remarks: TensorIssues


def verify(path: Path) -> Verified:
    """See that a checkpoint is complete, as it was saved and of one step, as far as its files are read.

    Read are archives of torch, which may load nothing that could run code, and headers of safetensors.

    Args:
        path: of a step, or of a run, whose newest one is taken.

    Raises:
        CheckpointError: it is not; says the first thing that is wrong.
    """
    checkpoint = read_checkpoint(path)
    step = checkpoint.facts.folder
    read, storages = set(checkpoint.files), list(checkpoint.storages)
    folders = [step, step.parent] if is_of_checkpoint(step) else [step]
    found = {folder / name for folder in folders for name in names_in(folder)}
    others = {file for file in found if not file.is_dir()} - read
    safetensors = {file for file in others if file.suffix == ".safetensors"}
    for file in sorted(others):
        if file.suffix in (".pt", ".pth"):
            storages += read_archive(file).storages
            read.add(file)
        elif file in safetensors:
            read_safetensors(file)
            read.add(file)
    hashed = next((folder for folder in (step, step.parent) if has_checksums(folder)), None)
    compared, problem = set(), None
    if hashed is not None:
        try:
            sums = complete_checksums(hashed) or {}
        except CheckpointError as error:
            problem = error
        else:
            check_checksums(hashed, sums)
            compared = {hashed / name for name in (*sums, SUMS_FILE)}
    remarks = TensorIssues()
    with ElementReader() as reader:
        for storage in storages:
            reader.check(storage)
        for tensor in checkpoint.tensors().values():
            for _ in checked_blocks(reader, checkpoint, tensor, remarks):
                pass
        reader.finish()
    without = safetensors | {storage.file for storage in storages if storage.crc is None}
    return Verified(
        checkpoint.facts,
        len(read),
        sum(file.stat().st_size for file in read),
        bool(compared),
        problem,
        sorted(without - compared),
        sorted(others - read - compared),
        remarks,
    )
