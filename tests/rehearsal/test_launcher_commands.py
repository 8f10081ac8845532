"""Which programs that a script starts are launchers, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.commands import rehearse
from zerokit.rehearsal.stand_ins.launcher_commands import LauncherCommand, launcher_command


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["torchrun", "--nproc_per_node=8", "train.py", "--lr", "1"],
            LauncherCommand("torchrun", ["--nproc_per_node=8"], ["train.py", "--lr", "1"]),
        ),
        (
            ["/env/bin/python3.11", "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "train.py"],
            LauncherCommand("deepspeed", ["--world_info=e30="], ["train.py"]),
        ),
        (
            "OMP_NUM_THREADS=1 accelerate launch --config_file zero3.yaml --module train.main --lr 1",
            LauncherCommand("accelerate", ["--config_file", "zero3.yaml"], ["-m", "train.main", "--lr", "1"]),
        ),
        (
            ["python", "-m", "accelerate.commands.accelerate_cli", "launch", "train.py"],
            LauncherCommand("accelerate", [], ["train.py"]),
        ),
        ([Path("/env/bin/deepspeed"), b"train.py"], LauncherCommand("deepspeed", [], ["train.py"])),
        (["accelerate", "config"], None),
        (["torchrun", "--version"], None),
        (["python", "-m", "torch.utils.collect_env"], None),
        (["git", "commit", "-m", "torchrun train.py"], None),
        ("echo 'unbalanced", None),
        ([], None),
        (None, None),
    ],
)
def test_launchers_are_known_by_their_programs_and_modules(
    command: Any, expected: LauncherCommand | None
) -> None:
    assert launcher_command(command) == expected


def test_a_script_that_starts_a_launcher_is_told_what_to_rehearse(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import subprocess, sys\n"
        "words = '-m deepspeed.launcher.launch --world_info=e30= train.py --deepspeed zero2.json'.split()\n"
        "subprocess.run([sys.executable, *words])\n"
    )
    done = rehearse("--num-gpus", 2, "run.py", cwd=tmp_path, forked=True)
    assert done.code == 2
    assert "run.py:3: the script has deepspeed start its ranks. Rehearse what that starts: " in done.err
    assert "zerokit rehearse --num-gpus 2 --launcher deepspeed train.py --deepspeed zero2.json" in done.err
