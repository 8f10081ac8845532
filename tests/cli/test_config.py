import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from zerokit.config import build_ds_config

Run = Callable[..., tuple[int, str, str]]

FOLDER = Path(__file__).parents[2] / "ds_configs"
PRESETS = re.findall(
    r"^\| `(\w+\.json)` \|.*\| `zerokit (config [^`]*)` \|$", (FOLDER / "README.md").read_text(), re.M
)


def test_the_table_names_every_preset() -> None:
    assert sorted(name for name, _ in PRESETS) == sorted(file.name for file in FOLDER.glob("*.json"))


@pytest.mark.parametrize(("name", "command"), PRESETS)
def test_presets_are_what_their_command_writes(zerokit: Run, name: str, command: str) -> None:
    assert zerokit(*command.split()) == (0, (FOLDER / name).read_text(), "")


def test_flags_reach_the_config(zerokit: Run) -> None:
    code, out, _ = zerokit(
        *(
            "config",
            "--zero-stage",
            3,
            "--offload-optimizer",
            "cpu",
            "--offload-param",
            "nvme",
            "--nvme-path",
            "/n",
        ),
        *(
            "--precision",
            "fp16",
            "--micro-batch-size",
            4,
            "--gradient-accumulation-steps",
            8,
            "--target",
            "accelerate",
        ),
    )
    expected = build_ds_config(
        zero_stage=3,
        offload_optimizer="cpu",
        offload_param="nvme",
        nvme_path="/n",
        precision="fp16",
        micro_batch_size=4,
        gradient_accumulation_steps=8,
        target="accelerate",
    )
    assert code == 0
    assert json.loads(out) == expected.dump()


def test_deepspeed_alone_gets_bf16_by_default(zerokit: Run) -> None:
    _, out, _ = zerokit("config", "--zero-stage", 2, "--target", "deepspeed")
    assert json.loads(out)["bf16"] == {"enabled": True}
    assert "auto" not in out


def test_a_file_is_written_whole_and_not_overwritten(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    assert zerokit("config", "--zero-stage", 2, "-o", file) == (0, "", "")
    written = file.read_text()
    code, _, err = zerokit("config", "--zero-stage", 3, "-o", file)
    assert code == 2
    assert "--force" in err
    assert file.read_text() == written
    assert zerokit("config", "--zero-stage", 3, "-o", file, "--force")[0] == 0
    assert json.loads(file.read_text())["zero_optimization"]["stage"] == 3
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(zerokit: Run, tmp_path: Path) -> None:
    plain, file = tmp_path / "plain", tmp_path / "ds.json"
    plain.touch()
    zerokit("config", "--zero-stage", 2, "-o", file)
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    file.chmod(0o640)
    zerokit("config", "--zero-stage", 2, "-o", file, "--force")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_link_stays_a_link(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "real.json").touch()
    (tmp_path / "link.json").symlink_to("real.json")
    assert zerokit("config", "--zero-stage", 2, "-o", tmp_path / "link.json", "--force")[0] == 0
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text()


def test_an_unwritable_place_is_one_line(zerokit: Run, tmp_path: Path) -> None:
    code, _, err = zerokit("config", "--zero-stage", 2, "-o", tmp_path / "absent" / "ds.json")
    assert code == 2
    assert err.count("\n") == 1
    assert "cannot be written" in err
