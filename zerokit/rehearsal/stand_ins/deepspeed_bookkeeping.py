"""DeepSpeed's profiler ranges, compilations and checks between ranks that a rehearsed process cannot run."""

from __future__ import annotations

import contextlib
from typing import Any

from zerokit.patches import Patch, apply, wrap
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_ZERO = "deepspeed.runtime.zero.utils"
_AGREE = "let every rank agree with rank 0"
_SHARED_MEMORY = Patch("deepspeed.comm.torch", "build_shm_op", "compile nothing for ranks on the CPU")
# Every hook and collective opens a range for a profiler of the GPU: a tenth of the run's time.
_RANGES = Patch("deepspeed.utils.nvtx", "enable_nvtx", "leave out ranges for a profiler of the GPU")
_PASSES = Patch(_ENGINE, "register_compile_pass", "register DeepCompile's passes where used", since="0.16.6")
_SAME_LIST = Patch(_ZERO, "get_lst_from_rank0", _AGREE)
_SAME_LENGTH = Patch(_ZERO, "assert_lst_len_same_as_other_ranks", _AGREE, since="0.17.6")


@stand_in("enable_nvtx", "register_compile_pass")
def install(setup: RankSetup) -> None:
    """Leave out profiler ranges, early passes and shared memory between processes on the CPU."""
    apply(_SHARED_MEMORY, lambda _: lambda: None)
    apply(_RANGES, lambda _: False)
    wrap(_PASSES, _register_where_used)


def _register_where_used(register: Any, engine: Any, *arguments: Any, **given: Any) -> None:
    if engine.is_deepcompile_enabled():
        register(engine, *arguments, **given)


@stand_in("get_lst_from_rank0", "assert_lst_len_same_as_other_ranks")
def agree_with_rank_0(setup: RankSetup) -> None:
    """Make checks that compare with rank 0 succeed: no rank sends the numbers that ZeRO-3 compares."""

    def same_list(send: Any, numbers: list[int]) -> list[int]:
        send(numbers)
        return list(numbers)

    def same_length(send: Any, numbers: list[int]) -> None:
        with contextlib.suppress(RuntimeError):
            send(numbers)

    wrap(_SAME_LIST, same_list)
    wrap(_SAME_LENGTH, same_length)
