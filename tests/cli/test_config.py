import itertools
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import refused
from tests.writing.deciding import written
from zerokit.models import load_model_shape

Run = Callable[..., tuple[int, str, str]]

FOLDER = Path(__file__).parents[2] / "ds_configs"
PRESETS = re.findall(r"^\| `(\w+\.json)` \|.*\| `(--[^`]*)` \|$", (FOLDER / "README.md").read_text(), re.M)


def test_the_table_names_every_preset() -> None:
    names = sorted(name for name, _ in PRESETS)
    for folder in (FOLDER, FOLDER / "plain"):
        assert names == sorted(file.name for file in folder.glob("*.json"))


@pytest.mark.parametrize(("name", "options"), PRESETS)
def test_presets_are_what_their_command_writes(zerokit: Run, name: str, options: str) -> None:
    words = options.split()
    assert zerokit("config", *words) == (0, (FOLDER / name).read_text(), "")
    plain = (FOLDER / "plain" / name).read_text()
    assert zerokit("config", *words, "--target", "deepspeed") == (0, plain, "")


@pytest.mark.parametrize(("folder", "target"), [(FOLDER, "trainer"), (FOLDER / "plain", "deepspeed")])
def test_presets_check_clean(zerokit: Run, folder: Path, target: str) -> None:
    code, out, _ = zerokit("check", "--format", "json", "--target", target, *sorted(folder.glob("*.json")))
    findings = [finding for file in json.loads(out)["files"] for finding in file["findings"]]
    assert code == 0
    assert [finding for finding in findings if finding["severity"] != "info"] == []


EVERY_OPTION: dict[str, Any] = {
    "zero_stage": 3,
    "offload_optimizer": "nvme",
    "offload_param": "cpu",
    "nvme_path": "/n",
    "precision": "fp16",
    "optimizer": "Lion",
    "scheduler": "WarmupDecayLR",
    "learning_rate": 1e-4,
    "warmup_steps": 7,
    "total_steps": 70,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 0.5,
    "hpz_size": 4,
    "activation_checkpointing": "cpu",
    "num_gpus": 16,
    "gpus_per_node": 4,
    "target": "deepspeed",
}


def test_options_reach_the_config(zerokit: Run) -> None:
    options = [(f"--{name.replace('_', '-')}", value) for name, value in EVERY_OPTION.items()]
    model = ("--model", "llama-3.1-8b", "--gpu-memory", "1GiB", "--zero-plus-plus")
    code, out, _ = zerokit("config", *itertools.chain(*options), *model)
    expected = written(
        **EVERY_OPTION, model=load_model_shape("llama-3.1-8b"), gpu_memory_bytes=2**30, zero_plus_plus=True
    )
    assert code == 0
    assert json.loads(out) == expected.dump()
    assert zerokit("config", "--zero-stage", 3, "--inference")[1] == (FOLDER / "inference.json").read_text()


def test_a_config_is_for_whole_nodes(zerokit: Run) -> None:
    words = ("config", "--zero-stage", 2, "--num-gpus", 7, "--gpus-per-node", 3)
    assert "--num-gpus: 7 GPUs do not fill nodes of 3" in refused(zerokit, *words)


@pytest.mark.parametrize("missing", ["--model", "--num-gpus", "--gpu"])
def test_what_is_missing_to_choose_a_stage_is_named(missing: str, zerokit: Run) -> None:
    given = {"--model": "gpt2", "--num-gpus": 2, "--gpu": "H100"}
    words = itertools.chain(*(pair for pair in given.items() if pair[0] != missing))
    assert f"{missing}: is missing for zerokit to choose" in refused(zerokit, "config", *words)


@pytest.mark.parametrize(
    ("card", "stage", "precision"), [("v100-32", 2, "fp16"), ("v100-32", 0, "bf16"), ("h100", 2, "bf16")]
)
def test_the_precision_is_one_that_the_card_multiplies(card: str, stage: int, precision: str, zerokit: Run) -> None:
    words = ("--zero-stage", stage, "--gpu", card, "--target", "deepspeed")
    assert json.loads(zerokit("config", *words)[1])[precision]["enabled"]
    for others in (("--precision", "bf16"), ("--optimizer", "Muon")):
        assert json.loads(zerokit("config", *words, *others)[1])["bf16"]["enabled"]


def test_names_are_taken_in_any_case(zerokit: Run) -> None:
    _, out, _ = zerokit("config", "--zero-stage", 1, "--optimizer", "adamw", "--scheduler", "onecycle")
    data = json.loads(out)
    assert (data["optimizer"]["type"], data["scheduler"]["type"]) == ("AdamW", "OneCycle")


def test_reasons_go_where_the_config_does_not(zerokit: Run, tmp_path: Path) -> None:
    words = ("config", "--zero-stage", 3, "--explain")
    code, out, err = zerokit(*words)
    assert (code, json.loads(out)) == (0, json.loads((FOLDER / "zero3.json").read_text()))
    assert "zero_optimization.stage: 3\n    divides optimizer states" in err
    assert "optimizer: (left out)" in err
    file = tmp_path / "ds.json"
    assert zerokit(*words, "-o", file) == (0, err, "")
    assert file.read_text() == out


def test_reasons_as_json(zerokit: Run) -> None:
    code, out, err = zerokit("config", "--zero-stage", 2, "--explain", "--format", "json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["config"] == json.loads((FOLDER / "zero2.json").read_text())
    stage = next(choice for choice in data["choices"] if choice["path"] == "zero_optimization.stage")
    assert (stage["value"], stage["written"]) == (2, True)
    assert all({"path", "written", "value", "why", "source"} == set(choice) for choice in data["choices"])


def test_the_launch_config_names_the_ds_config(zerokit: Run, tmp_path: Path) -> None:
    ds_file, launch_file = tmp_path / "ds.json", tmp_path / "launch.yaml"
    words = ("config", "--zero-stage", 3, "--num-gpus", 8, "--accelerate-yaml", launch_file)
    assert "Name that file with -o" in refused(zerokit, *words)
    assert zerokit(*words, "-o", ds_file) == (0, "", "")
    data = yaml.safe_load(launch_file.read_text())
    assert data["deepspeed_config"] == {"deepspeed_config_file": str(ds_file), "zero3_init_flag": True}
    assert (data["num_processes"], data["num_machines"]) == (8, 1)
    launch_file.unlink()
    code, _, err = zerokit(*words, "-o", ds_file)  # neither file is written where one of them exists
    assert (code, launch_file.exists()) == (2, False)
    assert "--force" in err
    assert zerokit(*words, "-o", ds_file, "--force")[0] == 0


def test_deepspeed_alone_gets_bf16_by_default(zerokit: Run) -> None:
    _, out, _ = zerokit("config", "--zero-stage", 2, "--target", "deepspeed")
    assert json.loads(out)["bf16"] == {"enabled": True}
    assert "auto" not in out


def test_a_file_is_written_whole_and_not_overwritten(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    assert zerokit("config", "--zero-stage", 2, "-o", file) == (0, "", "")
    written = file.read_text()
    assert "--force" in refused(zerokit, "config", "--zero-stage", 3, "-o", file)
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
    assert "cannot be written" in refused(zerokit, "config", "--zero-stage", 2, "-o", tmp_path / "absent" / "ds.json")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--zero-stage", 4], "--zero-stage: is 4. Give 0 to 3"),
        (["--zero-stage", "three"], "--zero-stage: 'three' is not a whole number. Give 0 to 3"),
        (["--zero-stage", 3, "--hpz-size", 1], "--hpz-size: is 1. Give 2 or more"),
        *(
            (
                ["--zero-stage", 3, "--target", "deepspeed", "--learning-rate", rate],
                f"--learning-rate: must be more than 0 and finite, not {float(rate)}. Write it like 1e-5",
            )
            for rate in ("inf", "nan", "-1", "1e400")
        ),
        (
            ["--zero-stage", 3, "--target", "deepspeed", "--gradient-clipping", "inf"],
            "--gradient-clipping: must be at least 0 and finite, not inf. 0 switches it off",
        ),
        (
            ["--zero-stage", 3, "--warmup-steps", 5],
            "--warmup-steps: has no place in a config without a scheduler. Choose a scheduler",
        ),
        (
            ["--zero-stage", 3, "--inference", "--total-steps", 5],
            "--total-steps: is for training only. Remove it, or --inference",
        ),
        (
            ["--zero-stage", 3, "--learning-rate", "fast"],
            "--learning-rate: 'fast' is not a number. Run 'zerokit config --help'",
        ),
    ],
)
def test_a_number_that_cannot_be_is_told_with_those_that_can(words: list[str | int], line: str, zerokit: Run) -> None:
    assert zerokit("config", *words) == (2, "", f"zerokit: error: {line}\n")


@pytest.mark.parametrize(
    ("words", "stage", "offload", "because"),
    [
        (["qwen2.5-0.5b", 8, "h100"], 1, set(), "stage 1 fits, with "),
        (["llama-3.1-8b", 8, "a100-40"], 3, set(), "stage 3 fits, with "),
        (["qwen2.5-7b", 1, "a100-80"], 2, {"offload_optimizer"}, "; stage 1: does not fit ("),
    ],
)
def test_the_stage_is_chosen_for_model_gpus_and_card(
    zerokit: Run, words: list[object], stage: int, offload: set[str], because: str
) -> None:
    model, num_gpus, gpu = words
    code, out, err = zerokit("config", "--model", model, "--num-gpus", num_gpus, "--gpu", gpu)
    assert code == 0
    zero = json.loads(out)["zero_optimization"]
    assert (zero["stage"], {key for key in zero if key.startswith("offload_")}) == (stage, offload)
    assert because in err
    needs = "per_device_train_batch_size=1 (the Trainer's default is 8), gradient_checkpointing=True and 2,048"
    assert f". It needs {needs} tokens; " in err


@pytest.mark.parametrize(
    ("options", "micro_batch", "needs"),
    [
        ((), "auto", "per_device_train_batch_size=1 (the Trainer's"),
        (("--micro-batch-size", 2), 2, "per_device_train_batch_size=2 (the Trainer's"),
        (("--target", "accelerate"), "auto", "a DataLoader with batch_size=1, gradient checkpointing and"),
        (("--target", "deepspeed"), 1, "micro batch 1, gradient checkpointing and"),
    ],
)
def test_the_note_says_how_to_train_so_that_the_chosen_stage_fits(
    zerokit: Run, options: tuple[object, ...], micro_batch: object, needs: str
) -> None:
    words = ("config", "--model", "qwen2.5-0.5b", "--num-gpus", 8, "--gpu", "h100")
    code, out, err = zerokit(*words, *options)
    assert code == 0
    assert json.loads(out)["train_micro_batch_size_per_gpu"] == micro_batch
    assert f". It needs {needs}" in err


@pytest.mark.parametrize(("gpu", "is_condition"), [("4090", True), ("h100", False)])
def test_the_choice_depends_on_host_memory_that_is_not_known(zerokit: Run, gpu: str, is_condition: bool) -> None:
    words = ("config", "--model", "llama-3.1-8b", "--num-gpus", 8, "--gpu", gpu)
    code, _, err = zerokit(*words, "--offload-optimizer", "cpu")
    assert code == 0
    assert bool(re.search(r" of \S+ GiB, if each host has [\d.]+ to [\d.]+ GiB", err)) is is_condition


def test_reasons_say_which_settings_zerokit_chose(zerokit: Run) -> None:
    words = ["config", "--model", "qwen2.5-7b", "--num-gpus", 1, "--explain", "--format", "json"]

    def sources(*options: object) -> list[str]:
        choices = json.loads(zerokit(*words, "--gpu", "a100-80", *options)[1])["choices"]
        keys = ("zero_optimization.stage", "zero_optimization.offload_optimizer.device")
        return [choice["source"] for choice in choices if choice["path"] in keys]

    chosen = "chosen: the first that fits"
    assert sources() == [chosen, chosen]
    assert sources("--offload-optimizer", "cpu") == [chosen, "as asked"]
    assert sources("--offload-optimizer", "cpu", "--zero-stage", 2) == ["as asked", "as asked"]


def test_what_fits_with_no_stage_is_1(zerokit: Run) -> None:
    code, out, err = zerokit("config", "--model", "llama-3.1-70b", "--num-gpus", 1, "--gpu", "v100-16")
    assert (code, out) == (1, "")
    assert "no ZeRO stage and offload fits 1 GPU of" in err
    words = ["config", "--model", "qwen2.5-0.5b", "--num-gpus", 8, "--gpu", "h100"]
    assert "offload_optimizer" in zerokit(*words, "--offload-optimizer", "cpu")[1]
    on_nvme = zerokit(*words, "--offload-optimizer", "nvme", "--nvme-path", "/nvme")
    zero = json.loads(on_nvme[1])["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"]) == (3, "nvme")
    assert "stage 3 with the optimizer on NVMe fits" in on_nvme[2]
    assert "--model, --num-gpus and --gpu, for which zerokit chooses" in zerokit("config")[2]
