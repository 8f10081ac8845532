"""Python's collector of garbage in cycles, paused while many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection(*, freezes: bool = False) -> Iterator[None]:
    """Pause the collector, which would visit new objects again and again.

    Args:
        freezes: whether it never visits the objects that exist at the end, such as those of imported libraries.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freezes:
            gc.freeze()
        if was_on:
            gc.enable()
