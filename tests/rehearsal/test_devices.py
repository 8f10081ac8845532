"""The cards that can be rehearsed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.rehearsal.feature_runs import job_of
from zerokit.errors import ZerokitError
from zerokit.hardware.gpus import Gpu, find_gpu, gpus
from zerokit.hardware.hardware_file import read_hardware
from zerokit.rehearsal.devices import caveats, virtual_device
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.parent.processes import Output, Worker
from zerokit.rehearsal.stand_ins.nvidia_smi import DRIVER_VERSION, answer


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_every_card_is_shown_with_its_memory_or_refused(gpu: Gpu) -> None:
    if gpu.platform == "hpu":
        with pytest.raises(ZerokitError, match=f"{gpu.name} is no card of torch.cuda"):
            virtual_device(gpu)
        return
    device = virtual_device(gpu)
    assert device.total_bytes == gpu.memory_bytes
    assert (device.name == gpu.torch_name) == (gpu.platform == "cuda")


def test_a_card_of_amd_is_an_h100_with_its_memory_and_the_report_says_so() -> None:
    gpu = find_gpu("mi300x")
    device = virtual_device(gpu)
    assert device == replace(virtual_device(find_gpu("H100")), total_bytes=196_592 * 2**20)
    (caveat,) = caveats(gpu)
    assert caveat.startswith("MI300X is rehearsed as an H100 with the memory of MI300X")


def test_what_is_uncertain_of_a_card_is_a_caveat() -> None:
    assert caveats(find_gpu("H100")) == []
    assert caveats(find_gpu("GH200")) == [find_gpu("GH200").memory_caveat]
    assert len(caveats(find_gpu("MI325X"))) == 2


def test_a_card_of_a_file_is_an_h100_where_it_says_nothing(tmp_path: Path) -> None:
    card = {"name": "X1", "nominal_gb": 64, "memory_mib": 65000, "bandwidth_gb_s": 3000, "tflops": {"bf16": 500}}
    file = tmp_path / "x1.json"
    file.write_text(json.dumps({"gpu": card | {"multiprocessors": 100}}), encoding="utf-8")
    gpu = read_hardware(file).gpu
    device, h100 = virtual_device(gpu), virtual_device(find_gpu("H100"))
    assert device == replace(h100, name="X1", total_bytes=65000 * 2**20, multiprocessors=100)
    assert caveats(gpu) == ["X1 is shown to the script with an H100's capability, l2_mib"]


def test_a_job_has_the_figures_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "slow.json"
    changes = {"launch": {"seconds": {"kernel": 0.001}}}
    file.write_text(json.dumps({"gpu": "H100", "figures": changes}), encoding="utf-8")
    found = read_hardware(file)
    job = job_of("says_its_gpu.py", (), Path("rank-0.npz"))
    job = replace(job, timed_on=found.gpu, figures=dict(found.figures))
    costs = RehearsalJob.from_json(job.to_json()).costs
    assert costs is not None
    assert costs.launch("aten::mm") == 0.001


def test_a_job_keeps_its_device_and_the_default_is_an_h100() -> None:
    job = RehearsalJob(script="train.py", num_gpus=1, rank=0, steps=0, cwd=".", recording_file="rank-0.npz")
    assert job.device == virtual_device(find_gpu("H100"))
    device = virtual_device(find_gpu("L40S"))
    assert RehearsalJob.from_json(replace(job, device=device).to_json()).device == device


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-L"], "GPU 0: H (UUID: GPU-00000000)\nGPU 1: H (UUID: GPU-00000001)\n"),
        (["-i", "1", "--query-gpu=index,count,memory.free", "--format=csv,noheader,nounits"], "1, 2, 9\n"),
        (["--query-gpu=name, memory.used", "--format=csv"], "name, memory.used [MiB]\nH, 0 MiB\nH, 0 MiB\n"),
        (["--id=0", "--query-gpu=driver_version", "--format=csv,noheader"], f"{DRIVER_VERSION}\n"),
        (["--query-compute-apps=pid", "--format=csv,noheader"], ""),
    ],
)
def test_nvidia_smi_tells_of_the_virtual_gpus(words: list[str], said: str) -> None:
    assert answer(words, "H", 9, "9.0", 2) == said
    assert answer([], "H", 9, "9.0", 2).count("0MiB /      9MiB") == 2


@pytest.mark.parametrize("words", [["topo", "-m"], ["-i", "2"], ["--query-gpu=name", "--loop=1"]])
def test_nvidia_smi_refuses_what_it_does_not_know(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"No devices were found|does not answer"):
        answer(words, "H", 9, "9.0", 2)


@pytest.mark.parametrize("name", ["T4", "B200", "RTX 5090"])
def test_torch_reports_the_card(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    device = virtual_device(find_gpu(name))
    job = job_of("says_its_gpu.py", (), tmp_path / "rank-0.npz")
    job = replace(job, device=device, num_gpus=1)
    with Worker(job, Output.SHOWN) as worker:
        worker.result(None)
    said = json.loads(capfd.readouterr().out)
    assert said == {
        "name": device.name,
        "capability": list(device.capability),
        "total": device.total_bytes,
        "used": 20 * 2**20,  # a segment
        "free": True,
        "by NVML": [device.name, 1, "Not Supported"],
        "by nvidia-smi": f"0, {device.name}, {device.total_bytes // 2**20} MiB, [N/A]\n",
        "utilization": 0,
        "multiprocessors": device.multiprocessors,
        "l2": device.l2_cache_bytes,
        "shared": {"T4": 65536, "B200": 232448, "RTX 5090": 101376}[name],
        "bf16": name != "T4",
        "used by torch": 20 * 2**20,
        "processes": "GPU:0\nno processes are running",
    }


_OPTIONS = ("--num-gpus", 16, "--no-advise", "--format", "json", "--steps", 1)


def test_a_gpu_that_the_node_does_not_have_fails_as_on_the_cluster(tmp_path: Path) -> None:
    outcome = rehearse(*_OPTIONS, SCRIPTS / "broken_device.py", cwd=tmp_path, forked=True)
    assert outcome.code == 2
    assert "CUDA error: invalid device ordinal (cuda:15 of 8 devices" in outcome.err
    # Rank 0 takes no harm from the mistake.
    # It holds a tensor, as a script that only generates does.
    assert rehearse(*_OPTIONS, "--rank", 0, SCRIPTS / "broken_device.py", cwd=tmp_path, forked=True).code == 0


def test_a_gpu_that_is_another_ranks_is_named_with_its_line(tmp_path: Path) -> None:
    (warning,) = rehearse(*_OPTIONS, SCRIPTS / "one_device_for_all.py", cwd=tmp_path, forked=True).report["warnings"]
    assert "one_device_for_all.py:9" in warning
    assert "rank 15 uses cuda:0, the GPU of another rank, 1 times" in warning
    assert "its own, cuda:7" in warning
