"""Fixtures of the rehearsal's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rehearsal.feature_runs import FeatureRuns


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureRuns]:
    """Rehearsals that share their imports."""
    with FeatureRuns(tmp_path_factory.mktemp("runs")) as runs:
        yield runs
