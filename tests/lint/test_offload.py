from tests.lint.asking import found, zero
from zerokit.findings import Remove

CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "/local_nvme"}
OPTIMIZER = "zero_optimization.offload_optimizer"
PARAM = "zero_optimization.offload_param"


def test_keys_of_nvme_do_nothing_on_the_cpu() -> None:
    optimizer = {**CPU, "nvme_path": "/nvme", "pipeline_read": True, "pipeline_write": False, "fast_init": True}
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


def test_keys_of_nvme_stay_while_the_stage_is_to_be_raised() -> None:
    assert found("nvme-key", zero(2, offload_optimizer=NVME)) == []
    assert len(found("nvme-stage", zero(2, offload_optimizer=NVME))) == 1
