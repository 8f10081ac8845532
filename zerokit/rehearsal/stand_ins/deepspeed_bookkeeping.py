"""DeepSpeed's own needs that a process without a GPU or peers does not have."""

from __future__ import annotations

import contextlib
from typing import Any

from zerokit.patches import Patch, apply, wrap

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_ZERO = "deepspeed.runtime.zero.utils"
_AGREE = "let every rank agree with rank 0"
_SHARED_MEMORY = Patch("deepspeed.comm.torch", "build_shm_op", "compile nothing for ranks on the CPU")
# Every hook and collective opens a range for a profiler of the GPU: a tenth of the run's time.
_RANGES = Patch("deepspeed.utils.nvtx", "enable_nvtx", "leave out ranges for a profiler of the GPU")
# It imports Inductor: most of a second.
_PASSES = Patch(_ENGINE, "register_compile_pass", "register DeepCompile's passes where used", since="0.16.6")
_SAME_LIST = Patch(_ZERO, "get_lst_from_rank0", _AGREE)
_SAME_LENGTH = Patch(_ZERO, "assert_lst_len_same_as_other_ranks", _AGREE, since="0.17.6")


def install() -> None:
    """Leave out what is for a GPU's profiler, for compiling and for other processes on the CPU."""
    apply(_SHARED_MEMORY, lambda _: lambda: None)
    apply(_RANGES, lambda _: False)
    wrap(_PASSES, _register_where_used)


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
