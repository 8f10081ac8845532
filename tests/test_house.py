"""The rules that keep the house standing: who may import whom, and what must stay light."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import get_args

import pytest

from tests import processes
from tests.each import each
from tests.sources import PACKAGE, parsed
from zerokit import choices

# Each room, and the rooms that its files may import, besides its own, wherever in the file. A room that
# is not listed fails the test: give it a place here and in docs/architecture.md.
BASE = {"choices", "errors", "units", "documents", "files", "hub", "findings", "console", "patches"} | {
    "open_options",
    "extras",
    "whose_code",
    "signals",
    "control_groups",
    "processors",
}
ALLOWED = {
    "choices": set(),
    "errors": set(),
    "units": {"errors"},
    "documents": {"errors"},
    "files": {"errors", "documents"},
    "hub": set(),
    "open_options": {"errors", "documents"},
    "extras": {"errors"},
    "findings": {"documents"},
    "console": {"errors"},
    "patches": {"errors"},
    "whose_code": set(),
    "signals": set(),
    "control_groups": set(),
    "processors": {"control_groups"},
    "config": BASE,
    "resolving": BASE | {"config", "hardware", "models", "recipe", "releases"},
    "writing": BASE | {"config", "recipe", "resolving", "hardware", "models"},
    "releases": BASE,
    "recipe": BASE | {"config"},
    "models": BASE,
    "hardware": BASE,
    "reporting": BASE | {"hardware"},
    "memory": BASE | {"config", "models", "hardware", "reporting"},
    "lint": BASE | {"config", "resolving", "releases", "recipe", "models", "hardware", "reporting"},
    # The face of the Python API: a config that can check and resolve itself.
    "ds_config": BASE | {"config", "resolving", "releases", "recipe", "models", "hardware", "lint"},
    "estimation": BASE
    | {"config", "resolving", "writing", "models", "hardware", "memory", "lint", "reporting"},
    "data": BASE,
    # Why a run died.
    "exits": BASE,
    "launching": BASE,
    "distributed": BASE | {"exits"},
    "doctor": BASE | {"distributed", "hardware", "models"},
    "checkpoint": BASE | {"models"},
    "generation": BASE | {"config", "resolving", "recipe", "data", "distributed", "checkpoint"},
    "training": BASE
    | {"config", "resolving", "writing", "recipe", "models", "hardware", "memory", "lint"}
    | {"estimation", "reporting"}
    | {"data", "distributed", "checkpoint", "generation"},
    # What this machine takes, measured.
    "calibration": BASE | {"hardware"},
    "rehearsal": BASE | {"config", "resolving", "lint", "hardware", "reporting", "exits"},
    "quickstart": BASE
    | {"config", "resolving", "writing", "recipe", "models", "hardware", "memory", "estimation", "lint"}
    | {"reporting"}
    | {"distributed", "checkpoint", "exits"},
    "cli": BASE
    | {"config", "resolving", "writing", "releases", "recipe", "models", "hardware", "memory", "lint"}
    | {"estimation", "rehearsal", "quickstart", "reporting", "distributed", "generation", "training"}
    | {"checkpoint", "exits", "launching", "doctor", "calibration"},
    "train": {"cli"},
    "generate": {"cli"},
    "__main__": {"cli"},
}


FILES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
"""Every module by its name."""


def imported_modules(file: Path) -> set[str]:
    """The modules of zerokit that `file` imports, anywhere: in functions and for types alone, too."""
    names = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: a relative import, which no rule sees"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    names = {name for name in names if name.split(".")[0] == "zerokit"}
    return {name if name in FILES else name.rpartition(".")[0] for name in names} - {"zerokit"}


IMPORTS = {module: imported_modules(file) for module, file in FILES.items()}


def room(module: str) -> str:
    return module.split(".")[1]


@each([module for module in IMPORTS if module != "zerokit"], by=room)
def test_imports_run_downwards(module: str) -> None:
    assert {room(other) for other in IMPORTS[module]} - {room(module)} <= ALLOWED[room(module)]


def circles(below: Mapping[str, Set[str]]) -> set[str]:
    """What is left when everything that stands on nothing else is taken away, again and again."""
    remaining = dict(below)
    while free := {name for name, others in remaining.items() if not others & (remaining.keys() - {name})}:
        remaining = {name: others for name, others in remaining.items() if name not in free}
    return set(remaining)


def test_no_circle_of_rooms() -> None:
    assert circles(ALLOWED) == set()


SHOWING = {"rich", "matplotlib"}


def imported_when_run(node: ast.AST) -> set[str]:
    """The packages that `node` imports, but for those that only types need."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return set()
    names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
    if isinstance(node, ast.ImportFrom) and node.module:
        names.add(node.module)
    return names.union(*map(imported_when_run, ast.iter_child_nodes(node)))


def test_tables_and_plots_are_made_in_reporting_alone() -> None:
    users = {
        (room(module), name.split(".")[0])
        for module, file in FILES.items()
        for name in imported_when_run(parsed(file))
        if module != "zerokit" and name.split(".")[0] in SHOWING
    }
    # The console is rich's, and so is its progress bar.
    assert users == {("reporting", "rich"), ("reporting", "matplotlib"), ("console", "rich")}


@pytest.mark.parametrize(
    ("key", "home"),
    [
        ("zero_optimization", "config/base.py"),
        ("train_batch_size", "config/batch_sizes.py"),
        ("train_micro_batch_size_per_gpu", "config/batch_sizes.py"),
        ("gradient_accumulation_steps", "config/batch_sizes.py"),
    ],
)
def test_the_name_of_a_key_is_one_constant(key: str, home: str) -> None:
    homes = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES.values()
        for node in parsed(file).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value == key
    }
    assert homes == {home}


def test_a_list_of_choices_stands_in_one_place() -> None:
    lists = {frozenset(get_args(value)) for value in vars(choices).values() if len(get_args(value)) > 1}
    # What a key of a ds_config may be is DeepSpeed's list, and stands beneath the key.
    again = [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file in FILES.values()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"
        if isinstance(node.slice, ast.Tuple) and not {"config", "choices.py"} & set(file.parts)
        if frozenset(one.value for one in node.slice.elts if isinstance(one, ast.Constant)) in lists
    ]
    assert len(lists) == 14
    assert again == []


def test_how_many_gpus_a_node_has_by_default_is_one_constant() -> None:
    numbers = [
        ast.unparse(argument)
        for file in FILES.values()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.FunctionDef)
        for argument, default in zip(
            [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs][::-1],
            [*node.args.defaults, *node.args.kw_defaults][::-1],
            strict=False,
        )
        if argument.arg == "gpus_per_node" and isinstance(default, ast.Constant)
    ]
    assert numbers == []


def test_no_circle_of_files() -> None:
    # A package and its own files: importing one of them runs the package's face first.
    assert circles(IMPORTS) == set()


@pytest.mark.parametrize(
    "code",
    [
        "import zerokit",
        "import zerokit.config, zerokit.recipe, zerokit.memory",
        "import zerokit.cli.main",
        "import zerokit.training.main, zerokit.generation.main",
        "from zerokit.checkpoint import compare, export, merge, prune, reshard, summary, verify",
    ],
)
def test_importing_does_not_load_torch(code: str) -> None:
    check = f"{code}; import sys; assert not {{'torch', 'transformers', 'deepspeed'}} & set(sys.modules)"
    processes.checked([sys.executable, "-c", check])


def test_a_command_does_not_pay_for_the_models_of_recipes() -> None:
    code = "import zerokit.cli.main, sys; assert 'zerokit.recipe.model' not in sys.modules"
    processes.checked([sys.executable, "-c", code])


@pytest.mark.parametrize(
    "command",
    [
        ["config", "--zero-stage", "2"],
        ["schema"],
        ["explain-exit", "-9"],
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
    processes.checked([sys.executable, "-c", code])
