"""Trials of what is done with checkpoints, and of the preview of data: kills, disks and hostile files."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator

from tests.validation.faults.place import Place
from tests.validation.faults.run_trials import later
from tests.validation.faults.trials import HOSTILE, Arrange, Moment, Trial, kill, mount, options

_EXPORT = ("export", "out", "-o", "made")
_PRUNE = ("prune", "out", "--keep", "1", "--yes")
_MANY = 30_000
"""Files whose removal takes a while."""
_LONGEST_DELAY = 0.03
"""Seconds; about as long as an export of so small a model takes."""


def _exporting(place: Place) -> bool:
    """Its unfinished folder is there."""
    return place.path(".made.unfinished").exists()


def _removing(place: Place) -> bool:
    """A removal has begun."""
    return any(place.path("out").glob(".unfinished/checkpoint-*"))


def _two_checkpoints(place: Place) -> None:
    """An older checkpoint beside the run's, and much in it."""
    (newer,) = place.path("out").glob("checkpoint-*")
    older = newer.with_name("checkpoint-0")
    shutil.copytree(newer, older)
    for number in range(_MANY):
        (older / f"file-{number}").touch()


def _link_staging(place: Place) -> None:
    place.path(".made.unfinished").symlink_to(place.path("model"))


def _link_unfinished(place: Place) -> None:
    _two_checkpoints(place)
    place.path("out/.unfinished").symlink_to(place.path("model"))


def _lose(place: Place) -> None:
    shutil.rmtree(place.path(".made.unfinished"), ignore_errors=True)


def _of_kills() -> Iterator[Trial]:
    struck: list[tuple[str, Arrange, Moment, tuple[str, ...], Arrange | None]] = []
    for seed in range(6):
        strike = later(kill(signal.SIGKILL, "launcher"), seed, _LONGEST_DELAY)
        struck.append((f"export, SIGKILL, moment {seed}", strike, _exporting, _EXPORT, None))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        struck.append((f"export, {number.name}", kill(number, "launcher"), _exporting, _EXPORT, None))
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        struck.append((f"prune, {number.name} as it removes", kill(number, "launcher"),
                       _removing, _PRUNE, _two_checkpoints))  # fmt: skip
    for name, strike, moment, words, then in struck:
        arrange = options(*words, command="checkpoint", then=then)
        yield Trial(name, arrange, "stop|do", strike, moment, resumes=True, goes_on=True)
    lost = options(*_EXPORT, command="checkpoint")
    yield Trial("export, its folder removed", lost, "refuse|do", _lose, _exporting, resumes=True)


def _of_links() -> Iterator[Trial]:
    for words, then in ((_EXPORT, _link_staging), (_PRUNE, _link_unfinished)):
        arrange = options(*words, command="checkpoint", then=then)
        yield Trial(f"{words[0]}, a link in the place of its folder", arrange, "refuse", resumes=True)


def _of_disks() -> Iterator[Trial]:
    on_disk = ("export", "out", "-o", "disk/made")
    for size in ("4k", "100k", "456k", "464k", "480k"):
        full = options(*on_disk, command="checkpoint", shell=mount("disk", f"size={size}"))
        yield Trial(f"export, a disk of {size}", full, "refuse|do", resumes=True)
    for number in (3, 5, 8):
        full = options(*on_disk, command="checkpoint", shell=mount("disk", f"nr_inodes={number}"))
        yield Trial(f"export, {number} names left on the disk", full, "refuse", resumes=True)
    read_only = "mount --bind out out && mount -o remount,bind,ro out"
    refused = options(*_PRUNE, command="checkpoint", shell=read_only, then=_two_checkpoints)
    yield Trial("prune, on a disk that is read only", refused, "refuse", resumes=True)


def checkpoint_trials() -> list[Trial]:
    """All of them."""
    whole = {
        "export": options(*_EXPORT, command="checkpoint"),
        "verify": options("verify", "out", command="checkpoint"),
        "prune": options(*_PRUNE, command="checkpoint", then=_two_checkpoints),
    }
    preview = ("--preview", "2")
    return [
        *(Trial(f"{name}, whole", arrange, "do", resumes=True) for name, arrange in whole.items()),
        *_of_kills(),
        *_of_links(),
        *_of_disks(),
        Trial("train --preview, whole", options(*preview), "do"),
        *(
            Trial(f"train --preview, {name}", options(*preview, then=arrange), "refuse")
            for name, arrange in HOSTILE.items()
            if name.startswith(("data", "recipe"))
        ),
    ]
