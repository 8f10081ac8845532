"""Network variables for a run, from a report of `zerokit doctor`."""

from __future__ import annotations

import re
from pathlib import Path

from zerokit.documents import read_document
from zerokit.errors import LaunchError

_NAME = re.compile(r"(?:NCCL|GLOO)_[A-Z0-9_]{1,60}")
_VALUE = re.compile(r"[\w.,:=^-]{1,200}", re.ASCII)
_AGAIN = "Write it again: zerokit doctor --hostfile FILE --format json > doctor.json"


def read_network_variables(path: Path) -> dict[str, str]:
    """Read the ``NCCL_*`` and ``GLOO_*`` variables that the doctor recommends; mostly none.

    Args:
        path: output of ``zerokit doctor --format json``.

    Raises:
        DocumentError: the file cannot be read.
        LaunchError: it is no such report, or has other variables.
    """
    report = read_document(path).data
    checks = report.get("checks") if isinstance(report, dict) else None
    if not isinstance(checks, list) or not all(isinstance(result, dict) for result in checks):
        raise LaunchError("is no report of 'zerokit doctor --format json'", where=path, hint=_AGAIN)
    found: dict[str, str] = {}
    for result in checks:
        variables = result.get("variables", {})
        for name, value in variables.items() if isinstance(variables, dict) else ():
            if not _NAME.fullmatch(name):
                problem = f"has '{name}', which the doctor never sets"
                raise LaunchError(problem, where=path, hint=_AGAIN)
            if not (isinstance(value, str) and _VALUE.fullmatch(value)):
                problem = f"has an invalid value of '{name}'"
                raise LaunchError(problem, where=path, hint=_AGAIN)
            found[name] = value
    return found
