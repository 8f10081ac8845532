"""The meaning of exit codes, in each launcher's notation of signals."""

import re
import signal
from typing import Any, NamedTuple

from zerokit.errors import ZerokitError
from zerokit.exits.causes import with_advice
from zerokit.tables import table_of


class Meaning(NamedTuple):
    message: str
    fix: str
    in_log: bool = False
    """Whether a log has better information."""


_TABLE: dict[str, dict[str, dict[str, Any]]] = table_of(__file__)

_READ_LOG = "Read the log above"
_MOST = 64
"""Signals of Linux."""


def parse_code(word: str) -> int | None:
    """The exit code in a word: ``137``, ``-9``, ``SIGKILL``; None for other words.

    Raises:
        ZerokitError: no process ends with that number.
    """
    if word.upper() in signal.Signals.__members__:
        return -signal.Signals[word.upper()]
    if not re.fullmatch(r"-?[0-9]{1,10}", word):
        return None
    code = int(word)
    if not -_MOST <= code <= 255:
        raise ZerokitError(
            f"no process ends with {code}",
            where="LOG|CODE",
            hint="Exit codes are 0 to 255; a signal may be negative, such as -9",
        )
    return code


def signal_of(code: int) -> str | None:
    """The name of the signal behind a code.

    Python writes -9, a shell 128 + 9, and a launcher that ends with Python's code 256 - 9.
    """
    number = -code if code < 0 else 256 - code if code >= 256 - _MOST else code - 128
    try:
        return signal.Signals(number).name if number > 0 and code != 255 else None
    except ValueError:  # a real-time signal
        return f"signal {number}" if 0 < number <= _MOST and code != 255 else None


def meaning(code: int) -> Meaning:
    name = signal_of(code)
    if name is not None:
        row = _TABLE["signals"].get(name, {"message": "ended by that signal", "fix": _READ_LOG})
        label = f"exit code {code} ({name})"
    else:
        row = _TABLE["codes"].get(str(code), {"message": "the program's own code", "fix": _READ_LOG})
        label = f"exit code {code}"
    found = Meaning(**row)
    return found._replace(message=f"{label}: {found.message}", fix=with_advice(found.fix))
