"""Packages that are compiled with CUDA's toolkit: which are found, by whom, and what the report says."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.rehearsal.commands import rehearse
from tests.rehearsal.questions import answer
from tests.rehearsal.test_contrib import packages_found
from zerokit.errors import ZerokitError
from zerokit.rehearsal.context import begin_rank
from zerokit.rehearsal.stand_ins.package_imports import Packages, _Finder
from zerokit.rehearsal.stand_ins.packages import is_installed, known_packages, packages_named


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["apex"], {"apex": None}),
        (["flash_attn == 2.6.3", "Flash-Attn-4"], {"flash-attn": "2.6.3", "flash-attn-4": None}),
        (["grouped_gemm==1.0", "apex==24.4"], {"nv-grouped-gemm": "1.0", "apex": "24.4"}),
    ],
)
def test_has_names_packages_and_versions(words: list[str], found: dict[str, str | None]) -> None:
    assert packages_named(words) == found


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("flash-attn>=2", "names no package"),
        ("flash-attn==", "names no package"),
        ("torch", "names no package that a rehearsal stands in for. Write PKG or PKG==VERSION"),
        ("flash-attn==1.0.9", "the stand-in for flash-attn knows versions 2.0.0 to 2.8.3"),
        ("flash-attn==three", "the stand-in for flash-attn knows versions 2.0.0 to 2.8.3"),
    ],
)
def test_has_refuses_what_it_does_not_know(word: str, problem: str) -> None:
    with pytest.raises(ZerokitError) as refused:
        packages_named([word])
    assert str(refused.value).startswith(f"--has {word}: {problem}")


def test_a_package_that_is_installed_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "apex.py").touch()
    (tmp_path / "apex-2.0.dist-info").mkdir()
    (tmp_path / "apex-2.0.dist-info" / "METADATA").write_text("Name: apex\nVersion: 2.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert packages_named(["apex", "apex==2.0"]) == {"apex": "2.0"}
    with pytest.raises(ZerokitError, match=r"apex 2\.0 is installed here"):
        packages_named(["apex==1.0"])


@pytest.mark.parametrize(
    ("files", "is_stood_in"),
    [
        ((), True),
        (("apex/optimizers/__pycache__/old.cpython-311.pyc", "apex/README.md"), True),
        (("apex/agents.py",), False),  # a project of one's own
        (("apex/csrc/amp.abi3.so",), False),
    ],
)
def test_a_folder_without_code_hides_no_stand_in(
    files: tuple[str, ...], is_stood_in: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "apex").mkdir()
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert is_installed("apex") != is_stood_in
    assert packages_named(["apex==24.4"]) == {"apex": "24.4"}
    begin_rank().state(Packages).has = {"apex": None}
    monkeypatch.setattr(sys, "meta_path", [_Finder({"apex"}), *sys.meta_path])
    module = importlib.import_module("apex")
    del sys.modules["apex"]
    assert hasattr(module, "__version__") == is_stood_in


OPTIONAL = """
try:
    {}
except {}:
    {}
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import apex", 1),
        ("if True:\n    import apex", 2),
        ("def train():\n    import apex\ntrain()", 2),
        ("try:\n    import apex\nfinally:\n    pass", 2),
        (OPTIONAL.format("import apex", "ImportError", "raise RuntimeError"), 3),
        (OPTIONAL.format("import apex", "ImportError", "exit(1)"), 3),
        (OPTIONAL.format("import apex", "ValueError", "pass"), 3),
        (OPTIONAL.format("import no_such", "ImportError", "import apex"), 5),
        (OPTIONAL.format("import apex", "ImportError", "apex = None"), None),
        (OPTIONAL.format("import apex", "(ValueError, Exception)", "apex = None"), None),
        ("with contextlib.suppress(ImportError):\n    import apex", None),
        ("def train():\n    import apex" + OPTIONAL.format("train()", "ImportError", "pass"), None),
    ],
)
def test_a_script_needs_what_it_imports_and_does_not_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int | None
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Finder({"apex"})])
    context = begin_rank()
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    exec(compile(text, str(script), "exec"), {"contextlib": contextlib})
    sys.modules.pop("apex", None)
    (said,) = context.warnings() or [""]
    if line is None:
        assert "if the cluster has it, add --has apex" in said
    else:
        assert f"since {script}:{line} imports it" in said


def test_a_package_that_has_names_is_found_by_libraries() -> None:
    packages = begin_rank().state(Packages)
    packages.has = {"apex": "24.4"}
    apex = next(one for one in known_packages() if one.distribution == "apex")
    assert (packages.reason(apex), packages.version(apex)) == ("--has names it", "24.4")


def test_a_package_is_found_once_the_script_cannot_do_without_it() -> None:
    found = answer(packages_found)
    assert found["before"] == [False, None, False]
    assert not found["caught"]
    assert found["after"] == [True, "0.1", True]
    assert "stands in for apex 0.1, and the script fails at what that has" in found["limit"]
    assert "apex.contrib" in found["limit"]
    assert "cannot stand in for transformer_engine, which is compiled with CUDA's toolkit" in found["refused"]
    taken, lacking = found["said"]  # what was caught before is there now
    assert taken.startswith("apex 0.1 is not installed here and was stood in for, since ")
    assert "test_contrib.py:" in taken
    assert lacking.startswith("apex.contrib may be there on the cluster, and its stand-in is not (")


def test_a_script_trains_with_what_it_imports_and_goes_without_what_it_catches(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "xformers" / "__init__.py"  # which refuses releases of flash-attn
    library.parent.mkdir(parents=True)
    library.write_text("from importlib.util import find_spec\nfound = find_spec('flash_attn')", "utf-8")
    (tmp_path / "train.py").write_text(
        dedent("""
            import sys, torch
            sys.path.append(f"{sys.path[0]}/site-packages")
            import xformers, flash_attn
            assert (xformers.found, flash_attn.__version__) == (None, "2.6.3")
            try:
                import grouped_gemm
            except ImportError:
                grouped_gemm = None
            from apex.normalization import FusedRMSNorm
            from apex.optimizers import FusedAdam

            model = torch.nn.Sequential(FusedRMSNorm(64), torch.nn.Linear(64, 1)).cuda()
            optimizer = FusedAdam(model.parameters())
            assert grouped_gemm is None
            while True:
                model(torch.ones(8, 64, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        """),
        encoding="utf-8",
    )
    words = ("--num-gpus", 1, "--has", "flash-attn==2.6.3", "--no-advise", "--format", "json", "train.py")
    rehearsed = rehearse(*words, cwd=tmp_path)
    assert rehearsed.code == 0, rehearsed.err
    without, taken = [line for line in rehearsed.report["warnings"] if "stood in for" in line]
    assert taken.startswith("apex 0.1 is not installed here and was stood in for, since train.py:10 imports it")
    assert without.startswith("nv-grouped-gemm is not installed here, and the script goes on without (train.py:7)")
