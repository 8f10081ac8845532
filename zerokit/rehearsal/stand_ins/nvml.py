"""The module `pynvml` (the package nvidia-ml-py), by which scripts ask the driver how full the GPU is.

It is there whether or not the package is installed, as on a machine with GPUs. Names, counts and memory are
the virtual device's; what else a GPU may not support is not supported.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from zerokit.rehearsal.devices import VirtualDevice
from zerokit.rehearsal.stand_ins.nvidia_smi import CUDA_VERSION, DRIVER_VERSION, uuid

NAME = "pynvml"


class NVMLError(Exception):
    """What the driver's calls raise."""


class NVMLNotSupportedError(NVMLError):
    def __str__(self) -> str:
        return "Not Supported"


def install(device: VirtualDevice, visible: int, free_and_total: Callable[[], tuple[int, int]]) -> None:
    """Put the module in place, once torch has been imported, which would ask it for indices.

    Args:
        device: what each GPU is said to be.
        visible: GPUs of the node.
        free_and_total: bytes of the GPU, of which there is one.
    """
    module = ModuleType(NAME, __doc__)
    module.__spec__ = importlib.machinery.ModuleSpec(NAME, None, origin=__file__)
    module.__dict__.update(_answers(device, visible, free_and_total), __getattr__=_another)
    sys.modules[NAME] = module


def _answers(
    device: VirtualDevice, visible: int, free_and_total: Callable[[], tuple[int, int]]
) -> dict[str, Any]:
    properties = device.properties

    def handle(index: int) -> int:
        if not 0 <= index < visible:
            raise NVMLError("Invalid Argument")
        return index

    def memory(_handle: int, version: Any = None) -> SimpleNamespace:
        free, total = free_and_total()
        return SimpleNamespace(version=version, total=total, free=free, used=total - free, reserved=0)

    def nothing(*_: Any) -> None: ...

    return {
        "NVMLError": NVMLError,
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), nothing),
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
    }


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
