"""Which release of flash-attn is stood in for, what it has, and what scripts are told that expect another."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from packaging.version import Version

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins import compiled_packages, flash_attention
from zerokit.rehearsal.stand_ins.flash_attention_release import (
    _RELEASES,
    NEWEST,
    Chosen,
    Release,
    asked_for,
)
from zerokit.rehearsal.worker.failures import limit_of


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chosen]:
    """The stand-in as in a rehearsal, of a release that a test sets."""
    _forget()
    chosen = Chosen()
    monkeypatch.setattr(flash_attention, "_chosen", chosen)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, compiled_packages._Finder({"flash_attn"})])
    yield chosen
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]


def _imported(chosen: Chosen, version: str, name: str = "flash_attn") -> ModuleType:
    chosen._release = Release(version)
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("requirements.txt", "torch\nflash-attn==2.5.8\n", "2.5.8"),
        ("requirements/gpu.txt", "flash_attn~=2.5.6", "2.5.9.post1"),
        ("pyproject.toml", 'dependencies = ["torch>=2", "flash-attn>=2.5.0,<2.7.0"]', "2.6.3"),
        ("setup.py", "extras = {'fa': ['flash-attn==2.7.4.post1']}", "2.7.4.post1"),
        ("README.md", "`pip install flash-attn==2.6.3 --no-build-isolation`", "2.6.3"),
        ("Dockerfile", "RUN pip install x/flash_attn-2.4.2+cu118torch2.1-cp310-linux_x86_64.whl", "2.4.2"),
        ("requirements.txt", "flash-attn>=2.1", NEWEST),
        ("requirements.txt", "# flash-attn==2.5.8\nring_flash_attn==0.1.1\nflash-attn-3==3.0.0", None),
        ("requirements.txt", "flash-attn==1.0.9", None),
        ("requirements.txt", "flash-attn", None),
        ("requirements.txt", "flash-attn<=2.7.3", "2.7.3"),
        ("requirements.txt", "flash-attn<2.7.4", "2.7.3"),
        ("requirements.txt", "flash-attn<=2.6.1", "2.6.1"),
        ("requirements.txt", "flash-attn==2.6.*", "2.6.3"),
        ("requirements.txt", "flash-attn>=2.5,!=2.7.*,<2.8", "2.6.3"),
        ("requirements.txt", "flash-attn>2.5.6,<=2.5.9", "2.5.8"),
        ("requirements.txt", "flash-attn ~= 2.6, < 2.8", "2.7.4.post1"),
        ("requirements.txt", "flash-attn[extra] (==2.5.8) ; sys_platform == 'linux' # old", "2.5.8"),
        ("requirements.txt", "flash-attn==2.5.8; sys_platform == 'win32' # old", None),
        ("requirements.txt", "flash-attn==2.5.8; extra == 'fast'", "2.5.8"),
        ("requirements.txt", "flash-attn<2", None),
        (
            "pyproject.toml",
            """["flash-attn==2.3.6; python_version < '3.8'", "flash-attn==2.5.8; python_version > '3.8'"]""",
            "2.5.8",
        ),
        ("environment.yml", "  - flash-attn=2.6.2", "2.6.2"),
        ("environment.yml", "  - conda-forge::flash-attn=2.5=py310_0", "2.5.9.post1"),
        ("environment-gpu.yaml", "  - flash-attn=2.6.*", "2.6.3"),
        ("setup.py", "train(flash_attn=2)", None),
    ],
)
def test_the_release_is_that_which_the_project_asks_for(
    tmp_path: Path, file: str, text: str, version: str | None
) -> None:
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "project" / file).write_text(text, encoding="utf-8")
    found = asked_for(tmp_path / "project" / "src" / "train.py", tmp_path / "elsewhere")
    line = 1 + text.count("\n", 0, text.find("flash"))
    folder = Path("project", file).parent.name
    by = None if version is None else f"{folder}/{Path(file).name}:{line}"
    assert found == Release(version or NEWEST, by)


def test_where_it_is_started_goes_first(tmp_path: Path) -> None:
    for folder, version in (("project", "2.5.8"), ("run", "2.3.6")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "requirements.txt").write_text(f"flash-attn=={version}", encoding="utf-8")
    found = asked_for(tmp_path / "project" / "train.py", tmp_path / "run")
    assert found == Release("2.3.6", "run/requirements.txt:1")


def test_what_pip_lists_stands_in_its_order() -> None:
    assert sorted(_RELEASES, key=Version) == list(_RELEASES)


@pytest.mark.parametrize(
    ("script", "asking", "is_found"),
    [
        ("home/me/train.py", "home/me", True),
        ("home/me/train.py", "home", False),
        ("home/me/runs/train.py", "home/me", False),
        ("home/me/project/src/train.py", "home/me/project", True),
        ("home/me/project/repository/train.py", "home/me/project/repository", True),
        ("home/me/project/repository/src/train.py", "home/me/project/repository", True),
        ("home/me/project/repository/src/train.py", "home/me/project", False),
    ],
)
def test_a_project_ends_at_its_repository_and_below_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, asking: str, is_found: bool
) -> None:
    (tmp_path / "home/me/project/repository/.git").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home/me"))
    (tmp_path / asking / "requirements.txt").write_text("flash-attn==2.5.8", encoding="utf-8")
    found = asked_for(tmp_path / script, tmp_path / "elsewhere")
    assert found.version == ("2.5.8" if is_found else NEWEST)


def test_a_user_without_a_home_folder_has_a_project_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    (tmp_path / "requirements.txt").write_text("flash-attn==2.5.8", encoding="utf-8")
    assert asked_for(tmp_path / "src" / "train.py", tmp_path / "src").version == "2.5.8"


def test_a_package_that_imports_it_before_its_module_runs_is_asked_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "trained").mkdir(parents=True)
    (tmp_path / "project" / "trained" / "__init__.py").touch()
    (tmp_path / "project" / "requirements.txt").write_text("flash-attn==2.5.8", encoding="utf-8")
    (tmp_path / "elsewhere" / "trained").mkdir(parents=True)  # no package that is found
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(tmp_path / "project")
    for module in ("trained.sub.main", "trained"):
        monkeypatch.setattr(sys, "argv", [module, "--fast"])
        assert Chosen().release == Release("2.5.8", "project/requirements.txt:1")


@pytest.mark.parametrize(
    ("version", "parameters"),
    [
        ("2.2.5", "q k v dropout_p softmax_scale causal return_attn_probs"),
        ("2.3.6", "q k v dropout_p softmax_scale causal window_size return_attn_probs"),
        (
            "2.5.8",
            "q k v dropout_p softmax_scale causal window_size alibi_slopes deterministic return_attn_probs",
        ),
        (
            NEWEST,
            "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
            "return_attn_probs",
        ),
    ],
)
def test_parameters_are_those_of_the_release(stood_in: Chosen, version: str, parameters: str) -> None:
    module = _imported(stood_in, version)
    assert module.__version__ == version
    assert importlib.metadata.version("flash-attn") == version
    assert " ".join(inspect.signature(module.flash_attn_func).parameters) == parameters
    assert hasattr(module, "flash_attn_with_kvcache")


def test_names_come_with_their_release(stood_in: Chosen) -> None:
    assert not hasattr(_imported(stood_in, "2.1.1"), "flash_attn_with_kvcache")


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [("2.6.3", "flash_attn_cuda", "flash_attn_gpu"), (NEWEST, "flash_attn_gpu", "flash_attn_cuda")],
)
def test_the_compiled_module_is_found_and_its_use_is_refused_by_name(
    stood_in: Chosen, version: str, has: str, lacks: str
) -> None:
    interface = _imported(stood_in, version, "flash_attn.flash_attn_interface")
    assert not hasattr(interface, lacks)
    with pytest.raises(RehearsalGap, match=r"flash_attn_2_cuda\.fwd"):
        getattr(interface, has).fwd(torch.ones(1))


@pytest.mark.parametrize(("version", "results"), [("2.6.3", 4), ("2.7.0", 5), (NEWEST, 5)])
def test_unpadding_gives_what_the_release_gives(stood_in: Chosen, version: str, results: int) -> None:
    padding = _imported(stood_in, version, "flash_attn.bert_padding")
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    tokens, indices, starts, longest, *used = padding.unpad_input(torch.ones(2, 3, 4), mask)
    assert (tokens.shape, indices.tolist(), starts.tolist(), longest) == ((3, 4), [0, 1, 3], [0, 2, 3], 2)
    assert 4 + len(used) == results
    assert all(one.tolist() == [2, 1] for one in used)


def _unpacks_four(padding: ModuleType) -> None:
    _tokens, _indices, _starts, _longest = padding.unpad_input(torch.ones(1, 2, 4), torch.ones(1, 2))


def _unpacks_later(padding: ModuleType) -> None:
    found = padding.unpad_input(torch.ones(1, 2, 4), torch.ones(1, 2))
    _tokens, _indices, _starts, _longest = found


def _gives_another_parameter(padding: ModuleType) -> None:
    padding.unpad_input(torch.ones(1, 2, 4), torch.ones(1, 2), lengths=None)


def _asks_for_another_name(padding: ModuleType) -> None:
    padding.no_such(torch.ones(1))


def _imports_another_name(padding: ModuleType) -> None:
    exec("from flash_attn.bert_padding import no_such")


@pytest.mark.parametrize(
    "fail",
    [
        _unpacks_four,
        _unpacks_later,
        _gives_another_parameter,
        _asks_for_another_name,
        _imports_another_name,
    ],
)
def test_what_fails_at_the_stand_in_is_told_with_its_release(stood_in: Chosen, fail: object) -> None:
    padding = _imported(stood_in, NEWEST, "flash_attn.bert_padding")
    assert callable(fail)
    with pytest.raises((ValueError, TypeError, AttributeError, ImportError)) as raised:
        fail(padding)
    limit = str(limit_of(raised.value))
    assert f"stands in for flash-attn {NEWEST}, the newest that it knows, since nothing asks" in limit
    assert "requirements.txt" in limit
    stood_in._release = Release("2.5.8", "here/requirements.txt:3")
    assert "flash-attn 2.5.8, as here/requirements.txt:3 asks" in str(limit_of(raised.value))


def test_what_fails_beside_the_stand_in_is_the_scripts(stood_in: Chosen) -> None:
    padding = _imported(stood_in, NEWEST, "flash_attn.bert_padding")

    def train() -> None:
        padding.unpad_input(torch.ones(1, 2, 4), torch.ones(1, 2))
        _first, _second = [1]

    with pytest.raises(ValueError, match="unpack") as raised:
        train()
    assert limit_of(raised.value) is None
