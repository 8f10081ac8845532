"""The commands of the docs run, page by page in the order they are written."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.tiny import REPOSITORY

pytestmark = [pytest.mark.torch, pytest.mark.distributed]

# In the order in which a reader meets them: a page may use what an earlier one made.
PAGES = [
    "getting-started.md",
    *(
        f"how-to/{name}.md"
        for name in ("plan-memory", "check-a-config", "rehearse", "lora", "generate", "dead-run")
    ),
]

BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with launch/ and ds_configs/ in it, where the commands leave what they write."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("launch", "ds_configs"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page: str, clone: Path) -> None:
    commands = BLOCK.findall((REPOSITORY / "docs" / page).read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        words = command.split() if '"' not in command else None
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        run = processes.run(words or command, cwd=clone, env=environment)
        assert run.returncode == 0, f"{command}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
