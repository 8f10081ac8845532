"""Python objects that rank 0 broadcasts, handed to the other rank that is rehearsed beside it."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

from zerokit.files import write_file

_CLOSED = "closed"
_SECONDS_BETWEEN_LOOKS = 0.01


class ObjectExchange:
    """Stands in for `torch.distributed.broadcast_object_list` between ranks that run at the same time.

    Args:
        folder: shared by the ranks of one rehearsal, and theirs alone, since pickles are read from it; None
            if this rank is rehearsed by itself.
        rank: this rank.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._calls: Counter[tuple[int, ...]] = Counter()
        self.unknown = 0
        """Broadcasts whose values nobody could tell; this rank went on with its own."""

    def broadcast(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        **_: Any,
    ) -> None:
        """Arguments as those of `torch.distributed.broadcast_object_list`."""
        import torch.distributed as dist

        ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        source = src if src is not None else ranks[group_src or 0]
        call = self._calls[ranks]
        self._calls[ranks] += 1
        if self._rank == source:
            if source == 0:
                self._give(object_list, f"{len(ranks)}-{call}")
        elif source != 0 or not self._take(object_list, f"{len(ranks)}-{call}"):
            self.unknown += 1

    def close(self) -> None:
        """Rank 0 will broadcast no more; who waits for it goes on without."""
        if self._folder is not None and self._rank == 0:
            (self._folder / _CLOSED).touch()

    def _give(self, objects: list[Any], name: str) -> None:
        if self._folder is None:
            return
        write_file(self._folder / name, pickle.dumps(objects))

    def _take(self, objects: list[Any], name: str) -> bool:
        if self._folder is None:
            return False
        file = self._folder / name
        # Asked in this order, since rank 0 writes before it closes.
        while (is_closed := (self._folder / _CLOSED).exists()) is False and not file.exists():
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        if is_closed and not file.exists():
            return False
        objects[:] = pickle.loads(file.read_bytes())  # noqa: S301  written by this very run
        return True
