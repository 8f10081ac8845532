"""The step that explanation/how-time-is-predicted.md works out by hand is the rehearsed one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.tiny import REPOSITORY

pytestmark = pytest.mark.rehearsal


def test_the_step_worked_out_by_hand_is_the_rehearsed_one(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "explanation" / "how-time-is-predicted.md").read_text(encoding="utf-8")
    section = page.split("## One step by hand\n")[1].split("\n## ")[0]
    *parts, whole = [float(found) for found in re.findall(r"\| (\d\.\d{3}) \|$", section, re.MULTILINE)]
    forward, backward, all_reduce, sgd, start = parts
    options = ("--time", "--gpu", "H100-SXM", "--num-gpus", 8, "--no-advise", "--format", "json")
    time = rehearse(*options, SCRIPTS / "by_hand.py", cwd=tmp_path).report["time"]
    kernels = {kernel["name"]: 1e3 * kernel["seconds"] for kernel in time["kernels"]}
    by_hand = {"aten::mm": forward + backward, "all_reduce": all_reduce, "aten::add": sgd}
    assert kernels == pytest.approx(by_hand, abs=0.001)
    assert 1e3 * time["breakdown"]["launch"] == pytest.approx(start, abs=0.0006)
    assert 1e3 * time["step_seconds"] == pytest.approx(whole, abs=0.0006)
    assert sum(parts) == pytest.approx(whole, abs=0.0011)
