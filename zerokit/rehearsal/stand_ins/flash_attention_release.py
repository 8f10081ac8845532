"""Which release of flash-attn 2 the stand-in is like: the newest that the script's project allows.

Releases differ in names, parameters and results. What is not installed here says nothing of the cluster's, so
it is read where people write it down: in files of the script's project or of the folder that it is started
in, or in what the package needs that the script belongs to.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from zerokit.rehearsal.stand_ins.script_project import lines_in_files, script_file
from zerokit.whose_code import INSTALLED

_RELEASES = (
    *("2.0.0.post1", "2.0.1", "2.0.2", "2.0.3", "2.0.4", "2.0.5", "2.0.6", "2.0.6.post2", "2.0.7", "2.0.8"),
    *("2.0.9", "2.1.0", "2.1.1", "2.1.2.post3", "2.2.0", "2.2.1", "2.2.2", "2.2.3.post2", "2.2.4"),
    *("2.2.4.post1", "2.2.5", "2.3.0", "2.3.1.post1", "2.3.2", "2.3.3", "2.3.4", "2.3.5", "2.3.6"),
    *("2.4.0.post1", "2.4.1", "2.4.2", "2.4.3.post1", "2.5.0", "2.5.1.post1", "2.5.2", "2.5.3", "2.5.4"),
    *("2.5.5", "2.5.6", "2.5.7", "2.5.8", "2.5.9.post1", "2.6.0.post1", "2.6.1", "2.6.2", "2.6.3"),
    *("2.7.0.post2", "2.7.1.post4", "2.7.2.post1", "2.7.3", "2.7.4.post1", "2.8.0.post2", "2.8.1", "2.8.2"),
    "2.8.3",
)
"""Those that pip finds, the oldest first."""
NEWEST = _RELEASES[-1]
_FILES = (
    *("requirements*.txt", "requirements/*.txt", "pyproject.toml", "setup.py", "setup.cfg"),
    *("environment*.y*ml", "Dockerfile*", "README*"),
)
"""Where projects say what they need, the surest first."""
_VERSION = r"v?\d+(?:\.\w+)*(?:\.\*)?"
_BOUND = rf"(?:[=~!]=|===|[<>]=?)\s*{_VERSION}"
_ASKED = re.compile(
    r"(?P<quote>[\"']?)(?<![\w/.-])flash[-_]attn"
    rf"(?:(?:\[[\w, -]*\])?[\s\"'(]*(?P<bounds>{_BOUND}(?:\s*,\s*{_BOUND})*)\s*\)?"
    r"|=(?P<conda>\d+\.\d+(?:\.\w+)*))"
    r"|(?<!\w)flash_attn-(?P<wheel>\d+\.\d+\.\d+(?:\.post\d+)?)",
    re.IGNORECASE,
)
"""A requirement with bounds, conda's with one ``=``, or the name of a wheel."""
_EXTRA = re.compile(r"extra\s*==\s*[\"']([\w.-]+)")


@dataclass(frozen=True)
class Release:
    """A release, and what asks for it."""

    version: str
    asked_by: str | None = None
    """``file:line``, or a package; None if nothing does."""

    def is_within(self, since: str, until: str) -> bool:
        """Whether it is `since` or later, and before `until`; an empty one is no bound."""
        own = Version(self.version)
        return not (since and own < Version(since)) and not (until and own >= Version(until))


def asked_for(script: Path, started_in: Path) -> Release:
    """The release that a script's project asks for; the newest one if it names none, or none that is known.

    Args:
        script: its file.
        started_in: the folder that it is started in.
    """
    for by, text in (*_in_files(script, started_in), *_in_packages(script)):
        for asked in _ASKED.finditer(text):
            version = _newest_within(asked)
            if version is not None:
                return Release(version, by)
    return Release(NEWEST)


def _in_files(script: Path, started_in: Path) -> Iterator[tuple[str, str]]:
    """Each line that names flash-attn with a version, as ``file:line`` and text."""
    lines = lines_in_files(script, started_in, _FILES)
    return ((by, line) for by, line in lines if _ASKED.search(line))


def _in_packages(script: Path) -> Iterator[tuple[str, str]]:
    """What the package needs that an installed script belongs to."""
    for folder in INSTALLED:
        _, found, inside = str(script).partition(folder)
        package = inside.partition("/")[0]
        if found and package:
            with suppress(importlib.metadata.PackageNotFoundError):
                for line in importlib.metadata.requires(package) or ():
                    yield f"the package {package}", line


def _newest_within(asked: re.Match[str]) -> str | None:
    """The newest release that a requirement allows; None if it is not for here, or allows none."""
    if asked["wheel"]:
        return asked["wheel"] if _is_known(asked["wheel"]) else None
    bounds = asked["bounds"] or f"=={asked['conda']}.*"  # conda's =2.6 is any of 2.6
    try:
        within = SpecifierSet(bounds)
    except InvalidSpecifier:
        return None
    if not _is_for_here(asked):
        return None
    # One that pip does not find may be on another index.
    exact = [one.version for one in within if one.operator.strip("=") == "" and "*" not in one.version]
    known = [*_RELEASES, *(str(Version(one)) for one in exact if _is_known(one))]
    return max(within.filter(known, prereleases=True), key=Version, default=None)


def _is_known(version: str) -> bool:
    own = Version(version).release
    return Version(_RELEASES[0]).release[:1] <= own <= Version(NEWEST).release


def _is_for_here(asked: re.Match[str]) -> bool:
    """Whether the marker of a requirement holds, with any extra that it names."""
    before, _, text = asked.string[asked.end() :].lstrip().partition(";")
    if before or not text:
        return True
    # A marker ends where what quotes the requirement does, or a comment, an option or a next line begins.
    text = text.partition(asked["quote"])[0] if asked["quote"] else re.split(r"\s(?:#|--|\\)", text)[0]
    try:
        marker = Marker(text.strip())
        return any(marker.evaluate({"extra": extra}) for extra in _EXTRA.findall(text) or [""])
    except (InvalidMarker, UndefinedEnvironmentName):  # what follows a ; in other files is none
        return True


class Chosen:
    """The release of this process: found when it is first asked for, by when the script runs."""

    def __init__(self) -> None:
        self._release: Release | None = None
        self._started_in = Path.cwd()

    @property
    def release(self) -> Release:
        if self._release is None:
            self._release = asked_for(script_file(self._started_in), self._started_in)
        return self._release
