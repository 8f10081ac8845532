"""Makes torch compile DeepSpeed's extensions with this environment's ninja: another version would recompile
all.
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
    """The ninja of this Python's package, else the one next to Python; None if there is none."""
    try:
        files = metadata.files(NINJA) or []
    except metadata.PackageNotFoundError:
        files = []
    brought = [Path(str(file.locate())) for file in files if file.name == NINJA]
    programs = (one for one in (*brought, Path(sys.executable).parent / NINJA) if os.access(one, os.X_OK))
    return next((one.resolve() for one in programs), None)


def find_own_ninja(folder: Path) -> None:
    """Make this process, and those that it starts, find this environment's own ninja first.

    Puts a folder with only a link to it, inside `folder`, at the front of the PATH: its own folder may
    contain compilers that must not come first.
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
