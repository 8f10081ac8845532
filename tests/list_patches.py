"""Prints every patch that zerokit declares; last, as JSON, those that do not fit the installed packages.

In a process of its own, since it imports what is patched.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import json
import re
from pathlib import Path

from zerokit import patches
from zerokit.patches import Patch

PACKAGE = Path(patches.__file__).parent
_DECLARES = re.compile(r"^from zerokit\.patches import|^from zerokit import patches", re.MULTILINE)


def declared() -> list[Patch]:
    """Every patch, by importing each module that may declare one."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if _DECLARES.search(file.read_text(encoding="utf-8")):
            importlib.import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))
    return patches.REGISTERED


def fits(patch: Patch) -> bool:
    """Whether the name is there, or is bounded away, or is of a package that is not installed."""
    if importlib.util.find_spec(patch.package) is None or not patch.is_for(patches.version(patch.package)):
        return True
    try:
        importlib.import_module(patch.module)
    except ImportError:
        return False
    if patch.read_by is None:
        return patch.is_found()
    return bool(fnmatch.filter(re.findall(r"\w+", _source(patch.read_by)), patch.name))


def _source(module: str) -> str:
    """The text of a module, with that of torch's own that only a CUDA build defines."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin)
    files = [file, *file.parent.glob("cuda/*.py"), *file.parent.glob("_C/*.pyi")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def undeclared_overrides() -> list[str]:
    """Methods by which zerokit overrides transformers' Trainer unsaid, or says so and does not."""
    from transformers import Trainer

    from zerokit.training.trainer import ZeroTrainer

    said = {patch.name for patch in patches.REGISTERED if isinstance(patch, patches.Override)}
    own = [base for base in ZeroTrainer.__mro__ if base.__module__.startswith("zerokit.")]
    done = {name for base in own for name in vars(base) if hasattr(Trainer, name) and name[:2] != "__"}
    return sorted((said ^ done) - {"_abc_impl"})


if __name__ == "__main__":
    found = declared()
    for patch in found:
        bounds = f" (since {patch.since})" * bool(patch.since) + f" (until {patch.until})" * bool(patch.until)
        print(f"{patch.use} {patch.owner}.{patch.name}{bounds}: to {patch.purpose}")
    unfit = [str(patch) for patch in found if not fits(patch)]
    print(json.dumps({"declared": len(found), "unfit": unfit, "undeclared_overrides": undeclared_overrides()}))
