"""What the control groups of this process say: those of a container, a service, or a job on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def group_files(controller: str, name: str, names_of_1: tuple[str, ...], root: Path) -> Iterator[list[str]]:
    """What files of a controller say, for the groups of this process and for all above them.

    Source: Linux, cgroups(7), "/proc/[pid]/cgroup": lines of ``number:controllers:path``.

    Args:
        controller: its name, such as ``memory``.
        name: of the file in version 2.
        names_of_1: of the files in version 1.
        root: where the system's files are.

    Yields:
        the texts of the files of one group. Groups that lack one, or are out of sight, are left out.
    """
    mounted = root / "sys/fs/cgroup"
    # The groups at the top are those of a container that hides where it stands.
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
