"""Whether a run fits on its machines: one judge, one set of words and colours, one meaning for exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from zerokit.hardware.cluster import Cluster
from zerokit.hardware.non_torch_memory import HOST_PROCESS
from zerokit.reporting.terminal import BAD, DOUBTFUL, GOOD
from zerokit.units import GIB, format_bytes, format_span

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

_GOES_WITHOUT_SAYING = 16 * GIB
"""Of tensors on a node whose memory is not known: what any machine with a GPU has."""


@dataclass(frozen=True)
class HostFit:
    """What a run takes of one node beside its GPUs, and what the node has."""

    needed_low_bytes: int
    """Tensors, and the least that the ranks' processes take."""
    needed_high_bytes: int
    memory_bytes: int | None
    """None: not known, and then what is needed is a condition."""
    as_rented: bool
    """`memory_bytes` is that of nodes that clouds rent with such cards; nobody has given it."""
    nvme_needed_bytes: int
    """What a node's drives have is not known."""
    is_condition: bool
    """The verdict holds where a node has that much memory, which nobody has said."""

    @property
    def verdict(self) -> Verdict:
        """Of the host alone."""
        if self.memory_bytes is None:
            return "fits"
        return judge(self.needed_low_bytes, self.needed_high_bytes, self.memory_bytes)


def host_fit(cluster: Cluster, tensor_bytes: int, nvme_bytes: int) -> HostFit:
    """Judge one node.

    Args:
        cluster: of the run, with what is known of its nodes.
        tensor_bytes: of all ranks of a node, pinned and pageable.
        nvme_bytes: of their files.
    """
    low, high = (tensor_bytes + cluster.local_ranks * process for process in HOST_PROCESS)
    memory = cluster.known_host_bytes
    return HostFit(
        needed_low_bytes=low,
        needed_high_bytes=high,
        memory_bytes=memory,
        as_rented=memory is not None and cluster.host_bytes is None,
        nvme_needed_bytes=nvme_bytes,
        is_condition=memory is None and tensor_bytes > _GOES_WITHOUT_SAYING,
    )


def judge(low_bytes: int, high_bytes: int, memory_bytes: int) -> Verdict:
    """Compare what is needed, at the least and at the most, with what there is."""
    if high_bytes <= memory_bytes:
        return "fits"
    return "tight" if low_bytes <= memory_bytes else "does not fit"


def worst(*verdicts: Verdict) -> Verdict:
    """A run fits if it fits everywhere."""
    return max(verdicts, key=VERDICTS.index)


def verdict_line(
    verdict: Verdict,
    low_bytes: int,
    high_bytes: int,
    gpu_memory_bytes: int,
    host: HostFit | None = None,
) -> Text:
    """``"Fits: needs 53.06 to 61.19 GiB of 80.00 GiB, and 15.96 to 30.96 GiB of each host's 1.76 TiB"``."""
    from rich.text import Text

    needed = f": needs {format_span(low_bytes, high_bytes)} of {format_bytes(gpu_memory_bytes)}"
    condition = ""
    if host is not None:
        on_host = format_span(host.needed_low_bytes, host.needed_high_bytes)
        if host.memory_bytes is not None:
            rented = " (as rented; --host-memory gives another)" if host.as_rented else ""
            needed += f", and {on_host} of each host's {format_bytes(host.memory_bytes)}{rented}"
        elif host.is_condition and verdict != "does not fit":
            condition = f", if each host has {on_host} for it (--host-memory)"
        if host.nvme_needed_bytes:
            needed += f", and {format_bytes(host.nvme_needed_bytes)} of each host's NVMe"
    return Text.assemble((_SENTENCES[verdict], _STYLES[verdict]), condition, needed)


def stuck_line(where: str) -> Text:
    """What stands above a verdict on a run that never comes to its end."""
    from rich.text import Text

    return Text(where[0].upper() + where[1:], style=BAD)


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """1 if there are runs and none of them may fit, else 0."""
    found = set(verdicts)
    return int(found == {"does not fit"})
