"""Each preset of ds_configs/, in both forms, on two CPU ranks: three real steps, all with the same losses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.combinations import ALL, REST
from tests.tiny import REPOSITORY, launch, tiny_llama

FOLDERS = {"auto": REPOSITORY / "ds_configs", "plain": REPOSITORY / "ds_configs" / "plain"}
PRESETS = sorted(file.stem for file in FOLDERS["auto"].glob("*.json"))
TRAINING = [preset for preset in PRESETS if preset != "inference"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each preset of a form showed; all of a form run in one start of the two ranks."""
    folder = tmp_path_factory.mktemp("presets")
    # Matrices of a megabyte per rank: DeepSpeed leaves smaller ones in memory instead of on NVMe.
    tiny_llama(folder / "model", hidden_size=256, intermediate_size=4096, initializer_range=0.02)

    @cache
    def of(form: str) -> dict[str, Any]:
        here = folder / form
        here.mkdir()
        presets = PRESETS if form == "auto" or ALL else ["inference"]  # of the others no test asks then
        words = [f"{preset}={_on_this_machine(FOLDERS[form] / f'{preset}.json', here)}" for preset in presets]
        done = launch(
            ["tests/launched/train_presets.py", folder / "model", here / "out.json", form, *words],
            ranks=2,
            launcher="none",
            # Each rank is its own node: ZeRO++ quantizes gradients only between nodes.
            env={"LOCAL_SIZE": "1", "PYTHONPATH": str(REPOSITORY)},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads((here / "out.json").read_text())
        return found

    return of


def _on_this_machine(preset: Path, folder: Path) -> Path:
    """A copy whose NVMe device is a folder here; nothing else is changed."""
    nvme = folder / "nvme"
    nvme.mkdir(exist_ok=True)
    copy = folder / preset.name
    copy.write_text(preset.read_text().replace('"/local_nvme"', json.dumps(str(nvme))))
    return copy


@pytest.mark.parametrize("form", ["auto", pytest.param("plain", marks=REST)])
@pytest.mark.parametrize("preset", TRAINING)
def test_it_trains(runs: Any, form: str, preset: str) -> None:
    run = runs(form)[preset]
    assert run["steps"] == 3
    assert run["losses"][0] > run["losses"][1] > run["losses"][2]
    # The place of the states does not change the losses; quantized parameters change them a little.
    tolerance = 0.02 if preset == "zeropp" else 2e-3
    assert run["losses"] == pytest.approx(runs(form)["zero1"]["losses"], abs=tolerance)


@pytest.mark.parametrize("form", ["auto", pytest.param("plain", marks=REST)])
@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_what_its_name_says(runs: Any, form: str, preset: str) -> None:
    run = runs(form)[preset]
    zero = json.loads((FOLDERS[form] / f"{preset}.json").read_text())["zero_optimization"]
    assert run["stage"] == zero["stage"]
    assert (run["num_divided"] > 0) == (zero["stage"] == 3)
    assert run["parameters_elsewhere"] == ("offload_param" in zero)
    assert run["optimizer_elsewhere"] == ("offload_optimizer" in zero)
    assert run["precision"] == "torch.bfloat16"


@pytest.mark.parametrize("form", ["auto", pytest.param("plain", marks=REST)])
def test_nvme_is_written_to(runs: Any, form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs(form)
    folder = next(tmp_path_factory.getbasetemp().glob(f"presets*/{form}/nvme"))
    swapped = [file for file in folder.rglob("*.swp") if file.stat().st_size >= 2**20]
    assert {file.parent.name for file in swapped} == {"rank0", "rank1"}
    assert {file.parent.parent.name for file in swapped} == {"bfloat16params", "optimizer"}


def test_a_model_divided_for_inference_evaluates_and_generates(runs: Any) -> None:
    assert len(runs("auto")["inference"]["losses"]) == 1
    assert runs("plain")["inference"]["generated"] == 3
