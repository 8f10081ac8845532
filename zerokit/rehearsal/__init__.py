"""The rehearsal: the real DeepSpeed runs the real script on virtual GPUs that hold no data.

`zerokit rehearse` is the command; :func:`virtual_cluster` is the same for Python:

    from zerokit.rehearsal import virtual_cluster

    with virtual_cluster(num_gpus=8) as rank:  # before anything imports torch
        import train

        train.main()
    recording = rank.recording()

Importing this package imports neither torch nor DeepSpeed, and no other part of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerokit.rehearsal.process_setup import virtual_cluster as virtual_cluster
    from zerokit.rehearsal.worker.virtual_rank import VirtualRank as VirtualRank

_PLACES = {"VirtualRank": "worker.virtual_rank", "virtual_cluster": "process_setup"}

__all__ = ["VirtualRank", "virtual_cluster"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
