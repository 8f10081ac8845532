"""Which release of flash-attn is stood in for, what it has, and what scripts are told that expect another."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from zerokit.rehearsal.context import begin_rank, rank_context
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.package_imports import Packages, _Finder
from zerokit.rehearsal.stand_ins.packages import known_packages
from zerokit.rehearsal.worker.failures import limit_of

NEWEST = known_packages()[0].newest


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """The stand-in as in a rehearsal, of a release that a test sets."""
    _forget()
    begin_rank()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Finder({"flash_attn"})])
    yield rank_context().state(Packages)
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]


def _imported(packages: Packages, version: str, name: str = "flash_attn") -> ModuleType:
    packages.has = {"flash-attn": version}
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("version", "parameters"),
    [
        ("2.2.5", "q k v dropout_p softmax_scale causal return_attn_probs"),
        ("2.3.6", "q k v dropout_p softmax_scale causal window_size return_attn_probs"),
        ("2.5.8", "q k v dropout_p softmax_scale causal window_size alibi_slopes deterministic return_attn_probs"),
        (
            NEWEST,
            "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs",
        ),
    ],
)
def test_parameters_are_those_of_the_release(packages: Packages, version: str, parameters: str) -> None:
    module = _imported(packages, version)
    assert module.__version__ == version
    assert importlib.metadata.version("flash-attn") == version
    assert " ".join(inspect.signature(module.flash_attn_func).parameters) == parameters
    assert hasattr(module, "flash_attn_with_kvcache")


def test_names_come_with_their_release(packages: Packages) -> None:
    assert not hasattr(_imported(packages, "2.1.1"), "flash_attn_with_kvcache")


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [("2.6.3", "flash_attn_cuda", "flash_attn_gpu"), (NEWEST, "flash_attn_gpu", "flash_attn_cuda")],
)
def test_the_compiled_module_is_found_and_its_use_is_refused_by_name(
    packages: Packages, version: str, has: str, lacks: str
) -> None:
    interface = _imported(packages, version, "flash_attn.flash_attn_interface")
    assert not hasattr(interface, lacks)
    with pytest.raises(RehearsalGap, match=r"flash_attn_2_cuda\.fwd"):
        getattr(interface, has).fwd(torch.ones(1))


@pytest.mark.parametrize(("version", "results"), [("2.6.3", 4), ("2.7.0", 5), (NEWEST, 5)])
def test_unpadding_gives_what_the_release_gives(packages: Packages, version: str, results: int) -> None:
    padding = _imported(packages, version, "flash_attn.bert_padding")
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
    "fail", [_unpacks_four, _unpacks_later, _gives_another_parameter, _asks_for_another_name, _imports_another_name]
)
def test_what_fails_at_the_stand_in_is_told_with_its_release(packages: Packages, fail: object) -> None:
    padding = _imported(packages, NEWEST, "flash_attn.bert_padding")
    assert callable(fail)
    with pytest.raises((ValueError, TypeError, AttributeError, ImportError)) as raised:
        fail(padding)
    limit = str(limit_of(raised.value))
    assert f"stands in for flash-attn {NEWEST}, as --has names it" in limit
    packages.has = {}
    limit = str(limit_of(raised.value))
    assert f"stands in for flash-attn {NEWEST}, the newest that it knows" in limit
    assert "--has flash-attn==VERSION" in limit


def test_what_fails_beside_the_stand_in_is_the_scripts(packages: Packages) -> None:
    padding = _imported(packages, NEWEST, "flash_attn.bert_padding")

    def train() -> None:
        padding.unpad_input(torch.ones(1, 2, 4), torch.ones(1, 2))
        _first, _second = [1]

    with pytest.raises(ValueError, match="unpack") as raised:
        train()
    assert limit_of(raised.value) is None
