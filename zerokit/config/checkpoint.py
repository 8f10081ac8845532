"""The sections `checkpoint` and `datastates_ckpt`: how DeepSpeed's own checkpoints are written and read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from zerokit.config.base import LOWER, NOT_NULL, Bytes, NoText, Positive, Section, Sub
from zerokit.config.conditions import PIPELINE_MODULE, Acts


class CheckpointWriter(Section):
    """Write checkpoint files by another way than `torch.save`. Its presence alone switches it on."""

    type: Annotated[Literal["fast", "python", "mock"], LOWER] = "fast"
    """`fast`: straight to NVMe through `aio`; `python`: ordinary files; `mock`: nothing is written, to
    measure the rest. Default fast."""

    io_buffer_size: Bytes = 64 * 2**20
    """Bytes of the pinned host buffer that data pass through. Default 64 MiB."""

    io_buffer_double: bool = True
    """Fill one half of the buffer while the other is written. Default true."""

    show_statistics: bool = False
    """Print how fast each file was written. Default false."""

    data_parallel: Annotated[
        Annotated[Literal["replica", "socket", "machine"], LOWER] | None, Acts(0, 1, 2)
    ] = None
    """Share the writing of one file among the ranks of a replica, a CPU socket or a machine. Default none:
    one rank writes."""

    decoupled: bool = False
    """Write in a process of its own while training goes on. Default false."""

    io_multiplier: Positive = 1
    """Files per writing rank. Default 1."""


class ParallelWrite(Section):
    """Parallel writing of pipeline checkpoints."""

    pipeline_stage: Annotated[NoText, Acts(when=PIPELINE_MODULE)] = False
    """Let the data-parallel ranks of a pipeline stage share its layers' files.
    Default false."""


class Checkpoint(Section):
    """How checkpoints are written and read."""

    tag_validation: Annotated[Literal["warn", "ignore", "fail"], LOWER] = "warn"
    """What to do when the ranks save under different tags. In upper or lower case. Default warn."""

    load_universal: bool = False
    """Read a universal checkpoint, which fits any number of ranks; `ds_to_universal.py` makes one. Default
    false."""

    use_node_local_storage: bool = False
    """Each node has a folder of its own, so a rank of each node writes what is common. The Trainer sets it
    from `save_on_each_node`. Default false."""

    checkpoint_serialization: Annotated[bool, Acts(since="0.17.1")] = True
    """Let `torch.save` write its zip format; false writes the older one, which some writers need. Default
    true."""

    parallel_write: Sub[ParallelWrite] = Field(default_factory=ParallelWrite.defaults)
    """Parallel writing of pipeline checkpoints."""

    writer: Annotated[Sub[CheckpointWriter] | None, Acts(since="0.17.1")] = None
    """Write checkpoint files by another way than `torch.save`. Default none."""


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
