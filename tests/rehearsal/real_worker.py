"""The rehearsal's worker for a rank that really talks to the others: a real run under its accounting."""

from __future__ import annotations

import os
from typing import Any

from tests.rehearsal import forked_worker


def install_group(traffic: Any, rank: int, world_size: int) -> None:
    """Imported late: torch comes after the virtual device."""
    from tests.rehearsal import gloo_process_group

    gloo_process_group.install(traffic, rank, world_size)


if __name__ == "__main__":
    if forked_worker.SOCKET in os.environ:
        forked_worker.ask(real=True)
    from zerokit.rehearsal.worker import run as worker

    worker.main(install_group)
