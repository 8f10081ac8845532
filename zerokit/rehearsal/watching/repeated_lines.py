"""Folds warnings and log lines that the script or its libraries print again and again.

The first one is printed. Files of a logger, and warnings that the script records, get all.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from typing import Any

from zerokit.console import note
from zerokit.patches import Patch, wrap
from zerokit.rehearsal.watching.watcher import Watcher
from zerokit.units import quantity

_SHOW_WARNING = Patch("warnings", "_showwarnmsg_impl", "fold warnings that are printed again")
_EMIT = Patch("logging:StreamHandler", "emit", "fold log lines that are printed again")
_NUMBER = re.compile(r"\d+")


class RepeatedLines(Watcher):
    """Follows what is printed on the terminal."""

    def __init__(self) -> None:
        self._printed: Counter[tuple[object, ...]] = Counter()

    def on_process_start(self) -> None:
        wrap(_SHOW_WARNING, self._show_warning)
        wrap(_EMIT, self._emit)

    def on_exit(self) -> None:
        folded = self._printed.total() - len(self._printed)
        if folded:
            note(f"{quantity(folded, 'more warning or log line')} like those above were folded")
        self._printed.clear()

    def _is_repeated(self, *words: object) -> bool:
        self._printed[words] += 1
        return self._printed[words] > 1

    def _show_warning(self, show: Any, warning: Any) -> None:
        if not self._is_repeated(warning.category, _NUMBER.sub("#", str(warning.message))):
            show(warning)

    def _emit(self, emit: Any, handler: Any, record: logging.LogRecord) -> None:
        is_of_terminal = getattr(handler, "stream", None) in (sys.stdout, sys.stderr)
        if is_of_terminal and record.exc_info is None:
            text = record.getMessage()
            if record.levelno >= logging.WARNING:  # lines of progress differ by their numbers
                text = _NUMBER.sub("#", text)
            if self._is_repeated(id(handler), record.name, record.levelno, text):
                return
        emit(handler, record)
