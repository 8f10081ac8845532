"""docs/stand-ins.md: who looks for a stand-in finds its file in one try."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.stand_ins_page import REHEARSAL, stand_ins_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stand-ins.md"


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == stand_ins_page(), "run python -m tools.site"


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("DeepSpeedCPUAdam", "stand_ins/op_builders.py"),
        ("torch.compile", "stand_ins/torch_compile.py"),
        ("flash_attn.cute", "stand_ins/package_imports.py"),
        ("apex.optimizers", "contrib/apex/optimizers.py"),
        ("_scaled_dot_product_flash_attention", "native/attention_flash.cpp"),
        ("triton", "stand_ins/triton_kernels.py"),
        ("DeepSpeedCPULion and", "stand_ins/cpu_optimizers.py"),
    ],
)
def test_who_looks_for_a_stand_in_finds_its_file_first(wanted: str, file: str) -> None:
    first = next(line for line in stand_ins_page().splitlines() if line.startswith("|") and wanted in line)
    assert f"`{file}`" in first


def test_each_file_is_in_the_page_once_and_says_what_it_does() -> None:
    page = stand_ins_page()
    for file in REHEARSAL.glob("stand_ins/**/*.py"):
        name = str(file.relative_to(REHEARSAL))
        assert file.stem == "__init__" or f"`{name}`" in page
    assert not re.findall(r"\|  \|", page)
