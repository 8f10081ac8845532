"""A name that a library has no longer: the rehearsal goes on, and its report says what was not replaced."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.rehearsal.commands import rehearse

PACKAGES_ASIDE = {
    # As it would be if the method had another name, and as if the module had.
    "peft": {"__init__.py": "", "peft_model.py": "class PeftModel: ...\n"},
    "accelerate": {"__init__.py": ""},
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    for package, files in PACKAGES_ASIDE.items():
        (tmp_path / package).mkdir()
        for name, text in files.items():
            (tmp_path / package / name).write_text(text)
    script = tmp_path / "train.py"
    script.write_text(
        "import accelerate, peft.peft_model, torch\n"
        "torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()\n"
    )
    return script


def test_a_missing_name_is_a_warning_with_its_package_and_its_purpose(script: Path) -> None:
    rehearsed = rehearse("--num-gpus", 2, "--rank", 0, "--format", "json", script, cwd=script.parent)
    assert rehearsed.code == 0, rehearsed.err
    found = [line for line in rehearsed.report["warnings"] if "went on without" in line]
    assert (
        f"peft {version('peft')} has no peft.peft_model.PeftModel.save_pretrained, which zerokit replaces to "
        "write nothing and note it: the rehearsal went on without it"
    ) in found
    assert any(
        f"accelerate {version('accelerate')} has no accelerate.big_modeling.dispatch_model" in line
        for line in found
    )
    assert not any("torch" in line.split(" has no ")[0] for line in found)
