"""The rehearsal: the real DeepSpeed runs the real script on virtual GPUs that hold no data.

`zerokit rehearse` is the command; :func:`virtual_cluster` is the same for Python:

    from zerokit.rehearsal import virtual_cluster

    with virtual_cluster(num_gpus=8) as rank:  # before anything imports torch
        import train

        train.main()
    recording = rank.recording()

Importing this package imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from zerokit.rehearsal.process_setup import virtual_cluster
from zerokit.rehearsal.worker.virtual_rank import VirtualRank

__all__ = ["VirtualRank", "virtual_cluster"]
