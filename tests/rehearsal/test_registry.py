"""Stand-ins are registered where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.stand_ins_page import stand_ins_page
from zerokit.rehearsal.context import RankContext
from zerokit.rehearsal.stand_ins.packages import known_packages
from zerokit.rehearsal.stand_ins.registry import registered

REHEARSAL = Path(__file__).resolve().parents[2] / "zerokit" / "rehearsal"
FILES = sorted(file for folder in ("stand_ins", "contrib") for file in (REHEARSAL / folder).rglob("*.py"))


def test_what_install_functions_are_there_is_registered() -> None:
    own = {file.stem for file in FILES if "def install(setup: RankSetup)" in file.read_text("utf-8")}
    assert {one.module.rpartition(".")[2] for one in registered()} == own
    assert len(own) > 15
    assert all(one.replaces and one.install.__doc__ for one in registered())


def test_no_two_stand_ins_replace_the_same_name() -> None:
    names = [name for one in registered() for name in one.replaces]
    assert len(names) == len(set(names))


def test_each_package_has_its_modules_and_contrib_is_found_by_name_alone() -> None:
    for package in known_packages():
        for source in filter(None, package.modules.values()):
            assert (REHEARSAL / f"{source.replace('.', '/')}.py").is_file(), source
    rehearsal = [file for file in REHEARSAL.rglob("*.py") if "contrib" not in file.parts]
    assert not [file for file in rehearsal if "rehearsal.contrib." in file.read_text(encoding="utf-8")]
    for folder in (file.parent for file in FILES if file.match("contrib/*/__init__.py")):
        assert "\nOwner: " in (folder / "__init__.py").read_text(encoding="utf-8")


def test_a_context_has_one_object_of_each_class_and_gathers_their_warnings() -> None:
    class Notes:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def warnings(self) -> list[str]:
            return self.lines

    context = RankContext()
    context.state(Notes).lines.append("one")
    context.state(dict)["key"] = 1
    assert context.warnings() == ["one"]
    assert context.state(dict) == {"key": 1}
    with pytest.raises(KeyError):
        RankContext().state(dict)["key"]


def test_the_page_of_stand_ins_is_what_the_code_says() -> None:
    page = REHEARSAL.parents[1] / "docs" / "stand-ins.md"
    assert page.read_text(encoding="utf-8") == stand_ins_page(), "run python -m tools.site"
