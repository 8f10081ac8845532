"""The ninja by which torch has DeepSpeed's extensions compiled: the same one in every run of an environment.

One of another version takes for outdated what this one has compiled, and compiles all anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

NINJA = "ninja"


def own_ninja() -> Path | None:
    """That of this Python's package, wherever pip has put it; else the one beside Python, if there is one."""
    try:
        files = metadata.files(NINJA) or []
    except metadata.PackageNotFoundError:
        files = []
    brought = [Path(str(file.locate())) for file in files if file.name == NINJA]
    programs = (one for one in (*brought, Path(sys.executable).parent / NINJA) if os.access(one, os.X_OK))
    return next((one.resolve() for one in programs), None)


def find_own_ninja(folder: Path) -> None:
    """Have this process, and what it starts, find this environment's own ninja, and all else where it was.

    Where the PATH leads to another one, or to none, a folder with a link to it alone goes first: beside it
    may lie compilers, too, such as those of the system.

    Args:
        folder: that of the extensions, in which the link's is made.
    """
    own, found = own_ninja(), shutil.which(NINJA)
    if own is None or (found is not None and own.samefile(found)):
        return
    linked = folder.absolute() / f"{NINJA}-{hashlib.sha256(os.fsencode(own)).hexdigest()[:12]}"
    try:
        linked.mkdir(parents=True, exist_ok=True)
        (linked / NINJA).symlink_to(own)
    except FileExistsError:
        pass
    except OSError:  # whoever compiles there says so
        return
    os.environ["PATH"] = os.pathsep.join([str(linked), os.environ.get("PATH") or os.defpath])
