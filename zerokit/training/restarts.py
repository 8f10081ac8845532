"""Decides whether a run that crashed is started again, and from which checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerokit import console
from zerokit.choices import OUTPUT_DIR
from zerokit.recipe import LoadedRecipe
from zerokit.training.folder import checkpoints
from zerokit.training.resume import AUTO_RESUME, missing_part


class Restarts:
    """Restarts a run after a crash, at most `retries` times, and never twice without a new checkpoint."""

    def __init__(self, loaded: LoadedRecipe, retries: int) -> None:
        training = loaded.recipe.training
        self._folder = Path(training.get("output_dir") or OUTPUT_DIR)
        self._retries = retries
        self._done = 0
        self._reached: Path | None = None
        # A new run sets earlier checkpoints aside, but may crash before.
        continues = training.get("resume_from_checkpoint") in (AUTO_RESUME, True)
        self._earlier = set() if continues else {_inode(folder) for folder in checkpoints(self._folder)}

    def __call__(self, crash: str) -> Sequence[str] | None:
        """What to add to the command line for another try, after a line about it; None to give up."""
        newest = self._newest()
        if self._done == self._retries:
            return None
        if self._done and newest == self._reached:
            console.note("zerokit: not restarted: no checkpoint was saved since the last restart")
            return None
        self._done, self._reached = self._done + 1, newest
        begins = "begins again, as there is no checkpoint" if newest is None else f"continues from {newest}"
        console.note(f"zerokit: restart {self._done} of {self._retries}: {crash}; the run {begins}")
        return () if newest is None else ("--resume", AUTO_RESUME)

    def how_to_continue(self) -> str:
        """What to do after the run was killed or stopped, as an instruction."""
        return "No checkpoint was written: start it again" if self._newest() is None else "Continue with --resume auto"

    def _newest(self) -> Path | None:
        """The newest complete checkpoint of this run."""
        found = [folder for folder in checkpoints(self._folder) if _inode(folder) not in self._earlier]
        return next((folder for folder in reversed(found) if missing_part(folder) is None), None)


def _inode(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
