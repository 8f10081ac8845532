"""Fills DeepSpeed's table of loaded ops with stand-ins, and keeps it from ever starting a compiler.

`OpBuilder.load` (deepspeed/ops/op_builder/builder.py) looks in `OpBuilder._loaded_ops` first, so DeepSpeed's
own Python classes (FusedAdam, DeepSpeedCPUAdam, the NVMe swappers, ...) run as they are.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins import async_io, optimizer_process, zenflow_adam
from zerokit.rehearsal.stand_ins.arithmetic import stand_in_module
from zerokit.rehearsal.stand_ins.device_optimizers import fused_adam, fused_lamb, fused_lion
from zerokit.rehearsal.stand_ins.host_optimizers import cpu_adagrad, cpu_adam, cpu_lion
from zerokit.rehearsal.stand_ins.page_locked import PageLockedAllocator
from zerokit.rehearsal.stand_ins.quantizer import fp_quantizer, quantizer

_PIN_MEMORY_CACHE = "_deepspeed_pin_memory_op_module"
"""deepspeed/ops/op_builder/pin_memory_load.py keeps the loaded op in `sys` under this name."""

_GAP_HINTS = {
    "dc": 'Set "compile": {"deepcompile": false} in the ds_config',
    "evoformer_attn": "Use another attention; the workspace of this kernel is known to CUTLASS alone",
    "random_ltd": 'Switch "random_ltd" off in the ds_config',
    "transformer": "Use the model's own layers instead of DeepSpeedTransformerLayer",
    "stochastic_transformer": "Use the model's own layers instead of DeepSpeedTransformerLayer",
    "transformer_inference": 'Generate without kernel injection ("replace_with_kernel_inject": false)',
    "spatial_inference": "Generate without kernel injection",
}


def install(*, compute: bool, allocate: PageLockedAllocator) -> None:
    """Puts the stand-ins in place; what was there under the same names is replaced.

    Args:
        compute: do the arithmetic (optimizers) and the file transfers (NVMe); else only what they allocate.
        allocate: makes the page-locked memory of the NVMe ops.
    """
    builder = importlib.import_module("deepspeed.ops.op_builder.builder").OpBuilder
    importlib.import_module("deepspeed.ops.op_builder")  # defines every builder class
    modules = {
        "fused_adam": fused_adam(compute=compute),
        "fused_lion": fused_lion(compute=compute),
        "fused_lamb": fused_lamb(compute=compute),
        "cpu_adam": cpu_adam(compute=compute),
        "cpu_lion": cpu_lion(compute=compute),
        "cpu_adagrad": cpu_adagrad(compute=compute),
        "quantizer": quantizer(compute=compute),
        "fp_quantizer": fp_quantizer(compute=compute),
        "utils": stand_in_module("utils", cast_to_byte_tensor=_cast_to_byte_tensor),
        **async_io.modules(compute=compute, allocate=allocate),
    }
    builder._loaded_ops.update(modules)
    setattr(sys, _PIN_MEMORY_CACHE, modules["pin_memory"])
    builder.jit_load = _refuse_to_compile
    for builder_class in (builder, *_subclasses(builder)):
        builder_class.is_compatible = _is_compatible
    _run_optimizer_processes_here()
    if not compute:
        _book_swap_folders()


def _refuse_to_compile(builder: Any, verbose: bool = True) -> ModuleType:
    """In place of `OpBuilder.jit_load`, which runs nvcc or a C++ compiler."""
    name = builder.name
    raise RehearsalGap(f"DeepSpeed's compiled op '{name}'", hint=_GAP_HINTS.get(name))


def _is_compatible(builder: Any, verbose: bool = False) -> bool:
    """The answer on a machine with an H100, the CUDA toolkit, libaio and cuFile.

    Evoformer attention needs CUTLASS sources besides, which are found by environment variables or not at all.
    """
    return builder.name != "evoformer_attn" or "CUTLASS_PATH" in os.environ


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


def _cast_to_byte_tensor(src_tensor: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    """`cast_to_byte_tensor` of csrc/utils/tensor_cast.cpp: the same memory seen as bytes."""
    if isinstance(src_tensor, list):
        return [_bytes_of(tensor) for tensor in src_tensor]
    return _bytes_of(src_tensor)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor if tensor.nbytes <= 1 else tensor.detach().view(-1).view(torch.uint8)


def _run_optimizer_processes_here() -> None:
    """SuperOffload and ZenFlow start a process for the CPU optimizer; here it is part of this one."""
    optimizer_process.install(importlib.import_module("deepspeed.runtime.superoffload.superoffload_utils"))
    for name in ("zenflow_utils", "zenflow_stage_1_and_2", "engine_stage3"):
        module = importlib.import_module(f"deepspeed.runtime.zenflow.{name}")
        module.start_optimizer_process = zenflow_adam.start_in_this_process  # type: ignore[attr-defined]


class _LedgerFolders:
    """A module such as `os`, but folders are made and removed in the ledger only.

    ``nvme_path`` names a disk of the cluster: it need not exist here, and nothing may be deleted under it.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        async_io.ledger().make_folder(path)

    def rmtree(self, path: str, ignore_errors: bool = False) -> None:
        async_io.ledger().remove_folder(path)


def _book_swap_folders() -> None:
    for name, modules in (
        ("deepspeed.runtime.swap_tensor.optimizer_utils", (os,)),
        ("deepspeed.runtime.swap_tensor.partitioned_param_swapper", (os, shutil)),
        ("deepspeed.runtime.zero.stage3", (os,)),
    ):
        swapper = importlib.import_module(name)
        for module in modules:
            setattr(swapper, module.__name__, _LedgerFolders(module))
