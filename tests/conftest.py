"""Settings for all tests: nothing from a hub, nothing in the user's caches."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# CI judges a change, so it tries the same examples each time; a person's machine looks for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _offline_and_isolated(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("datasets-cache"))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: a mistake in a unit shows before minutes of two-rank runs."""
    items.sort(key=lambda item: item.get_closest_marker("distributed") is not None)
