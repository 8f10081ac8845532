"""The documentation site: it builds, with a page for each rule and the Python API."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests import processes
from tests.combinations import REST
from zerokit.lint.run import all_rules

ROOT = Path(__file__).parents[2]


@REST  # `make docs` builds it, too; links are those of tests/docs/test_links.py
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    processes.checked(command, cwd=ROOT, env=environment)
    for rule in all_rules():
        assert (tmp_path / "rules" / rule / "index.html").is_file()
    assert "num_gpus" in (tmp_path / "api" / "estimate" / "index.html").read_text()
