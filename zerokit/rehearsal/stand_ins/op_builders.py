"""Fills `OpBuilder._loaded_ops` of DeepSpeed with stand-ins, so that DeepSpeed never starts a compiler.

DeepSpeed's own Python classes (FusedAdam, DeepSpeedCPUAdam, the NVMe swappers, ...) run unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from zerokit.patches import Patch, apply, put, replace, when_imported
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins import async_io, superoffload_process, zenflow_adam
from zerokit.rehearsal.stand_ins.async_io import PageLockedAllocator, locked_by
from zerokit.rehearsal.stand_ins.cpu_optimizers import cpu_adagrad, cpu_adam, cpu_lion
from zerokit.rehearsal.stand_ins.fused_optimizers import fused_adam, fused_lamb, fused_lion
from zerokit.rehearsal.stand_ins.nvme_ledger import nvme_ledger
from zerokit.rehearsal.stand_ins.quantizers import quantizer
from zerokit.rehearsal.stand_ins.registry import RankSetup, op_module, stand_in
from zerokit.tables import table_of

_GAP_HINTS: Mapping[str, str] = table_of(__file__)
"""What to do without an op that has no stand-in."""
_OP_BUILDER = "deepspeed.ops.op_builder.builder:OpBuilder"
_LOADED_OPS = Patch(_OP_BUILDER, "_loaded_ops", "find stand-ins already loaded")
_JIT_LOAD = Patch(_OP_BUILDER, "jit_load", "refuse to compile")
_IS_COMPATIBLE = Patch(_OP_BUILDER, "is_compatible", "answer as on a machine with an H100")
# DeepSpeed keeps this op in `sys`.
_PIN_LOADER = "deepspeed.ops.op_builder.pin_memory_load"
_PIN_MEMORY = Patch("sys", "_deepspeed_pin_memory_op_module", "find a stand-in loaded", read_by=_PIN_LOADER)
# ZenFlow starts a process for the CPU optimizer; here it is part of this one.
_ZENFLOW = {"zenflow_utils": "0.18.1", "zenflow_stage_1_and_2": "0.17.5", "engine_stage3": "0.18.1"}
_START_PROCESS = [
    Patch(f"deepspeed.runtime.zenflow.{module}", "start_optimizer_process", "start no process", since=since)
    for module, since in _ZENFLOW.items()
]
_SWAP_FOLDERS = [
    Patch(f"deepspeed.runtime.{module}", name, "make folders on NVMe in the ledger alone")
    for module, name in (
        *(("swap_tensor.optimizer_utils", "os"), ("swap_tensor.partitioned_param_swapper", "os")),
        *(("swap_tensor.partitioned_param_swapper", "shutil"), ("zero.stage3", "os")),
    )
]


@stand_in(
    *("OpBuilder", "FusedAdam", "FusedLion", "FusedLamb", "DeepSpeedCPUAdam", "DeepSpeedCPULion"),
    *("DeepSpeedCPUAdagrad", "quantizer", "async_io", "pin_memory", "ZenFlow"),
    "SuperOffload",
)
def install(setup: RankSetup) -> None:
    """Put the stand-ins in place as DeepSpeed is imported."""
    install_ops(op_modules(locked_by(setup.rank.backend)))
    for folders in _SWAP_FOLDERS:
        apply(folders, _LedgerFolders)


def op_modules(allocate: PageLockedAllocator) -> dict[str, ModuleType]:
    """The stand-ins by the names of their ops. They allocate what the real ops do, and compute nothing."""
    return {
        "fused_adam": fused_adam(),
        "fused_lion": fused_lion(),
        "fused_lamb": fused_lamb(),
        "cpu_adam": cpu_adam(),
        "cpu_lion": cpu_lion(),
        "cpu_adagrad": cpu_adagrad(),
        "quantizer": quantizer(),
        "utils": op_module("utils", cast_to_byte_tensor=_cast_to_byte_tensor),
        **async_io.modules(allocate),
    }


def install_ops(modules: Mapping[str, ModuleType]) -> None:
    """Put `modules` in place as DeepSpeed is imported, also over ops that are loaded already."""
    apply(_LOADED_OPS, lambda loaded: {**loaded, **modules})
    put(_PIN_MEMORY, modules["pin_memory"])
    put(_JIT_LOAD, _refuse_to_compile)
    put(_IS_COMPATIBLE, _is_compatible)
    # The package defines every builder class.
    when_imported("deepspeed.ops.op_builder", lambda _: _make_all_compatible())
    superoffload_process.install()
    for start in _START_PROCESS:
        put(start, zenflow_adam.start_in_this_process)


def _make_all_compatible() -> None:
    for builder in _subclasses(_IS_COMPATIBLE.holder()):
        replace(builder, _IS_COMPATIBLE.name, lambda _: _is_compatible)


def _refuse_to_compile(builder: Any, verbose: bool = True) -> ModuleType:
    """In place of `OpBuilder.jit_load`, which runs nvcc or a C++ compiler."""
    name = builder.name
    raise RehearsalGap(f"DeepSpeed's compiled op '{name}'", hint=_GAP_HINTS.get(name))


def _is_compatible(builder: Any, verbose: bool = False) -> bool:
    """The answer on a machine with an H100, the CUDA toolkit, libaio and cuFile; CUTLASS by its variable."""
    return builder.name != "evoformer_attn" or "CUTLASS_PATH" in os.environ


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


def _cast_to_byte_tensor(src_tensor: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    """`cast_to_byte_tensor` of csrc/utils/tensor_cast.cpp: the same memory seen as bytes."""
    tensors = src_tensor if isinstance(src_tensor, list) else [src_tensor]
    views = [one if one.nbytes <= 1 else one.detach().view(-1).view(torch.uint8) for one in tensors]
    return views if isinstance(src_tensor, list) else views[0]


class _LedgerFolders:
    """A module such as `os`, but folders are made and removed in the ledger only.

    ``nvme_path`` names a disk of the cluster: it need not exist here, and nothing may be deleted under it.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        nvme_ledger().make_folder(path)

    def rmtree(self, path: str, ignore_errors: bool = False) -> None:
        nvme_ledger().remove_folder(path)
