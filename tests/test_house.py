"""The rules that keep the house standing: who may import whom, and what must stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "zerokit"

# Each room, and the rooms whose imports at module level it may use, besides its own. A room that is not
# listed fails the test: give it a place here and in the docs.
BASE = {"errors", "units", "documents", "files", "hub", "findings", "console"}
ALLOWED = {
    "errors": set(),
    "units": {"errors"},
    "documents": {"errors"},
    "files": {"errors", "documents"},
    "hub": set(),
    "findings": {"documents"},
    "console": {"errors"},
    "config": BASE,
    "resolving": BASE | {"config"},
    "writing": BASE | {"config", "resolving"},
    "releases": BASE,
    "recipe": BASE | {"config"},
    "models": BASE,
    "hardware": BASE,
    "reporting": BASE,
    "memory": BASE | {"config", "models", "hardware", "reporting"},
    "lint": BASE | {"config", "resolving", "releases", "recipe", "models", "reporting"},
    # The face of the Python API: a config that can check and resolve itself.
    "ds_config": BASE | {"config", "resolving", "recipe", "models", "lint"},
    "estimation": BASE | {"config", "resolving", "writing", "models", "memory", "reporting"},
    "data": BASE,
    "distributed": BASE,
    "checkpoint": BASE,
    "generation": BASE | {"config", "resolving", "recipe", "data", "distributed", "checkpoint"},
    "training": BASE
    | {"config", "resolving", "writing", "recipe", "memory", "lint"}
    | {"data", "distributed", "checkpoint", "generation"},
    "rehearsal": BASE | {"config", "lint", "hardware", "reporting"},
    "quickstart": BASE
    | {"config", "writing", "recipe", "models", "memory", "lint", "reporting", "distributed", "checkpoint"},
    "cli": BASE | {"config", "resolving", "lint", "reporting"},
}


def imports(file: Path, *, at_module_level: bool) -> set[str]:
    """Rooms of zerokit that `file` imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = tree.body if at_module_level else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "zerokit":
                found |= {alias.name for alias in node.names if alias.name != "__version__"}
            elif node.module.startswith("zerokit."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("zerokit.")}
    return found


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py" or file.parent != PACKAGE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_downwards(file: Path) -> None:
    name = room(file)
    assert imports(file, at_module_level=True) - {name} <= ALLOWED[name]


def test_no_cycles_between_rooms() -> None:
    remaining = dict(ALLOWED)
    while remaining:
        free = [name for name, below in remaining.items() if not below & remaining.keys()]
        assert free, f"a cycle among {sorted(remaining)}"
        for name in free:
            del remaining[name]


@pytest.mark.parametrize(
    "code",
    [
        "import zerokit",
        "import zerokit.config, zerokit.recipe, zerokit.memory",
        "import zerokit.cli.main",
        "import zerokit.training.main, zerokit.generation.main",
    ],
)
def test_importing_does_not_load_torch(code: str) -> None:
    check = f"{code}; import sys; assert not {{'torch', 'transformers', 'deepspeed'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


@pytest.mark.parametrize(
    "command",
    [
        ["config", "--zero-stage", "2"],
        ["schema"],
        ["--help"],
        ["estimate", "llama-3.1-8b", "--num-gpus", "8", "--zero-stage", "3", "--seq-len", "4096"],
    ],
)
def test_light_commands_do_not_load_torch(command: list[str]) -> None:
    code = (
        "import sys; from zerokit.cli.main import main\n"
        f"sys.argv = ['zerokit', *{command!r}]\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)
