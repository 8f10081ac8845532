"""DeepSpeed's own needs that a process without a GPU or peers does not have."""

from __future__ import annotations

import contextlib
from typing import Any

from zerokit.patches import Patch, apply, wrap

_SHARED_MEMORY = Patch(
    "deepspeed.comm.torch", "build_shm_op", "leave the CPU ranks' shared memory uncompiled"
)
_RANGES = Patch(
    "deepspeed.utils.nvtx",
    "enable_nvtx",
    # Every hook and collective opens a range for a profiler of the GPU: a tenth of the run's time.
    "leave out ranges for a profiler of the GPU",
)
_COMPILE_PASSES = Patch(
    "deepspeed.runtime.engine:DeepSpeedEngine",
    "register_compile_pass",
    # It imports Inductor: most of a second.
    "register DeepCompile's passes only where it is used",
    since="0.16.6",
)
_SAME_LIST = Patch("deepspeed.runtime.zero.utils", "get_lst_from_rank0", "let every rank agree with rank 0")
_SAME_LENGTH = Patch(
    "deepspeed.runtime.zero.utils",
    "assert_lst_len_same_as_other_ranks",
    "let every rank agree with rank 0",
    since="0.17.6",
)


def install() -> None:
    """Leave out what is for a GPU's profiler, for compiling and for other processes on the CPU."""
    apply(_SHARED_MEMORY, lambda _: lambda: None)
    apply(_RANGES, lambda _: False)
    wrap(_COMPILE_PASSES, _register_where_used)


def _register_where_used(register: Any, engine: Any, *arguments: Any, **given: Any) -> None:
    if engine.is_deepcompile_enabled():
        register(engine, *arguments, **given)


def agree_with_rank_0() -> None:
    """Let every rank find that it agrees with rank 0, once DeepSpeed is imported.

    ZeRO-3 compares the order of modules and parameters. All ranks but the first send a placeholder into that
    broadcast and expect rank 0's numbers back, which nobody is there to send.
    """

    def same_list(send: Any, numbers: list[int]) -> list[int]:
        send(numbers)
        return list(numbers)

    def same_length(send: Any, numbers: list[int]) -> None:
        with contextlib.suppress(RuntimeError):
            send(numbers)

    wrap(_SAME_LIST, same_list)
    wrap(_SAME_LENGTH, same_length)
