"""Reads the control groups of this process: of a container, a service, or a cluster job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def group_files(controller: str, name: str, names_of_1: tuple[str, ...], root: Path) -> Iterator[list[str]]:
    """Read files of a controller for the control groups of this process and all their parents.

    Source: Linux, cgroups(7), "/proc/[pid]/cgroup": lines of ``number:controllers:path``.

    Args:
        controller: its name, such as ``memory``.
        name: the file in version 2.
        names_of_1: the files in version 1.

    Yields:
        the texts of one group's files. Groups without these files are skipped.
    """
    mounted = root / "sys/fs/cgroup"
    # A container may see its own group as the top one.
    lines = ["0::/", f"1:{controller}:/"]
    with suppress(OSError):
        lines += (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        hierarchy, names = (mounted / controller, names_of_1) if controllers else (mounted, (name,))
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            with suppress(OSError):
                yield [(hierarchy / folder / file).read_text() for file in names]
