"""The commands of the docs run, page by page in the order they are written."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests import command_lines, processes
from tests.combinations import REST
from tests.tiny import REPOSITORY

pytestmark = [pytest.mark.torch, pytest.mark.distributed]

# In the order in which a reader meets them: a page may use what an earlier one made.
PAGES = [
    "getting-started.md",
    *(f"how-to/{name}.md" for name in ("plan-memory", "check-a-config", "lora", "dead-run")),
    # The first page's commands with other options.
    *(pytest.param(f"how-to/{name}.md", marks=REST) for name in ("rehearse", "generate")),
]

BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TRAIN = """
import deepspeed, torch

deepspeed.init_distributed()
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
model = torch.nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
for _ in range(8):
    engine.backward(engine(torch.ones(2, 64, dtype=torch.bfloat16, device=engine.device)).sum())
    engine.step()
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with launch/ and ds_configs/ in it, where the commands leave what they write."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("launch", "ds_configs"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/python.md"])
def test_python_runs(page: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    script = "".join(PYTHON.findall((REPOSITORY / page).read_text(encoding="utf-8")))
    lines = [f"assert {line.partition('# True')[0]}" if "# True" in line else line for line in script.splitlines()]
    run = processes.run([sys.executable, "-c", "\n".join(lines)], cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page: str, clone: Path) -> None:
    commands = BLOCK.findall((REPOSITORY / "docs" / page).read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        run = command_lines.run(command, cwd=clone, env=environment)
        assert run.returncode == 0, f"{command}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
