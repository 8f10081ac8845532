"""Whether a run fits on its GPUs: one judge, one set of words and colours, one meaning for exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

from zerokit.reporting.terminal import BAD, DOUBTFUL, GOOD
from zerokit.units import format_bytes, format_span

if TYPE_CHECKING:
    from rich.text import Text

Verdict = Literal["fits", "tight", "does not fit"]
"""``tight``: it depends on what is only known as an interval."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The best first."""

SHORT: dict[Verdict, str] = {"fits": "yes", "tight": "tight", "does not fit": "no"}
"""For the cells of a table, under "Fits"."""

_SENTENCES = {
    "fits": "Fits",
    "tight": "Tight: it fits or not by what is only known as an interval",
    "does not fit": "Does not fit",
}
_STYLES = {"fits": GOOD, "tight": DOUBTFUL, "does not fit": BAD}


def judge(low_bytes: int, high_bytes: int, gpu_memory_bytes: int) -> Verdict:
    """Compare what is needed, at the least and at the most, with what one GPU has."""
    if high_bytes <= gpu_memory_bytes:
        return "fits"
    return "tight" if low_bytes <= gpu_memory_bytes else "does not fit"


def verdict_line(verdict: Verdict, low_bytes: int, high_bytes: int, gpu_memory_bytes: int) -> Text:
    """``"Fits: needs 53.06 to 61.19 GiB of 80.00 GiB"``."""
    from rich.text import Text

    needed = f": needs {format_span(low_bytes, high_bytes)} of {format_bytes(gpu_memory_bytes)}"
    return Text.assemble((_SENTENCES[verdict], _STYLES[verdict]), needed)


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """1 if there are runs and none of them may fit, else 0."""
    found = set(verdicts)
    return int(found == {"does not fit"})
