"""Files of the Hugging Face Hub that the script requests and this machine has not fetched.

Libraries try several files in turn, and hide that one is missing behind an error or a default of their own.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from zerokit.code_origin import is_in_library
from zerokit.hub import cached_repository
from zerokit.patches import Patch, wrap
from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.watching.watcher import Watcher

_NOT_FOUND = Patch("huggingface_hub.errors:LocalEntryNotFoundError", "__init__", "see which files are not here")
_SAYS_MISSING = re.compile(
    r"can't load|couldn't|could not|cannot find|not found|no such file|no file|NoneType|unable to", re.IGNORECASE
)
"""What libraries report of a repository without the file that they need."""


class Repository(NamedTuple):
    """A repository of the Hub."""

    name: str
    type: str = "model"

    @property
    def download(self) -> str:
        """The command that fetches it."""
        kind = "" if self.type == "model" else f"--repo-type {self.type} "
        return f"hf download {kind}{self.name}"


class NotFetched:
    """The files that were requested and are not here."""

    def __init__(self) -> None:
        self.files: dict[Repository, list[str]] = {}
        self._folders: dict[Repository, Path] = {}
        """Of the cache, for each repository."""

    def add(self, repository: Repository, file: str | None, folder: str | None) -> None:
        """Keep that `file` was requested, and is not in the `folder` of the cache."""
        self.files.setdefault(repository, []).extend([file] if file else [])
        self._folders[repository] = Path(folder) if folder else cached_repository(repository.name, repository.type)

    def find(self, error: BaseException) -> tuple[Repository, list[str]] | None:
        """The repository whose missing files may be the reason of `error`, which a library raised."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not frames or not is_in_library(frames[-1].f_code.co_filename):
            return None
        passed = {
            value
            for frame in frames
            if is_in_library(frame.f_code.co_filename)
            for value in frame.f_locals.values()
            if isinstance(value, str)
        }
        text = str(error)
        for repository, files in self.files.items():
            named = [file for file in files if re.search(rf"(?<![\w.-]){re.escape(file)}\b", text)]
            is_said = named or _SAYS_MISSING.search(text) or self._is_absent(repository)
            if repository.name in passed and is_said:
                return repository, named or files[-1:]
        return None

    def hint(self) -> str | None:
        """What to fetch, if there is no file of some repositories here."""
        absent = filter(self._is_absent, self.files)
        commands = [repository.download for repository in absent]
        what = "The script requests files of the Hub, and this machine has fetched none of their repositories"
        return f"{what}; fetch them: {'; '.join(commands)}" if commands else None

    def warnings(self) -> list[str]:
        """A line for the repositories that the script does without."""
        hint = self.hint()
        return [] if hint is None else [f"{hint[0].lower()}{hint[1:]}. The rehearsal went on without them"]

    def _is_absent(self, repository: Repository) -> bool:
        snapshots = self._folders[repository] / "snapshots"
        return not (snapshots.is_dir() and any(snapshots.iterdir()))


class HubFiles(Watcher):
    """Follows what is requested of the Hub."""

    def on_process_start(self) -> None:
        wrap(_NOT_FOUND, _note_missing)


def requested_of(frames: Iterable[FrameType]) -> tuple[Repository, str | None, str | None] | None:
    """The repository that huggingface_hub was to load, the file, and the folder of its cache."""
    for names in (frame.f_locals for frame in frames):
        if isinstance(name := names.get("repo_id"), str):
            file, folder = names.get("filename"), names.get("storage_folder")
            return Repository(name, names.get("repo_type") or "model"), file, folder
    return None


def _note_missing(init: Any, error: Any, *arguments: Any, **given: Any) -> None:
    init(error, *arguments, **given)
    if requested := requested_of(frame for frame, _ in traceback.walk_stack(sys._getframe(1))):
        rank_context().state(NotFetched).add(*requested)
