"""A hint names an option that the command has: of a module, an option of a command that imports it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

import pytest

from tests.each import each
from tests.named_options import commands, foreign_options
from tests.sources import nodes
from tests.test_house import FILES, imports, room
from zerokit.cli.main import COMMANDS

NOT_IMPORTED = {"rehearsal": {"rehearse"}, "lint": {"check", "resolve"}}
"""Rooms with modules that their commands find by name, or start in another process."""
OF_OTHERS = {"--training", "--rdzv_backend", "--shm-size", "--ipc"}
"""Options of accelerate launch and docker; and the beginning of an override of a recipe, whose key follows."""


@functools.cache
def users() -> dict[str, set[str]]:
    """The commands that import each module, themselves or through others."""
    found: dict[str, set[str]] = {}
    for command in COMMANDS:
        left = [f"zerokit.cli.{'doctor' if command == 'env' else command.replace('-', '_')}"]
        while left:
            module = left.pop()
            if command not in found.setdefault(module, set()):
                found[module].add(command)
                left += imports().get(module, set()) - {"zerokit"}
    return found


def hints(module: str) -> Iterator[str]:
    """The texts of a module's hints: arguments and variables of that name."""
    left: list[ast.AST] = []
    for node in nodes(FILES[module]):
        is_argument = isinstance(node, ast.keyword) and node.arg == "hint"
        is_variable = isinstance(node, ast.Assign) and "hint" in " ".join(map(ast.unparse, node.targets))
        left += [node.value] if isinstance(node, ast.keyword | ast.Assign) and (is_argument or is_variable) else []
    while left:
        part = left.pop()
        if isinstance(part, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "~" for one in part.values)
        elif isinstance(part, ast.Constant):
            yield str(part.value)
        else:
            left += ast.iter_child_nodes(part)


@each([module for module in FILES if module != "zerokit"], by=room)
def test_a_hint_names_options_of_a_command_that_can_print_it(module: str) -> None:
    names = users().get(module) or NOT_IMPORTED.get(room(module), set())
    lines = [name for name in commands() if name.split()[0] in names]
    for hint in hints(module):
        foreign = [set(foreign_options(hint, line.split())) - OF_OTHERS for line in lines]
        assert not foreign or not set.intersection(*foreign), hint


@pytest.mark.parametrize(
    ("hint", "command", "foreign"),
    [
        ("Check the network, or give --prices FILE", "prices update", ["--prices"]),
        ("Set stage 3: --zero-stage, or zero_optimization.stage", "train", ["--zero-stage"]),
        ("Set stage 3: --zero-stage, or zero_optimization.stage", "estimate", []),
        ("Run zerokit plan --prices FILE", "prices update", []),
        ("Lower --max_new_tokens, or --max-prompt-tokens", "generate", []),
        ("Lower --training.max_steps, or --ds-config", "train", ["--ds-config"]),
    ],
)
def test_an_option_of_another_command_is_found(hint: str, command: str, foreign: list[str]) -> None:
    assert foreign_options(hint, command.split()) == foreign
