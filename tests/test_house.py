"""The rules that keep the house standing: who may import whom, and what must stay light."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from tests import processes
from tests.each import each
from tests.reporting.pages import plan
from tests.sources import PACKAGE, nodes, parsed
from tests.tiny import REPOSITORY
from zerokit import choices

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def rooms_of_the_page() -> list[str]:
    """The rooms in the order of the page's table: each imports only from those before it."""
    text = PAGE.read_text(encoding="utf-8").partition("## The rooms")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall("`([a-z_]+)`", cell)]


ROOMS = rooms_of_the_page()


FILES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
"""Every module by its name."""


def imported_modules(file: Path) -> set[str]:
    """The modules of zerokit that `file` imports, anywhere: in functions and for types alone, too."""
    names = set()
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: a relative import, which no rule sees"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    names = {name for name in names if name.split(".")[0] == "zerokit"}
    return {name if name in FILES else name.rpartition(".")[0] for name in names} - {"zerokit"}


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports; not made as tests are collected, which each worker does."""
    return {module: imported_modules(file) for module, file in FILES.items()}


def room(module: str) -> str:
    return module.split(".")[1]


@each([module for module in FILES if module != "zerokit"], by=room)
def test_imports_run_downwards(module: str) -> None:
    below = set(ROOMS[: ROOMS.index(room(module))])
    assert {room(other) for other in imports()[module]} - {room(module)} <= below


def circles(below: Mapping[str, Set[str]]) -> set[str]:
    """What is left when everything that stands on nothing else is taken away, again and again."""
    remaining = dict(below)
    while free := {name for name, others in remaining.items() if not others & (remaining.keys() - {name})}:
        remaining = {name: others for name, others in remaining.items() if name not in free}
    return set(remaining)


def test_the_page_lists_each_room_once() -> None:
    assert sorted(ROOMS) == sorted({room(module) for module in FILES if module != "zerokit"})


SHOWING = {"rich"}


def imported_when_run(node: ast.AST) -> set[str]:
    """The packages that `node` imports, but for those that only types need."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return set()
    names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
    if isinstance(node, ast.ImportFrom) and node.module:
        names.add(node.module)
    return names.union(*map(imported_when_run, ast.iter_child_nodes(node)))


def test_tables_are_made_in_reporting_alone() -> None:
    users = {
        (room(module), name.split(".")[0])
        for module, file in FILES.items()
        for name in imported_when_run(parsed(file))
        if module != "zerokit" and name.split(".")[0] in SHOWING
    }
    # The console is rich's, and so is its progress bar.
    assert users == {("reporting", "rich"), ("console", "rich")}


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
        for node in nodes(file)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"
        if isinstance(node.slice, ast.Tuple) and not {"config", "choices.py"} & set(file.parts)
        if frozenset(one.value for one in node.slice.elts if isinstance(one, ast.Constant)) in lists
    ]
    assert len(lists) == 15
    assert again == []


def test_how_many_gpus_a_node_has_by_default_is_one_constant() -> None:
    numbers = [
        ast.unparse(argument)
        for file in FILES.values()
        for node in nodes(file)
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
    assert circles(imports()) == set()


_LIGHT_IMPORTS = (
    ("import sys, zerokit", {"pydantic"}),
    ("from zerokit.cli.main import command_line; command_line()", {"zerokit.recipe.model"}),
    ("import zerokit.memory", {"numpy"}),
    ("import zerokit.step_time", {"numpy"}),
    ("zerokit.DSConfig(zero_optimization={'stage': 2}).check()", {"numpy"}),
    ("import zerokit.config", set()),
    ("import zerokit.recipe, zerokit.training.main, zerokit.generation.main", set()),
    ("from zerokit.checkpoint import compare, export, merge, prune, reshard, summary, verify", set()),
    ("from zerokit.models import load_model_shape; from zerokit.planning.data import workload_of", set()),
    (
        "assert workload_of(load_model_shape('qwen2.5-7b'), model_name='Qwen/Qwen2.5-7B', data=['a.jsonl']).steps",
        {"datasets"},
    ),
)
"""One after the other in one process, and what they must not import beside `_HEAVY`."""
_HEAVY = {"torch", "transformers", "deepspeed", "accelerate"}


def test_importing_loads_nothing_heavy(tmp_path: Path) -> None:
    chat = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": chat}))
    code = "\n".join(
        f"{line}\nassert not (found := {_HEAVY | others!r} & set(sys.modules)), ({line!r}, found)"
        for line, others in _LIGHT_IMPORTS
    )
    processes.checked([sys.executable, "-c", code], cwd=tmp_path)


_SIZES = "--num-gpus 64 --zero-stage 3 --micro-batch-size 1 --seq-len 4096 --format json"
_LIGHT_COMMANDS = (
    (f"check {REPOSITORY / 'ds_configs' / 'zero2.json'} --fix --diff --num-gpus 8", 0, ["numpy", "rich", "yaml"]),
    ("config --zero-stage 3", 0, ["numpy", "yaml"]),
    ("schema", 0, ["numpy", "yaml"]),
    ("--help", 0, ["numpy", "yaml"]),
    ("explain-exit -9", 0, []),
    (f"estimate llama-3.1-70b {_SIZES}", 0, ["numpy", "rich.table"]),
    (f"estimate config.json {_SIZES}", 2, ["numpy", "rich.table"]),
    ("report plan.json", 0, ["numpy"]),
    ("plan llama-3.2-1b --tokens 1M --gpu h100 --max-gpus 1 --rehearse 0 --no-input", 0, []),
)
"""Words, exit code, and what it must not import beside `_HEAVY`."""
_FORKS = f"""
import json, os, sys
from zerokit.cli.main import main
for words, code, others in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        sys.argv[1:] = words.split()
        try:
            main()
        except SystemExit as stop:
            assert (stop.code or 0) == code, stop.code
        found = {_HEAVY!r}.union(others) & set(sys.modules)
        assert not found, found
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, words
"""


def test_light_commands_import_no_heavy_library(tmp_path: Path) -> None:
    """Each in a fork of a process that has imported what every command needs."""
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch", "hidden_size": 64}')
    (tmp_path / "plan.json").write_text(json.dumps(plan()))
    processes.checked([sys.executable, "-c", _FORKS, json.dumps(_LIGHT_COMMANDS)], cwd=tmp_path)
