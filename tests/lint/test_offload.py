from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.findings import Remove

CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
OPTIMIZER = "zero_optimization.offload_optimizer"
PARAM = "zero_optimization.offload_param"


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, {"offload-without-zero": [OPTIMIZER, PARAM]}),
        (1, {"offload-param-stage": [PARAM]}),
        (2, {"offload-param-stage": [PARAM]}),
        (3, {}),
        ("auto", {}),
    ],
)
@pytest.mark.parametrize("device", [CPU, NVME])
def test_offload_in_each_stage(stage: Any, expected: dict[str, list[str]], device: dict[str, str]) -> None:
    config = zero(stage, offload_optimizer=device, offload_param=device)
    for rule in ("offload-without-zero", "offload-param-stage"):
        assert said(rule, config) == [(path, "error") for path in expected.get(rule, [])]


def test_the_deprecated_switches_count_as_the_cpu() -> None:
    config = zero(2, cpu_offload=True, cpu_offload_param=True)
    assert said("offload-param-stage", config) == [("zero_optimization.cpu_offload_param", "error")]
    config = zero(0, cpu_offload=True, cpu_offload_param=True)
    paths = [path for path, _ in said("offload-without-zero", config)]
    assert paths == ["zero_optimization.cpu_offload", "zero_optimization.cpu_offload_param"]


@pytest.mark.parametrize("device", ["none", "auto"])
def test_a_device_that_offloads_nothing(device: str) -> None:
    config = zero(0, offload_optimizer={"device": device}, offload_param={"device": device})
    assert found("offload-without-zero", config) == []


@pytest.mark.parametrize(("stage", "count"), [(1, 1), (2, 1), (3, 0), ("auto", 0)])
def test_nvme_below_stage_3_is_the_cpu(stage: Any, count: int) -> None:
    assert len(found("nvme-stage", zero(stage, offload_optimizer=NVME))) == count
    assert found("nvme-stage", zero(stage, offload_optimizer=CPU)) == []


@pytest.mark.parametrize("key", ["offload_optimizer", "offload_param"])
def test_nvme_needs_a_folder(key: str) -> None:
    path = f"zero_optimization.{key}.device"
    assert said("nvme-path", zero(3, **{key: {"device": "nvme"}})) == [(path, "error")]
    assert said("nvme-path", zero(3, **{key: NVME})) == []
    # Of a section that stage 2 does not read, only that is said.
    in_stage_2 = [(path, "warning")] if key == "offload_optimizer" else []
    assert said("nvme-path", zero(2, **{key: {"device": "nvme"}})) == in_stage_2
    assert said("nvme-path", zero(3, **{key: CPU})) == []
    assert said("nvme-path", zero(3, **{key: {"device": "nvme", "nvme_pth": "/x"}})) == []


@pytest.mark.parametrize(
    ("path", "count"),
    [("/mnt/nvme0", 0), ("nvme", 1), ("./nvme", 1), ("~/nvme", 1), ("$SCRATCH/nvme", 1), ("auto", 0)],
)
def test_a_path_should_be_whole(path: str, count: int) -> None:
    config = zero(3, offload_param={"device": "nvme", "nvme_path": path})
    assert len(found("nvme-relative-path", config)) == count


def test_keys_of_nvme_do_nothing_on_the_cpu() -> None:
    optimizer = {
        **CPU,
        "nvme_path": "/nvme",
        "pipeline_read": True,
        "pipeline_write": False,
        "fast_init": True,
    }
    config = zero(3, offload_optimizer=optimizer, offload_param={**CPU, "buffer_count": 5, "nvme_path": None})
    findings = found("nvme-key", config)
    assert [".".join(map(str, finding.path)) for finding in findings] == [
        f"{OPTIMIZER}.nvme_path",
        f"{OPTIMIZER}.pipeline_read",
        f"{OPTIMIZER}.fast_init",
        f"{PARAM}.buffer_count",
    ]
    assert all(finding.fix == (Remove(finding.path),) for finding in findings)
    assert found("nvme-key", zero(3, offload_param={**NVME, "buffer_count": 5})) == []


@pytest.mark.parametrize(
    ("section", "count"),
    [({}, 1), ({"pin_memory": True}, 1), ({"device": "none"}, 0), ({"devise": "cpu"}, 0)],
)
def test_a_section_without_a_device(section: dict[str, Any], count: int) -> None:
    assert len(found("offload-empty", zero(2, offload_optimizer=section))) == count


@pytest.mark.parametrize(
    ("stage", "section", "expected"),
    [
        (2, {**CPU, "super_offload": True}, [(f"{OPTIMIZER}.super_offload", "warning")]),
        (3, {**CPU, "super_offload": True}, []),
        (3, {"super_offload": True}, [(f"{OPTIMIZER}.super_offload", "error")]),
        (3, {"device": "auto", "super_offload": True}, []),
        (3, {**CPU, "cpuadam_cores_perc": 0.5}, [(f"{OPTIMIZER}.cpuadam_cores_perc", "warning")]),
        (3, {**CPU, "cpuadam_cores_perc": 0.5, "super_offload": True}, []),
    ],
)
def test_super_offload(stage: int, section: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert said("super-offload", zero(stage, offload_optimizer=section)) == expected


@pytest.mark.parametrize(("ratio", "type", "count"), [(0.5, "Lion", 1), (1.0, "Lion", 0), (0.5, "adamw", 0)])
def test_a_part_of_the_states_needs_adam(ratio: float, type: str, count: int) -> None:
    config = zero(3, offload_optimizer={**CPU, "ratio": ratio})
    optimizer = {"type": type, "params": {"lr": 1e-4}}
    assert len(found("partial-offload-optimizer", {**config, "optimizer": optimizer})) == count
    assert found("partial-offload-optimizer", config) == []


def test_parameters_are_pinned_whatever_the_file_says() -> None:
    config = zero(
        3, offload_param={**CPU, "pin_memory": False}, offload_optimizer={**CPU, "pin_memory": False}
    )
    assert said("pinned-in-spite", config) == [(f"{PARAM}.pin_memory", "info")]


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (zero(3, offload_optimizer=CPU), 1),
        (zero(2, offload_optimizer=NVME), 1),
        (zero(3, offload_optimizer=NVME), 0),
        (zero(3, offload_param=NVME), 0),
        (zero(3, offload_param={"device": "auto"}), 0),
        ({**zero(1), "checkpoint": {"writer": {"type": "fast"}}}, 0),
        ({**MICRO, "zero_optimization": {"stage": "auto"}}, 0),
    ],
)
def test_options_of_nvme_access(config: dict[str, Any], count: int) -> None:
    assert len(found("aio-unused", {**config, "aio": {"queue_depth": 32}})) == count
    assert found("aio-unused", {**config, "aio": {"_why": "later"}}) == []


@pytest.mark.parametrize(("param", "count"), [(None, 1), (CPU, 1), (NVME, 0), ({"device": "auto"}, 0)])
def test_fast_init_starts_from_parameters_on_nvme(param: dict[str, Any] | None, count: int) -> None:
    sections = {"offload_optimizer": {**NVME, "fast_init": True}}
    if param is not None:
        sections["offload_param"] = param
    assert len(found("fast-init", zero(3, **sections))) == count
