"""Verifies a checkpoint: whether a run can continue from it, and a model can be exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerokit.checkpoint.checksums import SUMS_FILE, check_checksums, complete_checksums, has_checksums
from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.element_reader import ElementReader
from zerokit.checkpoint.safetensors_file import read_safetensors
from zerokit.checkpoint.saved_states import CheckpointInfo
from zerokit.checkpoint.step_folder import is_of_checkpoint, names_in
from zerokit.checkpoint.tensor_checks import TensorIssues, checked_blocks
from zerokit.checkpoint.torch_file import read_archive
from zerokit.errors import CheckpointError


@dataclass(frozen=True)
class Verified:
    """Result of a successful verification."""

    facts: CheckpointInfo
    num_files: int
    nbytes: int
    hashes: bool
    """Whether the files had checksums of their own, beside the CRCs within."""
    checksum_problem: CheckpointError | None
    """Why ``SHA256SUMS`` cannot be used: malformed, incomplete, or missing."""
    without_checksums: Sequence[Path]
    """Files without any checksum: changes of their tensors would not be noticed."""
    not_read: Sequence[Path]
    """Files of the checkpoint that were neither read nor compared with checksums."""
    remarks: TensorIssues


def verify(path: Path) -> Verified:
    """Verify that a checkpoint is complete, unchanged and of one step.

    It reads torch files, which may load nothing that runs code, and headers of safetensors files.

    Args:
        path: a step, or a run for its newest step.

    Raises:
        CheckpointError: the first problem.
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
