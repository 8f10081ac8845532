"""The section `datastates_ckpt`: the checkpoint engine of DataStates."""

from __future__ import annotations

from typing import Annotated

from zerokit.config.base import NOT_NULL, Positive, Section


class DataStates(Section):
    """Write checkpoints in the background with DataStates, a library of its own, which these options are
    for. The presence of the section switches it on; without the library DeepSpeed stops when it starts.
    """

    host_cache_size: Annotated[Positive | None, NOT_NULL] = None
    """GiB of host memory through which states pass on their way to the file. Default: the library's own."""

    parser_threads: Annotated[Positive | None, NOT_NULL] = None
    """Threads that turn states into bytes. Default: the library's own."""

    pin_host_cache: Annotated[bool | None, NOT_NULL] = None
    """Use page-locked host memory. Default: the library's own."""
