"""The registry of patches: against the installed packages, against the code, and when names are gone."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.sources import PACKAGE, nodes
from tests.work import calls_in
from zerokit import patches
from zerokit.errors import LaunchError
from zerokit.patches import Patch, PrivateAttribute

OTHERS = {"torch", "deepspeed", "transformers", "accelerate", "peft", "trl", "triton", "numpy"} | {
    *("datasets", "tokenizers", "safetensors", "huggingface_hub", "flash_attn")
}


@pytest.mark.torch
def test_every_patch_fits_the_installed_packages() -> None:
    found = json.loads(processes.checked([sys.executable, "-m", "tests.list_patches"]).splitlines()[-1])
    assert found["unfit"] == []
    assert found["undeclared_overrides"] == []
    assert found["declared"] > 150


# ---- no replacement outside the registry


def _root(node: ast.expr) -> str | None:
    """The name that an expression such as `a.b[c].d(e)` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "getattr":
                node = node.args[0]
                continue
            node = node.func
        else:
            node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _foreign_names(tree: Sequence[ast.AST]) -> set[str]:
    """Names that stand for another package's modules and classes, or for modules that nobody knows yet."""
    names = {"import_module"}
    for node in tree:
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name.partition(".")[0]
                for alias in node.names
                if alias.name.partition(".")[0] in OTHERS
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OTHERS:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.arg) and node.annotation and "ModuleType" in ast.unparse(node.annotation):
            names.add(node.arg)
    for node in tree:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Attribute | ast.Name):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _root(node.value) in names:
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def replacements(tree: Sequence[ast.AST]) -> list[str]:
    """Assignments to attributes of other packages' modules and classes, each as its text."""
    foreign = _foreign_names(tree)
    found = []
    for node in tree:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                targets += target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            # Nothing else has a use for it.
            found += [ast.unparse(node)] if node.func.id in ("setattr", "delattr") else []
        found += [
            ast.unparse(target) for target in targets if isinstance(target, ast.Attribute) and _root(target) in foreign
        ]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.compile = None",
        "import torch.nn as nn\ndef f():\n    nn.Linear.forward, x = None, 1",
        "def f():\n    from transformers import Trainer\n    Trainer.save_state = None",
        "import torch\ncuda: Any = torch.cuda\ncuda._lazy_init = None",
        "def change(module: ModuleType) -> None:\n    engine = module.Engine\n    engine.step = None",
        "setattr(anything, 'name', 1)",
        "import deepspeed\ndel deepspeed.comm",
    ],
)
def test_a_replacement_is_seen(source: str) -> None:
    assert replacements(list(ast.walk(ast.parse(source))))


def test_no_file_replaces_anything_but_through_the_registry() -> None:
    found = {
        str(file.relative_to(PACKAGE)): names
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.name != "patches.py" and (names := replacements(nodes(file)))
    }
    assert found == {}


# ---- what becomes of names that are there, and of names that are gone


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose engine has `step` and a static `load`, keeps `self.bucket` and reads `self.gone`."""
    folder = tmp_path / "given_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '2.4.1'\n")
    (folder / "engine.py").write_text(
        "class Engine:\n"
        "    def __init__(self):\n        self.bucket = self.__flat = []\n"
        "    def step(self, size):\n        return size\n"
        "    @property\n    def full(self):\n        self._seen = True\n        return self.gone\n"
        "    @staticmethod\n    def load(name):\n        return name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("REGISTERED", "_applied"):
        monkeypatch.setattr(patches, name, [])
    monkeypatch.setattr(patches, "_missing", {})
    monkeypatch.setattr(patches._finder, "changes", {})
    patches.version.cache_clear()
    yield "given_package"
    for name in [name for name in sys.modules if name.startswith("given_package")]:
        del sys.modules[name]


ENGINE = "given_package.engine:Engine"


def _engine(package: str) -> Any:
    return importlib.import_module(f"{package}.engine").Engine


@pytest.mark.parametrize("imported_before", [False, True])
def test_a_name_is_replaced_before_or_after_its_module_is_imported(package: str, *, imported_before: bool) -> None:
    if imported_before:
        _engine(package)
    patches.wrap(Patch(ENGINE, "step", "double"), lambda step, engine, size: 2 * step(engine, size))
    patches.wrap(Patch(ENGINE, "load", "greet"), lambda load, name: "hello " + load(name))
    engine = _engine(package)()
    assert (engine.step(3), engine.load("x"), type(engine).load("x")) == (6, "hello x", "hello x")
    assert patches.missing() == []


def test_later_patches_of_a_name_go_around_earlier_ones(package: str) -> None:
    patches.wrap(Patch(ENGINE, "step", "add"), lambda step, engine, size: step(engine, size) + 1)
    patches.wrap(Patch(ENGINE, "step", "double"), lambda step, engine, size: 2 * step(engine, size))
    assert _engine(package)().step(3) == 8


def test_a_missing_name_is_reported_with_what_it_was_for(package: str) -> None:
    patches.put(Patch(ENGINE, "save", "leave checkpoints unwritten"), None)
    patches.put(Patch("given_package.engine:Motor", "__init__", "count"), None)
    patches.watch(PrivateAttribute(ENGINE, "ipg_buffer", "label it"))
    assert patches.missing() == []  # nothing of the package runs yet
    assert not hasattr(_engine(package), "save")
    assert patches.missing() == [
        "given_package 2.4.1 has no given_package.engine.Engine.save, which zerokit replaces to leave "
        "checkpoints unwritten",
        "given_package 2.4.1 has no given_package.engine.Motor.__init__, which zerokit replaces to count",
        "given_package 2.4.1 has no given_package.engine.Engine.ipg_buffer, which zerokit reads to label it",
    ]


def test_a_missing_module_is_reported_once_its_package_is_used(package: str) -> None:
    patches.put(Patch("given_package.runtime.engine:Engine", "step", "count steps"), None)
    patches.put(Patch(ENGINE, "step", "count steps"), None)
    patches.put(Patch("no_such_package.engine", "step", "count steps"), None)
    assert patches.missing() == []
    importlib.import_module(package)
    (line,) = patches.missing()
    assert "has no given_package.runtime.engine.Engine.step" in line
    assert "given_package.engine" not in sys.modules


@pytest.mark.parametrize(
    ("since", "until", "is_for"),
    [
        (None, None, True),
        ("2.4", None, True),
        ("2.4.1", "2.5", True),
        ("2.4.2", None, False),
        (None, "2.4.1", False),
        (None, "2.10", True),
    ],
)
def test_a_bounded_patch_is_left_out_of_other_versions(
    package: str, since: str | None, until: str | None, is_for: bool
) -> None:
    patches.put(Patch(ENGINE, "step", "replace it", since=since, until=until), "replaced")
    patches.put(Patch(ENGINE, "no_such_name", "replace it", since=since, until=until), "replaced")
    assert (_engine(package).step == "replaced") is is_for
    assert bool(patches.missing()) is is_for


def test_a_name_that_another_build_has_is_added(package: str) -> None:
    patches.put(Patch(ENGINE, "compiled", "answer", read_by="given_package.engine"), "added")
    assert _engine(package).compiled == "added"
    assert patches.missing() == []


def test_a_private_attribute_is_what_a_method_assigns(package: str) -> None:
    for name in ("bucket", "_Engine__flat", "_seen", "gone"):
        patches.watch(PrivateAttribute(ENGINE, name, "label it"))
    _engine(package)
    (line,) = patches.missing()
    assert "has no given_package.engine.Engine.gone" in line


def test_to_look_for_a_private_attribute_is_little_work(package: str) -> None:
    assert calls_in(PrivateAttribute("argparse:ArgumentParser", "prog", "read it").is_found) < 5_000


def test_an_override_of_what_is_gone_is_one_clear_line(package: str) -> None:
    engine = _engine(package)

    @patches.overriding(ENGINE, step="count steps")
    class Counting(engine):  # type: ignore[misc]
        pass

    with pytest.raises(LaunchError) as raised:

        @patches.overriding(ENGINE, _run_epoch="train each example once")
        class Training(engine):  # type: ignore[misc]
            pass

    assert (
        "given_package 2.4.1 has no given_package.engine.Engine._run_epoch, which zerokit overrides to "
        "train each example once" in str(raised.value)
    )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("one", "other"), [("2.9", "2.9.0"), ("2", "2.0.0"), ("0.18.0", "0.18")])
def test_versions_that_differ_in_zeros_alone_are_the_same(one: str, other: str) -> None:
    for bound, installed in ((one, other), (other, one)):
        assert Patch("os:path", "join", "test", since=bound, read_by="a test").is_for(installed)
        assert not Patch("os:path", "join", "test", until=bound, read_by="a test").is_for(installed)


def test_a_method_of_the_class_is_given_the_class_that_it_is_called_on() -> None:
    class Base:
        @classmethod
        def load(cls, path: str) -> tuple[type, str]:
            return cls, path

    class Model(Base):
        pass

    patches.replace(Base, "load", lambda load: lambda cls, path: load(cls, path + " without values"))
    assert Model.load("weights") == (Model, "weights without values")
