"""What scripts ask the driver, and what comes of a question without an answer."""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import pytest

from zerokit.errors import LaunchError
from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.context import begin_rank, rank_context
from zerokit.rehearsal.devices import virtual_device
from zerokit.rehearsal.stand_ins import nvml
from zerokit.rehearsal.worker.failures import limit_of


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    begin_rank()
    nvml.install_module(virtual_device(find_gpu("H100")), 2, lambda: (60, 100))
    return sys.modules["pynvml"]


def test_what_every_gpu_answers(pynvml: Any) -> None:
    second = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetPowerUsage(second) == pynvml.nvmlDeviceGetTemperature(second, 0) == 0
    assert pynvml.nvmlDeviceGetClockInfo(second, pynvml.NVML_CLOCK_SM) == 0
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(second) == []
    uuid = pynvml.nvmlDeviceGetUUID(second)
    assert pynvml.nvmlDeviceGetHandleByUUID(uuid) == pynvml.nvmlDeviceGetHandleByUUID(uuid.encode()) == second
    with pytest.raises(pynvml.NVMLError, match="Invalid Argument"):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-of-another")


def test_a_gpu_is_near_all_processors_of_the_process(pynvml: Any) -> None:
    words = pynvml.nvmlDeviceGetCpuAffinity(0, math.ceil((max(os.sched_getaffinity(0)) + 1) / 64))
    bits = "".join(f"{word:064b}" for word in reversed(words))[::-1]  # as accelerate reads them
    assert {place for place, bit in enumerate(bits) if bit == "1"} == os.sched_getaffinity(0)


def test_what_has_no_answer_is_a_limit_of_the_rehearsal_unless_the_script_does_without(pynvml: Any) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported, match="Not Supported") as caught:
        pynvml.nvmlDeviceGetNvLinkState(0, 0)
    limit = limit_of(caught.value)
    assert isinstance(limit, LaunchError)
    assert "stand-in is not like what it stands for" in limit.message
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlDeviceGetHandleByIndex(2)
    assert limit_of(caught.value) is None


@pytest.mark.parametrize("installed", [False, True])
def test_a_script_that_needs_the_package_is_told_where_it_is_not_installed(
    installed: bool, pynvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "NAME", "json" if installed else "no_such_package")
    exec(compile("nvml.nvmlInit()", os.__file__, "exec"), {"nvml": pynvml})  # a library, which does without
    assert rank_context().warnings() == []
    pynvml.nvmlInit()
    said = rank_context().warnings()
    assert len(said) == (not installed)
    assert all("test_nvml.py" in line and "is not installed here" in line for line in said)
