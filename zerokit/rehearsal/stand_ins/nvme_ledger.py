"""The files that a run would have on NVMe, and the bytes that it would write and read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from zerokit.rehearsal.context import rank_context


@dataclass
class NvmeLedger:
    """Files and traffic of one rank. Each rank has a folder of its own, so a node holds the sum."""

    file_bytes: dict[str, int] = field(default_factory=dict)
    written_bytes: int = 0
    """Overwriting included."""
    read_bytes: int = 0
    folders: set[str] = field(default_factory=set)
    """Folders that DeepSpeed would have made; none is made on this machine."""

    @property
    def total_bytes(self) -> int:
        """Bytes that this rank's files hold."""
        return sum(self.file_bytes.values())

    def make_folder(self, path: str) -> None:
        """Notes `path` and its parents as made."""
        folder = Path(path).absolute()
        self.folders.update(str(each) for each in (folder, *folder.parents))

    def remove_folder(self, path: str) -> None:
        """Removes `path`, its subfolders and their files."""
        root = Path(path).absolute()
        self.folders = {each for each in self.folders if not Path(each).is_relative_to(root)}
        self.file_bytes = {file: size for file, size in self.file_bytes.items() if not Path(file).is_relative_to(root)}

    def folder_exists(self, file: str) -> bool:
        folder = Path(file).absolute().parent
        return str(folder) in self.folders or folder.is_dir()

    def size_of(self, file: str) -> int | None:
        """Size of a file of this run or of the disk; None if there is neither."""
        if file in self.file_bytes:
            return self.file_bytes[file]
        path = Path(file)
        return path.stat().st_size if path.is_file() else None

    def write(self, file: str, offset: int, num_bytes: int) -> None:
        self.written_bytes += num_bytes
        self.file_bytes[file] = max(self.file_bytes.get(file, 0), offset + num_bytes)

    def clear(self) -> None:
        self.file_bytes.clear()
        self.folders.clear()
        self.written_bytes = self.read_bytes = 0


def nvme_ledger() -> NvmeLedger:
    """The files of this rank and the bytes moved."""
    return rank_context().state(NvmeLedger)
