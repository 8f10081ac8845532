"""The section `compile`: DeepCompile."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from zerokit.config.base import Bytes, Reader, Section
from zerokit.config.conditions import FREE_ACTIVATION, Acts


class Compile(Section):
    """DeepCompile: communication and offload planned by the compiler. Acts once the script has called
    `engine.compile()`.

    `disable`, `backend` and `kwargs`, which releases before 0.14.4 knew, are refused.
    """

    read_by: ClassVar[Reader] = "model"
    switch = "deepcompile"
    acts_without_switch = ("autoep_non_moe",)

    deepcompile: bool = False
    """Compile with DeepCompile; in stages 1, 2 and 3 unless `passes` say otherwise. Default false."""

    passes: Annotated[list[Literal["z1", "z3", "autosp", "autotp"]] | None, Acts(since="0.18.9")] = None
    """Optimizations to put together: ZeRO stage 1 or 3, sequence parallelism, tensor parallelism. Default
    none: those of the ZeRO stage."""

    autoep_non_moe: Annotated[bool, Acts(since="0.19.8")] = False
    """Under `expert_parallel`: compile the layers around the experts and leave the experts as they are.
    Default false."""

    free_activation: Annotated[bool, Acts(1, 2, 3)] = False
    """Free activations as early as the graph allows; not with the backend inductor. Default false."""

    free_activation_threshold: Annotated[
        Bytes,
        Acts(1, 2, 3, when=FREE_ACTIVATION, since="0.18.0"),
    ] = 10 * 2**20
    """Bytes from which an activation is freed early. Default 10 MiB."""

    offload_activation: Annotated[bool, Acts(3)] = False
    """Move activations of 5 MB and more to the host during the forward pass, and back during the backward
    pass, as far as memory requires; not together with `offload_parameters` or `offload_opt_states`. Default
    false."""

    offload_activation_pin_memory: Annotated[bool, Acts(3, since="0.19.6")] = True
    """Use page-locked host memory for `offload_activation`. Default true."""

    offload_opt_states: Annotated[bool, Acts(3)] = False
    """Move optimizer states to the host during forward and backward, as far as memory requires; not
    together with `offload_parameters` or `offload_optimizer`. Default false."""

    offload_parameters: Annotated[bool, Acts(3)] = False
    """Move parameters to the host. Default false."""

    double_buffer: bool = True
    """Use two buffers, so that one is reduced while the other is filled. Default true."""

    symmetric_memory: Annotated[bool, Acts(3)] = False
    """Gather through symmetric memory, which NVLink GPUs of one node share. Default false."""

    debug_log: bool = False
    """Write the graphs to files. Default false."""

    keep_int_input_tensors: Annotated[bool, Acts(since="0.17.2")] = True
    """Keep the values of integer inputs for profiling rather than made-up ones. Default true."""

    keep_all_input_tensors: Annotated[bool, Acts(since="0.17.2")] = False
    """Keep the values of all inputs for profiling rather than made-up ones. Default false."""

    sync_before_reduce: bool = False
    """Synchronise before each reduction. Default false."""

    sync_after_reduce: bool = False
    """Synchronise after each reduction. Default false."""

    sync_before_allgather: bool = False
    """Synchronise before each gathering. Default false."""

    sync_after_allgather: bool = False
    """Synchronise after each gathering. Default false."""
