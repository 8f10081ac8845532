"""What a rehearsal asks of prices; `zerokit.hardware.prices` has them for every card."""

from __future__ import annotations

from typing import Literal, Protocol

Kernel = Literal["flash_attention_2", "flash_attention_3", "flash_attention_4", "cudnn", "efficient", "eager"]
Layout = Literal["TN", "NN", "NT"]
CopyKind = Literal["h2d", "d2h", "d2d", "nvme_read", "nvme_write"]
CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send_recv"]


class Prices(Protocol):
    """Seconds of everything that a step does, as `zerokit.hardware.prices` says at each method."""

    def matmul(self, m: int, n: int, k: int, batch: int, dtype: str, layout: Layout | None) -> float: ...

    def attention(
        self,
        kernel: Kernel,
        backward: bool,
        batch: float,
        heads: int,
        kv_heads: int,
        q_len: int,
        k_len: int,
        head_dim: int,
        causal: bool,
        dtype: str,
        window: int | None,
    ) -> float: ...

    def memory_bound(self, bytes_moved: int, operator: str = "") -> float: ...

    def launch(self, name: str) -> float: ...

    def copy(self, kind: CopyKind, num_bytes: int, pinned: bool, sharing: int) -> float: ...

    def collective(self, kind: CollectiveKind, num_bytes: int, ranks_in_node: int, nodes: int) -> float: ...

    def cpu_adam(self, parameters: int, dtype: str) -> float: ...

    def cuda_malloc(self, num_bytes: int) -> float: ...

    def cuda_free(self) -> float: ...

    @property
    def beside_collective(self) -> float: ...
