"""What the rules say of the YAML of ``accelerate launch``, against the installed accelerate."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.validation.lint.hints import edits_of
from zerokit.config.launch_file import ds_config_of
from zerokit.config.repairs import edited
from zerokit.documents import Document, parse_yaml
from zerokit.findings import Finding, Move, Remove, SetValue
from zerokit.lint import launch_options
from zerokit.lint.run import all_rules, check_launch_document
from zerokit.releases.versions import parse_version
from zerokit.resolving.run import Run

pytestmark = pytest.mark.torch

BASE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "num_machines": 1,
    "num_processes": 4,
}
FILE = "deepspeed_config_file"


def launch(*, section: Mapping[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A launch file with the given keys and `deepspeed_config`."""
    return {**BASE, "deepspeed_config": dict(section or {"zero_stage": 2}), **keys}


def findings(data: Mapping[str, Any], **facts: Any) -> list[Finding]:
    return list(check_launch_document(Document(data, "accelerate.yaml"), Run.of(**facts)).findings)


def said(data: Mapping[str, Any], *severities: str) -> list[tuple[str, str]]:
    """Rule and path of each finding of one of these severities; by default of errors and warnings."""
    wanted = severities or ("error", "warning")
    return [
        (finding.rule, ".".join(map(str, finding.path))) for finding in findings(data) if finding.severity in wanted
    ]


@pytest.fixture(scope="module")
def accelerate() -> Any:
    return pytest.importorskip("accelerate.commands.launch")


def started(text: str, folder: Path, accelerate: Any) -> tuple[Any, dict[str, str], Any]:
    """What ``accelerate launch`` makes of a file: its command, its variables, and the plugin they give."""
    from accelerate.utils.dataclasses import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    file = folder / "accelerate.yaml"
    file.write_text(text, encoding="utf-8")
    arguments = ["--config_file", str(file), "--main_process_port", "0", "train.py"]
    args, defaults, from_file = accelerate._validate_launch_command(
        accelerate.launch_command_parser().parse_args(arguments)
    )
    if not args.use_deepspeed or args.cpu:
        return None, {}, None
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_file else [])]
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)  # as `launch_command` does
    command, variables = prepare_deepspeed_cmd_env(args)
    given = {name: value for name, value in variables.items() if name.startswith("ACCELERATE_")}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            patch.delenv(name)
        for name, value in given.items():
            patch.setenv(name, value)
        return command or args.nproc_per_node, given, DeepSpeedPlugin()


@pytest.fixture(scope="module")
def ds_config(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("launch") / "ds_config.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}))
    return str(file)


def test_names_and_values_are_those_of_accelerate(accelerate: Any) -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.utils import DistributedType, PrecisionType
    from accelerate.utils.constants import DEEPSPEED_MULTINODE_LAUNCHERS

    options = {action.dest for action in accelerate.launch_command_parser()._actions} - {"help"}
    known = launch_options.DEEPSPEED_KEYS | launch_options.OTHER_OPTIONS
    assert known == options
    assert set(ClusterConfig.__dataclass_fields__) == launch_options.TOP_KEYS
    assert tuple(kind.value for kind in DistributedType) == launch_options.DISTRIBUTED_TYPES
    assert sorted(launch_options.PRECISIONS) == sorted(PrecisionType.list())
    assert tuple(DEEPSPEED_MULTINODE_LAUNCHERS) == launch_options.MULTINODE_LAUNCHERS


REFUSED: dict[str, tuple[dict[str, Any], str, tuple[str, str]]] = {
    "an unknown key": (launch(zero_stage=3), "unknown keys", ("launch-unknown-key", "zero_stage")),
    "no type": (
        {key: value for key, value in launch().items() if key != "distributed_type"},
        "`distributed_type` must be specified",
        ("launch-type", ""),
    ),
    "a type in lower case": (
        launch(distributed_type="deepspeed"),
        "not a valid DistributedType",
        ("launch-type", "distributed_type"),
    ),
    "no, unquoted": (
        launch(mixed_precision=False),
        "'bool' object has no attribute 'lower'",
        ("launch-precision", "mixed_precision"),
    ),
    "an unknown precision": (
        launch(mixed_precision="bfloat16"),
        "Unknown mixed_precision mode",
        ("launch-precision", "mixed_precision"),
    ),
    "a stage that is no number": (
        launch(section={"zero_stage": "auto"}),
        "invalid literal for int",
        ("launch-value", "deepspeed_config.zero_stage"),
    ),
    "clipping that is no number": (
        launch(section={"gradient_clipping": "off"}),
        "could not convert string to float",
        ("launch-value", "deepspeed_config.gradient_clipping"),
    ),
    "a switch that is a word": (
        launch(section={"zero_stage": 3, "zero3_init_flag": "maybe", "zero3_save_16bit_model": True}),
        "invalid truth value",
        ("launch-value", "deepspeed_config.zero3_init_flag"),
    ),
    "a GPU that is a number": (
        launch(gpu_ids=0, num_processes=1),
        "'int' object has no attribute 'split'",
        ("launch-gpu-ids", "gpu_ids"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_accelerate_refuses(name: str, accelerate: Any, tmp_path: Path) -> None:
    data, text, expected = REFUSED[name]
    with pytest.raises((ValueError, AttributeError), match=text):
        started(yaml.safe_dump(data), tmp_path, accelerate)
    assert said(data, "error") == [expected]


@pytest.mark.parametrize("key", launch_options.REFUSED_WITH_FILE)
@pytest.mark.parametrize("value", [2, None])
def test_what_may_not_stand_beside_a_ds_config(
    key: str, value: Any, accelerate: Any, tmp_path: Path, ds_config: str
) -> None:
    if key == "mixed_precision":
        data = launch(section={FILE: ds_config}, mixed_precision=None if value is None else "no")
        path: tuple[str, ...] = (key,)
    else:
        data = launch(section={FILE: ds_config, key: value})
        path = ("deepspeed_config", key)
    harmless = key == "mixed_precision" and value is None
    if harmless:
        started(yaml.safe_dump(data), tmp_path, accelerate)
        assert said(data) == []
        return
    with pytest.raises(ValueError, match="accelerate config variables will be ignored"):
        started(yaml.safe_dump(data), tmp_path, accelerate)
    (finding,) = [finding for finding in findings(data) if finding.rule == "launch-two-configs"]
    assert finding.path == path
    in_ds_config = {"zero_stage": 2, "mixed_precision": "no"}  # which "no" agrees with
    assert finding.fix == ((Remove(path),) if value is None or key in in_ds_config else ())


@pytest.mark.parametrize(
    ("ds_config", "key", "value", "words", "enough"),
    [
        ({"bf16": {"enabled": "auto"}}, "mixed_precision", "bf16", "leaves it to the script", False),
        ({}, "mixed_precision", "bf16", "leaves it to the script", False),
        ({"bf16": {"enabled": True}}, "mixed_precision", "bf16", "the ds_config says it", True),
        ({"fp16": {"enabled": True}}, "mixed_precision", "bf16", "the ds_config has fp16", False),
        ({"bf16": {"enabled": "auto"}}, "mixed_precision", "no", "the ds_config says it", True),
        ({"zero_optimization": {"stage": 3}}, "zero_stage", 3, "the ds_config says it", True),
        ({"zero_optimization": {"stage": 3}}, "zero_stage", 2, "which has 3", False),
        ({"gradient_clipping": "auto"}, "gradient_clipping", 0.5, "which has 'auto'", False),
        ({}, "offload_param_device", "none", "the ds_config says it", True),
        (None, "gradient_clipping", 0.5, "see that the ds_config has gradient_clipping 0.5", False),
        (None, "gradient_clipping", None, "Remove the key", True),
    ],
)
def test_the_advice_about_two_configs_follows_the_ds_config(
    ds_config: dict[str, Any] | None, key: str, value: Any, words: str, enough: bool, tmp_path: Path
) -> None:
    if ds_config is not None:
        (tmp_path / "ds.json").write_text(json.dumps(ds_config))
    data = launch(section={FILE: "ds.json"})
    (data if key == "mixed_precision" else data["deepspeed_config"])[key] = value
    report = check_launch_document(Document(data, str(tmp_path / "launch.yaml")))
    (finding,) = [one for one in report.findings if one.rule == "launch-two-configs"]
    assert words in str(finding.hint)
    assert bool(finding.fix) is enough


def test_a_flag_for_stage_3_is_compared_with_the_ds_config(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    data = launch(section={FILE: "ds.json", "zero3_init_flag": True})
    (finding,) = check_launch_document(Document(data, str(tmp_path / "a.yaml"))).findings
    assert (finding.rule, "the stage is 2 in the ds_config" in finding.message) == ("launch-zero3-keys", True)
    assert said(data) == [("launch-ds-config", f"deepspeed_config.{FILE}")]  # which is not there


STANDARD = {"zero_stage": 2, "deepspeed_multinode_launcher": "standard"}


@pytest.mark.parametrize(
    ("keys", "rule", "endpoint"),
    [
        ({}, "launch-address", "None:29500"),
        ({"main_process_ip": ""}, "launch-address", ":29500"),
        ({"main_process_ip": "127.0.0.1"}, "launch-address", "127.0.0.1:29500"),
        ({"main_process_ip": "10.0.0.1"}, None, "10.0.0.1:29500"),
        ({"main_process_ip": "10.0.0.1", "main_process_port": 0}, "launch-address", None),
        ({"main_process_ip": "10.0.0.1", "same_network": False}, None, "10.0.0.1:29500"),
        ({"main_process_ip": "10.0.0.1", "rdzv_backend": "c10d"}, "launch-rendezvous", "10.0.0.1:29500"),
        ({"section": STANDARD | {"main_process_ip": "10.0.0.1"}}, None, "10.0.0.1:29500"),
    ],
)
def test_machines_meet_at_an_address(
    keys: dict[str, Any], rule: str | None, endpoint: str | None, accelerate: Any, tmp_path: Path
) -> None:
    from accelerate.utils.launch import _filter_args, prepare_deepspeed_cmd_env
    from torch.distributed.run import config_from_args, get_args_parser

    data = launch(**{"section": STANDARD, "num_machines": 2, "machine_rank": 1, **keys})
    file = tmp_path / "accelerate.yaml"
    file.write_text(yaml.safe_dump(data))
    parsed = accelerate.launch_command_parser().parse_args(["--config_file", str(file), "train.py"])
    args, *_ = accelerate._validate_launch_command(parsed)
    args.deepspeed_fields_from_accelerate_config = ""
    prepare_deepspeed_cmd_env(args)
    words = ["--training_script", "train.py", "--training_script_args", []]
    config, *_ = config_from_args(_filter_args(args, get_args_parser(), words))
    assert config.rdzv_backend == "static"
    assert endpoint in (None, config.rdzv_endpoint)
    assert [found for found, _ in said(data)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("port", "rules"), [(65535, []), (0, []), (99999999, ["launch-address"]), (-1, ["launch-address"])]
)
def test_ports_have_16_bits(port: int, rules: list[str]) -> None:
    assert [rule for rule, _ in said(launch(section={"zero_stage": 2}, main_process_port=port))] == rules


def test_a_launcher_with_a_hostfile_finds_the_address() -> None:
    for launcher, rules in (("pdsh", []), ("nossh", ["launch-address"])):
        section = {"deepspeed_hostfile": "hosts", "deepspeed_multinode_launcher": launcher}
        assert [rule for rule, _ in said(launch(section=section, num_machines=2))] == rules


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (1, None, "warning"),
        (1, "accelerate", "warning"),
        ("4", "accelerate", "warning"),
        (1, "trainer", "info"),
        ("auto", None, "info"),
        ("auto", "accelerate", "error"),
        ("auto", "trainer", None),
        (None, "accelerate", None),
    ],
)
def test_steps_in_the_file_win_over_the_script(value: Any, target: Any, expected: str | None) -> None:
    section = {"zero_stage": 2, "gradient_accumulation_steps": value}
    found = findings(launch(section=section, mixed_precision="bf16"), target=target)
    steps = [one for one in found if one.path[-1] == "gradient_accumulation_steps"]
    assert [one.severity for one in steps] == ([expected] if expected else [])
    assert all(str(one.hint).startswith(("Remove the key", "Make them equal, or remove")) for one in steps)
    if target == "accelerate":
        text = " ".join(f"{one.message} {one.hint}" for one in found)
        assert "Trainer" not in text
        assert value == "auto" or "auto" not in text


def test_auto_stops_an_accelerator_and_no_value_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "auto")
    with pytest.raises(ValueError, match="invalid literal for int"):
        accelerate.Accelerator(gradient_accumulation_steps=4)


@pytest.mark.parametrize(
    ("section", "keys", "version", "name", "severity"),
    [
        ({"gradient_accumulation_steps": 8}, {}, "0.18.2", "zero2-accumulation", "error"),
        ({"gradient_accumulation_steps": 1}, {}, "0.18.2", "zero2-accumulation", None),
        ({}, {}, "0.18.2", "zero2-accumulation", "warning"),
        ({}, {}, "0.18.3", "zero2-accumulation", None),
        ({"offload_optimizer_device": "cpu"}, {}, "0.18.5", "zero2-offload-accumulation", "warning"),
        ({"zero_stage": 0}, {"mixed_precision": "bf16"}, "0.18.0", "stage0-bf16-accumulates", "error"),
        ({"zero_stage": 0}, {"mixed_precision": "no"}, "0.18.0", "stage0-bf16-accumulates", "warning"),
        ({"zero_stage": 0}, {"mixed_precision": "fp16"}, "0.18.0", "stage0-bf16-accumulates", None),
        ({"zero_stage": 3, "zero3_save_16bit_model": True}, {}, "0.17.0", "zero3-gradient-stream", "warning"),
        ({FILE: "ds.json"}, {}, "0.18.2", "zero2-accumulation", None),
        ({}, {"distributed_type": "FSDP"}, "0.18.2", "zero2-accumulation", None),
    ],
)
def test_known_defects_of_what_accelerate_makes_of_the_file(
    section: dict[str, Any], keys: dict[str, Any], version: str, name: str, severity: str | None
) -> None:
    data = launch(section=section, **keys)
    found = findings(data, deepspeed_version=parse_version(version))
    met = [one for one in found if one.message.endswith(f"zerokit explain {name})")]
    assert [one.severity for one in met] == ([severity] if severity else [])
    assert all(one.message.startswith(f"DeepSpeed {version} with '") for one in met)
    assert all(
        ("if the script" in one.message) is (name != "zero3-gradient-stream" and severity == "warning") for one in met
    )


@pytest.mark.parametrize(
    ("keys", "section"),
    [
        ({"mixed_precision": "bf16"}, {"gradient_accumulation_steps": 4, "gradient_clipping": 0.5}),
        ({"mixed_precision": "fp16"}, {"zero_stage": 3, "offload_param_device": "cpu"}),
        ({}, {"zero_stage": 3, "offload_optimizer_device": "cpu", "zero3_save_16bit_model": True}),
        ({"mixed_precision": "no"}, {"zero_stage": 0, "gradient_clipping": 0.0}),
        ({"mixed_precision": "fp8"}, {"zero_stage": "1"}),
    ],
)
def test_the_ds_config_is_that_which_accelerate_makes(
    keys: dict[str, Any], section: dict[str, Any], accelerate: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    data = launch(section=section, **keys)
    monkeypatch.setattr("accelerate.utils.launch.is_fp8_available", lambda: True)
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    word = keys.get("mixed_precision", "no")
    plugin.set_mixed_precision(word)
    ours, theirs = ds_config_of(Document(data, "a.yaml")).data, plugin.deepspeed_config
    for name in ("bf16", "fp16"):
        left_open = word == "no" and ours[name] == {"enabled": "auto"} and theirs[name] == {"enabled": False}
        assert left_open or ours[name] == theirs[name]
    assert normal(ours) == normal(theirs)


def normal(config: dict[str, Any]) -> dict[str, Any]:
    """Without the precisions, and what means the same whether written or not."""
    zero = {key: value for key, value in config["zero_optimization"].items() if value is not False}
    for key in ("offload_optimizer", "offload_param"):
        section = {name: value for name, value in zero.pop(key, {}).items() if value is not None}
        zero |= {key: section} if section.get("device", "none") != "none" else {}
    rest = {key: value for key, value in config.items() if key not in ("bf16", "fp16", "steps_per_print")}
    return rest | {"zero_optimization": zero}


def test_what_may_stand_beside_a_ds_config(accelerate: Any, tmp_path: Path, ds_config: str) -> None:
    data = launch(section={FILE: ds_config, "zero3_init_flag": False, "deepspeed_multinode_launcher": "standard"})
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert plugin.zero_stage == 2
    assert said(data) == []


def test_a_misspelled_key_is_passed_over(accelerate: Any, tmp_path: Path) -> None:
    data = launch(section={"zero_stag": 3})
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert plugin.zero_stage == 2
    (finding,) = findings(data)
    assert (finding.rule, finding.severity) == ("launch-unknown-key", "error")
    assert finding.hint == "Did you mean 'zero_stage'?"


def test_a_key_of_the_section_at_the_top_is_moved() -> None:
    (finding,) = [finding for finding in findings(launch(zero_stage=3)) if finding.severity == "error"]
    assert finding.fix == (Move(("zero_stage",), ("deepspeed_config", "zero_stage")),)


def test_other_options_may_stand_in_the_section(accelerate: Any, tmp_path: Path) -> None:
    data = launch(section={"num_processes": 3})
    command, *_ = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert command == "3"
    assert said(data) == []


def test_the_path_of_nvme_is_lost(accelerate: Any, tmp_path: Path) -> None:
    section = {
        "zero_stage": 3,
        "zero3_save_16bit_model": True,
        "offload_param_device": "nvme",
        "offload_param_nvme_path": "/local_nvme",
    }
    *_, plugin = started(yaml.safe_dump(launch(section=section)), tmp_path, accelerate)
    assert plugin.deepspeed_config["zero_optimization"]["offload_param"]["nvme_path"] == "none"
    assert said(launch(section=section)) == [("launch-nvme", "deepspeed_config.offload_param_device")]


@pytest.mark.parametrize("value", [0, 0.0, "0"])
def test_clipping_of_0_is_dropped(value: Any, accelerate: Any, tmp_path: Path) -> None:
    data = launch(section={"zero_stage": 2, "gradient_clipping": value})
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert "gradient_clipping" not in plugin.deepspeed_config
    assert said(data) == [("launch-clipping-off", "deepspeed_config.gradient_clipping")]


def test_clipping_is_kept_otherwise(accelerate: Any, tmp_path: Path) -> None:
    data = launch(section={"zero_stage": 2, "gradient_clipping": 0.5})
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert plugin.deepspeed_config["gradient_clipping"] == 0.5
    assert said(data) == []


def test_a_flag_for_stage_3_is_taken_back(accelerate: Any, tmp_path: Path) -> None:
    data = launch(section={"zero_stage": 2, "zero3_init_flag": True})
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert plugin.zero3_init_flag is False
    assert said(data) == [("launch-zero3-keys", "deepspeed_config.zero3_init_flag")]


def test_saving_asks_for_a_true_that_is_spelled_so(accelerate: Any, tmp_path: Path) -> None:
    for value, gathers in ((True, True), ("True", True), ("yes", False)):
        data = launch(section={"zero_stage": 3, "zero3_save_16bit_model": value})
        *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
        assert plugin.zero3_save_16bit_model is gathers
        assert (said(data) == []) is gathers


def test_the_stage_is_2_unless_given(accelerate: Any, tmp_path: Path) -> None:
    data = launch(section={"offload_param_device": "cpu"})
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert plugin.zero_stage == 2
    (finding,) = findings(data)
    assert finding.rule == "launch-offload-stage"
    assert "the stage is 2, the default" in finding.message


def test_processes_are_divided_among_machines(accelerate: Any, tmp_path: Path) -> None:
    section = {"zero_stage": 2, "deepspeed_hostfile": "hostfile"}
    data = launch(section=section, num_machines=2, num_processes=7, main_process_ip="10.0.0.1")
    command, *_ = started(yaml.safe_dump({**data, "machine_rank": 1}), tmp_path, accelerate)
    assert command[command.index("--num_gpus") + 1] == "3"
    assert said(data) == [("launch-processes", "num_processes")]
    assert said({**data, "num_processes": 8}) == []


def test_processes_are_those_of_the_option() -> None:
    (finding,) = findings(launch(num_processes=8), num_gpus=16)
    assert (finding.rule, finding.path, finding.severity) == ("launch-processes", ("num_processes",), "warning")
    assert finding.message == "this file starts 8 processes, but --num-gpus is 16"
    assert findings(launch(num_processes=8), num_gpus=8) == findings(launch(num_processes=8)) == []
    found = findings(launch(num_processes=8, distributed_type="NO"), num_gpus=16)
    assert "launch-processes" not in [finding.rule for finding in found]


def test_processes_in_quotes(accelerate: Any, tmp_path: Path) -> None:
    def severities(**keys: Any) -> list[str]:
        found = findings(launch(num_processes="2", **keys))
        return [finding.severity for finding in found if finding.rule == "launch-processes"]

    started(yaml.safe_dump(launch(num_processes="2")), tmp_path, accelerate)
    assert severities() == ["warning"]
    several = {"num_machines": 2, "section": {"deepspeed_hostfile": "hosts"}}
    with pytest.raises(TypeError):
        started(yaml.safe_dump(launch(num_processes="2", **several)), tmp_path, accelerate)
    assert severities(**several) == severities(use_cpu=True) == ["error"]


def test_no_hostfile_is_a_file_called_none(accelerate: Any, tmp_path: Path) -> None:
    data = launch(num_machines=2, num_processes=8, machine_rank=1, main_process_ip="10.0.0.1")
    command, *_ = started(yaml.safe_dump(data), tmp_path, accelerate)
    assert command[command.index("--hostfile") + 1] == "None"
    assert said(data) == [("launch-hostfile", "deepspeed_config")]
    standard = {"deepspeed_multinode_launcher": "standard"}
    assert said({**data, "deepspeed_config": standard}) == []


def test_the_cpu_is_not_passed_on(accelerate: Any, tmp_path: Path) -> None:
    _, variables, _ = started(yaml.safe_dump(launch(use_cpu=True)), tmp_path, accelerate)
    assert "ACCELERATE_USE_CPU" not in variables
    assert said(launch(use_cpu=True)) == [("launch-cpu", "use_cpu")]


def test_false_in_quotes_is_true(accelerate: Any, tmp_path: Path) -> None:
    _, variables, _ = started(yaml.safe_dump(launch(debug="false")), tmp_path, accelerate)
    assert variables["ACCELERATE_DEBUG_MODE"] == "true"
    (finding,) = findings(launch(debug="false"))
    assert (finding.rule, finding.fix) == ("launch-switch", (SetValue(("debug",), False),))


def test_a_launcher_matters_on_several_machines_only(accelerate: Any, tmp_path: Path) -> None:
    data = launch(section={"zero_stage": 2, "deepspeed_multinode_launcher": "ssh"})
    started(yaml.safe_dump(data), tmp_path, accelerate)
    assert said(data) == []
    several = launch(section={**data["deepspeed_config"], "deepspeed_hostfile": "hosts"}, num_machines=2)
    assert said(several) == [("launch-value", "deepspeed_config.deepspeed_multinode_launcher")]


def test_no_distribution_without_quotes(accelerate: Any, tmp_path: Path) -> None:
    text = "distributed_type: NO\nnum_processes: 1\n"
    assert started(text, tmp_path, accelerate)[0] is None
    document = parse_yaml(text)
    assert document.data["distributed_type"] is False
    assert check_launch_document(document).findings == ()


def test_another_type_does_not_start_deepspeed(accelerate: Any, tmp_path: Path) -> None:
    data = launch(distributed_type="MULTI_GPU")
    assert started(yaml.safe_dump(data), tmp_path, accelerate)[0] is None
    assert said(data) == [("launch-type", "distributed_type")]
    assert said({**data, "deepspeed_config": {}}) == []


def test_the_number_of_processes_may_come_from_the_command_line() -> None:
    data = {key: value for key, value in launch().items() if key != "num_processes"}
    assert said(data) == []
    assert said(data, "info") == [("launch-processes", "")]
    assert said(launch(num_processes=-1), "info") == [("launch-processes", "")]


def test_other_environments_are_left_alone() -> None:
    assert findings({"compute_environment": "AMAZON_SAGEMAKER", "region": "us-east-1", "debug": "no"}) == []


def test_machines_and_devices_that_do_not_exist() -> None:
    hosts = {"deepspeed_hostfile": "hosts"}
    two = launch(section=hosts, num_machines=2, machine_rank=2)
    assert said(two) == [("launch-machine-rank", "machine_rank")]
    assert said(launch(gpu_ids="0,1")) == [("launch-gpu-ids", "gpu_ids")]
    assert said(launch(gpu_ids="0,1,2,3")) == said(launch(gpu_ids="all")) == []


def test_yaml_reads_no_as_false() -> None:
    document = parse_yaml("distributed_type: DEEPSPEED\nnum_processes: 1\nmixed_precision: no\n")
    (finding,) = check_launch_document(document).findings
    assert (finding.rule, finding.line) == ("launch-precision", 3)


def starts(data: Any, folder: Path, accelerate: Any) -> bool:
    try:
        started(yaml.safe_dump(data), folder, accelerate)
    except Exception:
        return False
    return True


def test_no_fix_and_no_hint_of_an_example_stops_what_started(accelerate: Any, tmp_path: Path) -> None:
    tried = 0
    for rule in all_rules().values():
        if rule.check_launch is None:
            continue
        before = findings(rule.bad)
        known = {finding.rule for finding in before if finding.severity == "error"}
        did = starts(rule.bad, tmp_path, accelerate)
        for finding in before:
            for edits in [*([edit] for edit in edits_of(finding, rule.bad)), *filter(None, [finding.fix])]:
                tried += 1
                fixed = edited(rule.bad, edits)
                after = findings(fixed)
                assert (finding.path, finding.message) not in {(one.path, one.message) for one in after}
                assert {one.rule for one in after if one.severity == "error"} <= known
                assert starts(fixed, tmp_path, accelerate) or not did
    assert tried > 5


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "zero_stage": st.sampled_from([0, 1, 2, 3, "2", 2.0, "auto", True, None]),
        "offload_optimizer_device": st.sampled_from(["none", "cpu", "CPU", None]),
        "offload_param_device": st.sampled_from(["none", "cpu", None]),
        "gradient_accumulation_steps": st.sampled_from([1, 8, "4", "auto", None]),
        "gradient_clipping": st.sampled_from([1, 0.5, "1.0", "auto", "none", None]),
        "zero3_init_flag": st.sampled_from([True, False, "true", "no", "perhaps", None]),
        "zero3_save_16bit_model": st.sampled_from([True, False, "false", None]),
        "deepspeed_multinode_launcher": st.sampled_from(["standard", "pdsh", None]),
        "zero_stagee": st.just(3),
    },
)
FILES = st.fixed_dictionaries(
    {"distributed_type": st.sampled_from(["DEEPSPEED", "DEEPSPEED", "DeepSpeed"])},
    optional={
        "compute_environment": st.just("LOCAL_MACHINE"),
        "deepspeed_config": SECTIONS,
        "mixed_precision": st.sampled_from(["no", "bf16", "FP16", "fp64", False, None]),
        "num_processes": st.sampled_from([1, 2, "2", -1]),
        "num_machines": st.just(1),
        "gpu_ids": st.sampled_from(["all", "0,1", 0]),
        "use_cpu": st.booleans(),
        "debug": st.sampled_from([True, False, "false"]),
        "fp16": st.booleans(),
        "dynamo_backend": st.just("NO"),
        "zero_stage": st.just(2),
        "same_network": st.booleans(),
    },
)


@given(FILES)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_rules_accept_accelerate_accepts(
    accelerate: Any, tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    accepted = said(data, "error") == []
    without_count = data.get("num_processes", -1) == -1
    runnable = {**data, "num_processes": 1} if without_count else data
    folder = tmp_path_factory.mktemp("generated")
    refusal = None
    try:
        started(yaml.safe_dump(runnable), folder, accelerate)
    except Exception as error:
        refusal = error
    assert refusal is None or not accepted, refusal


def test_a_key_of_a_ds_config_is_sent_into_one(accelerate: Any, tmp_path: Path) -> None:
    section = {"zero_stage": 3, "zero3_save_16bit_model": True, "zero_force_ds_cpu_optimizer": False}
    *_, plugin = started(yaml.safe_dump(launch(section=section)), tmp_path, accelerate)
    assert "zero_force_ds_cpu_optimizer" not in plugin.deepspeed_config
    (finding,) = findings(launch(section=section))
    assert finding.rule == "launch-unknown-key"
    assert finding.hint == "Put it into a ds_config, and name that as 'deepspeed_config_file'"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("stage", "Did you mean 'zero_stage'?"),
        ("offload_optimizer", "Did you mean 'offload_optimizer_device'?"),
        ("offload_param", "Did you mean 'offload_param_device'?"),
        ("overlap_comm", "Put it into a ds_config, and name that as 'deepspeed_config_file'"),
        ("bf16", "Put it into a ds_config, and name that as 'deepspeed_config_file'"),
        ("device", "Remove it"),
        ("enabled", "Remove it"),
    ],
)
def test_a_key_near_one_of_accelerate_is_that(key: str, hint: str) -> None:
    (finding,) = findings(launch(section={key: "cpu"}))
    assert (finding.rule, finding.hint) == ("launch-unknown-key", hint)


def test_no_hint_names_a_key_that_is_there() -> None:
    (finding,) = findings(launch(distributed_training_type="DDP"))
    assert (finding.rule, finding.hint) == ("launch-unknown-key", "Remove it")
    (finding,) = findings(launch(use_deepspeed=True))
    assert finding.hint == "Remove it: it is an option, --use_deepspeed, of accelerate launch"
    without = {key: value for key, value in launch().items() if key != "distributed_type"}
    hints = [found.hint for found in findings({**without, "distributed_typ": "DEEPSPEED"})]
    assert "Did you mean 'distributed_type'?" in hints


@pytest.mark.parametrize(
    ("keys", "arguments", "stops"),
    [
        ({"section": {"gradient_accumulation_steps": 4}}, {"gradient_accumulation_steps": 2}, True),
        ({"section": {"gradient_accumulation_steps": 4}}, {"gradient_accumulation_steps": 4}, False),
        ({"section": {"gradient_accumulation_steps": "auto"}}, {"gradient_accumulation_steps": 2}, False),
        ({"section": {"gradient_clipping": 0.5}}, {}, True),
        ({"section": {"gradient_clipping": "auto"}}, {"max_grad_norm": 0.3}, False),
        ({"mixed_precision": "bf16"}, {}, True),
        ({"mixed_precision": "fp16"}, {"bf16": True}, False),
        ({"mixed_precision": "no"}, {"bf16": True}, False),
    ],
)
def test_the_trainer_compares_what_the_file_fixes(
    keys: dict[str, Any],
    arguments: dict[str, Any],
    stops: bool,
    accelerate: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    data = launch(**keys)
    *_, plugin = started(yaml.safe_dump(data), tmp_path, accelerate)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **arguments)
    asked = "fp16" if args.fp16 else "bf16" if args.bf16 else data.get("mixed_precision", "no")
    plugin.set_mixed_precision(asked)  # as `TrainingArguments.__post_init__` does
    config = HfTrainerDeepSpeedConfig(plugin.hf_ds_config.config)
    config.trainer_config_process(args)
    assert bool(config.mismatches) is stops
    named = [(one.rule, ".".join(map(str, one.path))) for one in findings(data, target="trainer")]
    compared = keys.get("section", {}) or keys
    fixed = [("launch-fixed-value", f"deepspeed_config.{key}") for key in keys.get("section", {})]
    fixed = fixed or [("launch-fixed-value", key) for key in keys]
    assert named == ([] if set(compared.values()) & {"auto", "no"} else fixed)


@pytest.mark.parametrize(("asked", "argument"), [("fp8", "bf16"), ("bf16", "bf16"), ("fp16", "fp16")])
def test_the_argument_is_named_that_the_trainer_has(asked: str, argument: str) -> None:
    (finding,) = [one for one in findings(launch(mixed_precision=asked)) if one.severity == "info"]
    assert finding.message == f"the Trainer stops unless TrainingArguments also have {argument}"
    assert finding.hint == f"See that the script sets {argument}, or remove the key"


def test_offload_replaces_the_optimizer() -> None:
    data = launch(section={"zero_stage": 2, "offload_optimizer_device": "cpu"})
    (finding,) = [one for one in findings(data) if one.severity == "info"]
    assert (finding.rule, finding.path[-1]) == ("launch-optimizer-swap", "offload_optimizer_device")
    assert "by Adam, and stops at Adagrad and at Lion of bitsandbytes" in finding.message
    beside = launch(section={FILE: "ds.json", "zero_stage": 2, "offload_optimizer_device": "cpu"})
    assert said(beside, "info") == []


def fsdp(**keys: Any) -> dict[str, Any]:
    return {**BASE, "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, **keys}


def sizes(**given: int) -> dict[str, int]:
    return {f"parallelism_config_{name}_size": size for name, size in given.items()}


def deepspeed(stage: int = 3, **keys: Any) -> dict[str, Any]:
    """A launch of DeepSpeed on 4 GPUs, with sizes of `parallelism_config`."""
    section = {"zero_stage": stage, "zero3_save_16bit_model": stage == 3}
    return launch(section=section, num_processes=4, parallelism_config=keys)


OFFLOADED = {"fsdp_version": 2, "fsdp_cpu_ram_efficient_loading": True, "fsdp_offload_params": True}


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (fsdp(parallelism_config=sizes(tp=4)), "launch-parallelism"),
        (fsdp(parallelism_config=sizes(dp_replicate=4)), "launch-parallelism"),
        (fsdp(parallelism_config=sizes(dp_shard=2, tp=4)), "launch-parallelism"),
        (fsdp(parallelism_config=sizes(dp_shard=2, cp=2, sp=2)), "launch-parallelism"),
        (fsdp(parallelism_config=sizes(dp_shard=2, tp=2)), None),
        (fsdp(parallelism_config=sizes(cp=4)), None),
        (fsdp(parallelism_config={}), None),
        ({**BASE, "distributed_type": "MULTI_GPU", "parallelism_config": sizes(tp=4)}, None),
        (deepspeed(**sizes(sp=4)), None),
        (deepspeed(**sizes(sp=2, dp_shard=2)), None),
        (deepspeed(2, **sizes(sp=4)), "launch-sequence-parallel-stage"),
        (deepspeed(**sizes(sp=2)), "launch-sequence-parallel-ranks"),
        (deepspeed(**sizes(sp=3, dp_shard=2)), "launch-sequence-parallel-ranks"),
        (deepspeed(**sizes(tp=4)), "launch-tensor-parallelism"),
        (deepspeed(**sizes(dp_shard=2)), "launch-parallelism"),
        (deepspeed(**sizes(sp=4), sp_backend="deepspeed"), "launch-unknown-key"),
        (deepspeed(**sizes(sp=4), parallelism_config_sp_attn_implementation="eager"), "launch-sequence-parallelism"),
        (fsdp(parallelism_config=sizes(sp=2, dp_shard=2)), "launch-sequence-parallelism"),
        (fsdp(dynamo_config={"dynamo_backend": "INDUCTOR"}), "launch-known-defect"),
        (fsdp(dynamo_config={"dynamo_backend": "NO"}), None),
        (fsdp(fsdp_config={"fsdp_version": 1}, dynamo_config={"dynamo_backend": "INDUCTOR"}), None),
        (fsdp(fsdp_config=OFFLOADED), "launch-known-defect"),
        (fsdp(fsdp_config={**OFFLOADED, "fsdp_version": 1}), None),
        (fsdp(num_machines=2, num_processes=10, gpu_ids="0,1", main_process_ip="10.0.0.1"), "launch-gpu-ids"),
        (fsdp(num_machines=2, num_processes=4, gpu_ids="0,1", main_process_ip="10.0.0.1"), None),
        (fsdp(num_machines=2), "launch-address"),
        (fsdp(num_machines=3, main_process_ip="10.0.0.1"), "launch-processes"),
        ({**BASE, "distributed_type": "MULTI_CPU", "num_machines": 2}, None),
        (launch(section={"deepspeed_multinode_launcher": "openmpi", "deepspeed_hostfile": "h"}), None),
        (
            launch(section={"deepspeed_multinode_launcher": "mpich", "deepspeed_hostfile": "h"}, num_machines=2),
            "launch-mpi",
        ),
        (launch(section={"deepspeed_multinode_launcher": "slurm", "deepspeed_hostfile": "h"}, num_machines=2), None),
    ],
)
def test_what_only_accelerate_starts(data: dict[str, Any], rule: str | None) -> None:
    assert {name for name, _ in said(data)} == ({rule} if rule else set())


@pytest.mark.torch
@pytest.mark.parametrize("processes", [2, 4, 6, 8])
@pytest.mark.parametrize(("sequence", "shards"), [(2, 1), (2, 2), (2, 4), (3, 2), (4, 1)])
def test_deepspeed_asserts_the_sizes_of_sequence_parallelism(processes: int, sequence: int, shards: int) -> None:
    pytest.importorskip("accelerate")
    from tests.resolving.handing_over import parsed

    data = launch(
        section={"zero_stage": 3}, num_processes=processes, parallelism_config=sizes(sp=sequence, dp_shard=shards)
    )
    # What `_prepare_deepspeed` makes of `ParallelismConfig.data_parallel_size`.
    batch = {"train_batch_size": shards, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    try:
        parsed(batch, processes, sequence)
    except AssertionError:
        assert said(data, "error") == [
            ("launch-sequence-parallel-ranks", "parallelism_config.parallelism_config_sp_size")
        ]
    else:
        assert said(data, "error") == []
