"""State of a rank belongs to its objects, so that nothing is left over from one rank to another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import PACKAGE, parsed

FOLDERS = ("parent", "worker", "ranks", "report", "watching", "timing")
KEPT = {
    ("timing/rank_time.py", "_of_process"),  # stand-ins give their kernels time by it
    ("parent/processes.py", "_live"),  # workers that a signal has to end, of all threads
}
_MAKERS = {"list", "dict", "set", "Counter", "defaultdict", "WeakSet", "WeakKeyDictionary", "deque"}


def _state(file: Path) -> Iterator[str]:
    """Names of module-level variables that functions rebind, or that begin as an empty container."""
    tree = parsed(file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = node.value
            is_empty = ast.unparse(value) in ("[]", "{}")
            function = value.func if isinstance(value, ast.Call) else None
            made = getattr(function, "id", getattr(function, "attr", ""))
            if made in _MAKERS or is_empty:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (ast.unparse(target) for target in targets)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_state_in_modules(folder: str) -> None:
    place = PACKAGE / "rehearsal"
    found = {
        (file.relative_to(place).as_posix(), name)
        for file in sorted((place / folder).glob("*.py"))
        for name in _state(file)
    }
    assert found <= KEPT
