"""The next call of a module, by which a step is known to be over that nobody ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class NextCall:
    """Tells once of the next call of a module by the thread that waits for it.

    Args:
        come: called then.
    """

    def __init__(self, come: Callable[[], object]) -> None:
        self._come = come
        self._hook: Any = None
        self._thread = 0

    def wait(self) -> None:
        """From here on."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._thread = threading.get_ident()
        if self._hook is None:
            # For one call alone: a compiler that finds such hooks has more to look at.
            self._hook = register_module_forward_pre_hook(lambda *_: self._call_module())

    def forget(self) -> None:
        """No more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _call_module(self) -> None:
        if self._hook is not None and threading.get_ident() == self._thread:
            self.forget()
            self._come()
