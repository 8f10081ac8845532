"""Which release of flash-attn 2 the stand-in is like: the newest that the script's project allows.

Releases differ in names, parameters and results. What is not installed here says nothing of the cluster's, so
it is read where people write it down: in files of the script's project or of the folder that it is started
in, or in what the package needs that the script belongs to.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zerokit.whose_code import INSTALLED, is_installed

_LAST = (
    *("2.0.9", "2.1.2.post3", "2.2.5", "2.3.6", "2.4.3.post1", "2.5.9.post1", "2.6.3", "2.7.4.post1"),
    "2.8.3",
)
"""The last release of each minor one, the oldest first."""
NEWEST = _LAST[-1]
_FILES = (
    *("requirements*.txt", "requirements/*.txt", "pyproject.toml", "setup.py", "setup.cfg"),
    *("environment*.y*ml", "Dockerfile*", "README*"),
)
"""Where projects say what they need, the surest first."""
_FOLDERS = 4
"""So many folders, from the script's upwards, may be its project's."""
_MOST_BYTES = 2**20
_BOUND = r"[=~!<>]==?\s*v?\d+(?:\.\w+)*|[<>]\s*v?\d+(?:\.\w+)*"
_ASKED = re.compile(
    rf"(?<![\w/.-])flash[-_]attn(?:\[[\w, -]*\])?[\s\"'(]*(?P<bounds>(?:{_BOUND})(?:\s*,\s*(?:{_BOUND}))*)"
    r"|(?<!\w)flash_attn-(?P<wheel>\d+\.\d+\.\d+(?:\.post\d+)?)",
    re.IGNORECASE,
)
"""A requirement with bounds, or the name of a wheel."""


@dataclass(frozen=True)
class Release:
    """A release, and what asks for it."""

    version: str
    asked_by: str | None = None
    """``file:line``, or a package; None if nothing does."""

    def is_within(self, since: str, until: str) -> bool:
        """Whether it is `since` or later, and before `until`; an empty one is no bound."""
        own = _numbers(self.version)
        return not (since and own < _numbers(since)) and not (until and own >= _numbers(until))


def asked_for(script: Path, started_in: Path) -> Release:
    """The release that a script's project asks for; the newest one if it names none, or none that is known.

    Args:
        script: its file.
        started_in: the folder that it is started in.
    """
    for by, text in (*_in_files(script, started_in), *_in_packages(script)):
        version = _newest_within(text)
        if version is not None:
            return Release(version, by)
    return Release(NEWEST)


def _in_files(script: Path, started_in: Path) -> Iterator[tuple[str, str]]:
    """Each line that names flash-attn with a version, as ``file:line`` and text."""
    upwards = [] if is_installed(str(script)) else list(script.parents[:_FOLDERS])
    for folder in dict.fromkeys([started_in, *upwards]):
        for pattern in _FILES:
            for file in sorted(folder.glob(pattern)):
                with suppress(OSError, UnicodeDecodeError):
                    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
                        continue
                    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                        if _ASKED.search(line) and not line.lstrip().startswith("#"):
                            yield f"{file.parent.name}/{file.name}:{number}", line


def _in_packages(script: Path) -> Iterator[tuple[str, str]]:
    """What the package needs that an installed script belongs to."""
    for folder in INSTALLED:
        _, found, inside = str(script).partition(folder)
        package = inside.partition("/")[0]
        if found and package:
            with suppress(importlib.metadata.PackageNotFoundError):
                for line in importlib.metadata.requires(package) or ():
                    yield f"the package {package}", line


def _newest_within(text: str) -> str | None:
    found = _ASKED.search(text)
    if found is None:
        return None
    if found["wheel"]:
        return found["wheel"] if _is_known(found["wheel"]) else None
    bounds = [re.split(r"(?<=[=<>])\s*v?(?=\d)", bound.strip()) for bound in found["bounds"].split(",")]
    exact = [version for sign, version in bounds if sign.strip("=") == "" and _is_known(version)]
    within = [one for one in (*_LAST, *exact) if all(_fits(one, *bound) for bound in bounds)]
    return within[-1] if within else None


def _is_known(version: str) -> bool:
    return _numbers(_LAST[0])[:1] <= _numbers(version) <= _numbers(NEWEST)


def _fits(version: str, sign: str, bound: str) -> bool:
    one, other = _numbers(version), _numbers(bound)
    if sign == "~=":
        fixed = bound.count(".")
        return one >= other and one[:fixed] == other[:fixed]
    return {
        "=": one == other,
        "!": one != other,
        "<": one < other or (sign == "<=" and one == other),
        ">": one > other or (sign == ">=" and one == other),
    }[sign[0]]


def _numbers(version: str) -> tuple[int, ...]:
    """The first three, so that 2.7 and 2.7.0 are the same."""
    found = [int(part) for part in version.split(".")[:3] if part.isdigit()]
    return (*found, *(0,) * (3 - len(found)))


class Chosen:
    """The release of this process: found when it is first asked for, by when the script runs."""

    def __init__(self) -> None:
        self._release: Release | None = None
        self._started_in = Path.cwd()

    @property
    def release(self) -> Release:
        if self._release is None:
            self._release = asked_for(Path(sys.argv[0]).absolute(), self._started_in)
        return self._release
