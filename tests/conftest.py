"""Settings for all tests: nothing from a hub or the user's caches, no limit in seconds; their markers."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.combinations import ALL
from zerokit import console

# How long an example takes depends on what else the machine does. CI judges a change, so it tries the same
# examples each time, as `make check` does; a person's `make test` looks for new ones, a third of hypothesis's own
# number. `--hypothesis-profile=quick` tries few, ZEROKIT_ALL_COMBINATIONS=1 all (see tests/examples.py).
settings.register_profile(
    "full",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    max_examples=100 if ALL else 30,
)
settings.register_profile("quick", settings.get_profile("full"), max_examples=6, derandomize=True)
settings.load_profile("full")

# This process is one of as many as there are cores. torch reads the variable as it is imported: what is set later
# holds for a thread, and the next thread that uses torch gives MKL all cores again.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FOLDERS = {
    "checkpoint": ("torch",),
    "generation": ("torch",),
    "gpu": ("torch",),
    "launched": ("torch", "distributed"),
    "packaging": ("slow",),
    "rehearsal": ("torch", "rehearsal"),
    "training": ("torch",),
    "validation": ("torch",),
}
"""Markers of all tests in a folder. Elsewhere a file has a ``pytestmark``, or a test its own marker."""

FEW = 12
"""Tests of a file of two ranks, which then start launchers, and take up to a minute each."""

_HERE = Path(__file__).parent
_FILE_NEEDS_TORCH = re.compile(r"^pytestmark = (\[[^\]]*|.*)\bmark\.torch\b", re.MULTILINE)


@pytest.fixture(scope="session", autouse=True)
def _offline_and_isolated(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("datasets-cache"))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # As in an environment that is activated: a ninja of another version would compile DeepSpeed's ops anew.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _folder_of(file: Path) -> str:
    return file.relative_to(_HERE).parts[0] if file.is_relative_to(_HERE) else ""


def _without_torch(config: pytest.Config) -> bool:
    """Whether no test that needs torch can run: nobody asks for one, or torch is not installed."""
    expression = config.option.markexpr
    asked = not re.search(r"\bnot torch\b", expression) or re.search(r"\bor\b", expression)
    return not asked or importlib.util.find_spec("torch") is None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out unread what would be deselected: its imports of torch and DeepSpeed take seconds."""
    if _without_torch(config) and _says_that_it_needs_torch(collection_path):
        return True
    expression = config.option.markexpr
    if expression == "distributed":
        return True if _has_no_test_of_two_ranks(collection_path) else None
    all_are = "distributed" in FOLDERS.get(_folder_of(collection_path), ())
    return True if expression == "not distributed" and all_are else None


def _has_no_test_of_two_ranks(path: Path) -> bool:
    is_tests = path.suffix == ".py" and path.name.startswith("test_") and path.is_file()
    if not is_tests or "distributed" in FOLDERS.get(_folder_of(path), ()):
        return False
    return "mark.distributed" not in path.read_text(encoding="utf-8")


def _says_that_it_needs_torch(path: Path) -> bool:
    if "torch" in FOLDERS.get(_folder_of(path), ()):
        return True
    is_file = path.suffix == ".py" and path.is_file()
    return is_file and _FILE_NEEDS_TORCH.search(path.read_text(encoding="utf-8")) is not None


@pytest.hookimpl(tryfirst=True)  # before -m chooses by them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Apply the folders' markers. Quick tests first: a mistake in a unit shows before minutes of runs.

    Of those of two ranks, files of few tests first: these are the longest, and a core would wait for one that
    is left to the end.
    """
    for item in items:
        for marker in FOLDERS.get(_folder_of(item.path), ()):
            item.add_marker(marker)
    counts = Counter(item.path for item in items if item.get_closest_marker("distributed") is not None)

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        if item.get_closest_marker("distributed") is None:
            return False, False, 0
        return True, counts[item.path] > FEW, -counts[item.path]

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what lives as long as the session, such as modules and tests, out of the garbage collector's work."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Where only light tests run, no file of them may import torch, even for tests that are left out."""
    before = "torch" in sys.modules
    report = yield
    is_new = not before and "torch" in sys.modules
    # A file that is asked for by its name is read even if all its tests are left out.
    if is_new and _without_torch(collector.config) and not _says_that_it_needs_torch(collector.path):
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} imports torch: give it `pytestmark = pytest.mark.torch`"
    return report


_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _no_rank_of_an_earlier_test() -> Iterator[None]:
    """A run in this process sets a launcher's variables; the next test, and what it starts, is no rank."""
    before = {name: os.environ.get(name) for name in _LAUNCHERS}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def _own_consoles() -> Iterator[None]:
    """A test may change what a terminal is; its consoles are not the next test's."""
    yield
    console.stdout.cache_clear()
    console.stderr.cache_clear()


@pytest.fixture(autouse=True)
def _light_tests_import_no_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where only light tests run, the one that imports torch fails: it lacks the marker."""
    before = "torch" in sys.modules
    yield
    if _without_torch(request.config) and not before:
        assert "torch" not in sys.modules, "this test imports torch: mark it with pytest.mark.torch"
