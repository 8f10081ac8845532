"""docs/stand-ins.md against the code: who looks for a stand-in finds its file in one try."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REHEARSAL = ROOT / "zerokit" / "rehearsal"
PAGE = (ROOT / "docs" / "stand-ins.md").read_text(encoding="utf-8")
ROWS = [
    (re.findall(r"`([^`]+)`", names), needed_by, file)
    for names, needed_by, file in re.findall(r"^\| (`.+`) \| (.+) \| `(.+)` \|$", PAGE, re.MULTILINE)
]


def _text(file: str) -> str:
    return (REHEARSAL / file).read_text(encoding="utf-8")


def _named(file: str) -> set[str]:
    return {name for names, _, named in ROWS if named == file for name in names}


def test_each_name_stands_in_the_file_that_it_leads_to() -> None:
    wrong = [(name, file) for names, _, file in ROWS for name in names if name not in _text(file)]
    assert wrong == []


def test_each_stand_in_is_in_the_index() -> None:
    files = [
        *REHEARSAL.glob("stand_ins/**/*.py"),
        *REHEARSAL.glob("watching/*.py"),
        *REHEARSAL.glob("native/*.cpp"),
    ]
    absent = [file.name for file in files if file.stem != "__init__" and f"{file.name}`" not in PAGE]
    assert absent == []


@pytest.mark.parametrize("file", sorted(REHEARSAL.glob("native/*.cpp")), ids=lambda file: file.name)
def test_each_operator_with_a_kernel_of_its_own_is_in_the_index(file: Path) -> None:
    operators = set(re.findall(r'library\.impl\("([^"]+)"', file.read_text(encoding="utf-8")))
    assert operators <= _named(f"native/{file.name}")


def test_each_op_of_deepspeed_is_in_the_index_with_the_file_of_its_stand_in() -> None:
    tree = ast.parse(_text("stand_ins/op_builders.py"))
    files = {
        alias.name: f"stand_ins/{node.module.rpartition('.')[2]}.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    (table,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict) and any(ast.unparse(key) == "'cpu_adam'" for key in node.keys if key)
    )
    ops = [str(ast.literal_eval(key)) for key in table.keys if key]
    assert len(ops) > 8
    for op in ops:
        assert op in _named(files.get(op, "stand_ins/op_builders.py")), op
    assert set(re.findall(r'stand_in_module\(\s*"(\w+)"', _text("stand_ins/async_io.py"))) <= _named(
        "stand_ins/async_io.py"
    )


@pytest.mark.parametrize("version", ["2", "3", "layers"])
def test_each_function_of_flash_attention_is_in_the_index(version: str) -> None:
    file = f"stand_ins/flash_attention_{version}.py"
    (names,) = re.findall(r"__all__ = \[(.*?)\]", _text(file), re.DOTALL)
    assert set(re.findall(r'"(\w+)"', names)) == _named(file)


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("DeepSpeedCPUAdam", "stand_ins/cpu_optimizers.py"),
        ("FusedAdam", "stand_ins/fused_optimizers.py"),
        ("flash_attn_varlen_func", "stand_ins/flash_attention_2.py"),
        ("async_io", "stand_ins/async_io.py"),
        ("fp_quantizer", "stand_ins/quantizers.py"),
        ("_scaled_dot_product_flash_attention", "native/attention_flash.cpp"),
        ("Triton", "stand_ins/triton_kernels.py"),
    ],
)
def test_who_looks_for_a_stand_in_finds_its_file_first(wanted: str, file: str) -> None:
    found = [named for names, needed_by, named in ROWS if wanted in names or wanted in needed_by]
    assert found[0] == file
