"""The module `pynvml` (package nvidia-ml-py), by which scripts query the driver.

It is available even if the package is not installed; then the report says so. Names, counts and memory are
the virtual device's, which draws no power and runs nothing. Other calls raise NVMLError_NotSupported.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from zerokit.rehearsal.call_sites import is_of_script
from zerokit.rehearsal.context import note
from zerokit.rehearsal.devices import VirtualDevice
from zerokit.rehearsal.errors import script_line
from zerokit.rehearsal.stand_ins import nvidia_smi
from zerokit.rehearsal.stand_ins.nvidia_smi import CUDA_VERSION, DRIVER_VERSION, uuid
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.tables import table_of

NAME = "pynvml"
_NAMES: Mapping[str, Sequence[str]] = table_of(__file__)
"""Functions with one answer; figures of an idle GPU are 0, as :mod:`torch_cuda` answers them."""


class NVMLError(Exception):
    """The error of the driver's calls."""


class NVMLNotSupportedError(NVMLError):
    """The virtual device has no answer."""

    def __str__(self) -> str:
        return "Not Supported"


_NOT_INSTALLED = (
    "{what} (nvidia-ml-py), which the script asks ({why}), is not installed here: see that the cluster has it"
)


@stand_in("pynvml", "nvidia-smi")
def install(setup: RankSetup) -> None:
    """Put the module and the command in place, once torch is imported, which would ask for indices."""
    import torch

    device, visible = setup.device, setup.local_ranks
    install_module(device, visible, torch.cuda.mem_get_info)
    nvidia_smi.install(
        setup.generated / "commands",
        name=device.name,
        total_bytes=device.total_bytes,
        capability=device.capability,
        visible=visible,
    )


def install_module(device: VirtualDevice, visible: int, free_and_total: Callable[[], tuple[int, int]]) -> None:
    """Put the module in place, for `visible` GPUs with bytes of `free_and_total`."""
    module = ModuleType(NAME, __doc__)
    module.__spec__ = importlib.machinery.ModuleSpec(NAME, None, origin=__file__)
    module.__dict__.update(_answers(device, visible, free_and_total), __getattr__=_another)
    sys.modules[NAME] = module


def _answers(device: VirtualDevice, visible: int, free_and_total: Callable[[], tuple[int, int]]) -> dict[str, Any]:
    properties = device.properties

    def handle(index: int) -> int:
        if not 0 <= index < visible:
            raise NVMLError("Invalid Argument")
        return index

    def memory(_handle: int, version: Any = None) -> SimpleNamespace:
        free, total = free_and_total()
        return SimpleNamespace(version=version, total=total, free=free, used=total - free, reserved=0)

    def by_uuid(word: str | bytes) -> int:
        text = word.decode() if isinstance(word, bytes) else word
        uuids = [uuid(index) for index in range(visible)]
        return handle(uuids.index(text) if text in uuids else visible)

    def begin(*_: Any) -> None:
        is_asked_by_script = is_of_script(sys._getframe(1).f_code.co_filename)  # libraries do without it
        if is_asked_by_script and importlib.machinery.PathFinder.find_spec(NAME) is None:
            note(_NOT_INSTALLED, NAME, script_line())

    return {
        "NVMLError": NVMLError,
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags"), begin),
        **dict.fromkeys(_NAMES["without_effect"], lambda *_: None),
        "nvmlSystemGetDriverVersion": lambda: DRIVER_VERSION,
        "nvmlSystemGetCudaDriverVersion": lambda: CUDA_VERSION[0] * 1000 + CUDA_VERSION[1] * 10,
        "nvmlDeviceGetCount": lambda: visible,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetName": lambda _handle: properties.name,
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetCudaComputeCapability": lambda _handle: device.capability,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda _handle: SimpleNamespace(gpu=0, memory=0),
        "nvmlDeviceGetHandleByUUID": by_uuid,
        **dict.fromkeys(_NAMES["idle"], lambda _handle, *_: 0),
        **dict.fromkeys(_NAMES["processes"], lambda _handle: []),
        **dict.fromkeys(_NAMES["affinities"], lambda _handle, words, *_: _own_processors(words)),
    }


def _own_processors(words: int) -> list[int]:
    """The CPUs of this process as bits of 64-bit words, the lowest first."""
    mask = sum(1 << processor for processor in os.sched_getaffinity(0))
    return [mask >> 64 * word & 2**64 - 1 for word in range(words)]


def _another(name: str) -> Any:
    if name.startswith("NVMLError_"):
        return NVMLNotSupportedError
    if name.startswith("NVML_"):
        return 0
    if name.startswith("nvml"):
        return _unsupported
    raise AttributeError(f"module '{NAME}' has no attribute '{name}'")


def _unsupported(*_: Any, **__: Any) -> NoReturn:
    raise NVMLNotSupportedError
