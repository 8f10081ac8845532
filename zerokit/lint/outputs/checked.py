"""A file with what was found in it."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from zerokit.errors import ZerokitError
from zerokit.findings import SEVERITIES, Finding
from zerokit.lint.run import Report

_PLACE = re.compile(r":(\d+)(?::(\d+))?(?: \(.*\))?$")


@dataclass(frozen=True)
class CheckedFile:
    """One file of a run of ``zerokit check``."""

    name: str
    """As the person gave it."""
    report: Report
    """What is (still) wrong with it; empty for a file with an error."""
    fixed: tuple[Finding, ...] = ()
    """What was fixed."""
    error: ZerokitError | None = None
    """Why it cannot be read, or written."""
    other_type: str | None = None
    """The `distributed_type` of a launch file that does not start DeepSpeed."""

    @property
    def error_place(self) -> tuple[int | None, int | None]:
        """Line and column of `error`, as far as it names them."""
        where = (self.error.where or "") if self.error is not None else ""
        found = _PLACE.search(where.removeprefix(self.name))
        if found is None:
            return None, None
        return int(found[1]), int(found[2]) if found[2] else None


def counted(files: Iterable[CheckedFile]) -> dict[str, int]:
    """How many findings of each severity there are, the worst first; severities without any are left out."""
    count = Counter(finding.severity for file in files for finding in file.report.findings)
    return {severity: count[severity] for severity in SEVERITIES if count[severity]}
