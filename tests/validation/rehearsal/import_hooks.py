"""A sitecustomize.py that changes a module when it is imported, for scripts that would download something."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

_HOOK = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "{name}":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
{then}
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def write_hook(folder: Path, name: str, then: str) -> None:
    """Make `folder`, to be put on PYTHONPATH, where `then` is run once the module `name` has been imported.

    In the lines of `then` it is called ``module``.
    """
    folder.mkdir(exist_ok=True)
    text = _HOOK.format(name=name, then=indent(dedent(then), " " * 12))
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
