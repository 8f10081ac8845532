"""Whether a run fits on its machines: judgement, words, colours and exit code."""

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

Verdict = Literal["fits", "tight", "likely does not fit", "does not fit"]
"""``tight``: the memory is in the upper half of the range of need; ``likely does not fit``: in the lower."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Best first."""

NEGATIVE: frozenset[Verdict] = frozenset({"likely does not fit", "does not fit"})
"""The answer is "no": exit code 1."""

SHORT: dict[Verdict, str] = {"fits": "yes", "tight": "tight", "likely does not fit": "unlikely", "does not fit": "no"}
"""Words for the column "Fits"."""

_STYLES = {"fits": GOOD, "tight": DOUBTFUL, "likely does not fit": BAD, "does not fit": BAD}

_GOES_WITHOUT_SAYING = 16 * GIB
"""Tensors on a node with unknown memory: any machine with a GPU has this much."""


@dataclass(frozen=True)
class HostFit:
    """What a run needs of a node besides its GPUs, and what the node has."""

    needed_low_bytes: int
    """Tensors, and the minimum of the ranks' processes."""
    needed_high_bytes: int
    memory_bytes: int | None
    """None: unknown; the need is then a condition."""
    as_rented: bool
    """Whether `memory_bytes` is that of rented nodes with such cards, because none was given."""
    nvme_needed_bytes: int
    """The size of a node's drives is unknown."""
    is_condition: bool
    """Whether the verdict assumes host memory that is not known."""

    @property
    def verdict(self) -> Verdict:
        """The host's verdict."""
        if self.memory_bytes is None:
            return "fits"
        return judge(self.needed_low_bytes, self.needed_high_bytes, self.memory_bytes)

    @property
    def span(self) -> str:
        """``"13.51 to 28.51 GiB"``."""
        return format_span(self.needed_low_bytes, self.needed_high_bytes)

    @property
    def condition(self) -> str:
        """``", if each host has 13.51 to 28.51 GiB"``; empty if the verdict assumes no unknown memory."""
        return f", if each host has {self.span}" * self.is_condition


def host_fit(cluster: Cluster, tensor_bytes: int, nvme_bytes: int) -> HostFit:
    """Judge one node.

    Args:
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
    """Compare the minimum and maximum need with the memory.

    Only the minimum is certain. If the memory is between the two, the run likely does not fit where most of
    the range is above the memory.
    """
    if high_bytes <= memory_bytes:
        return "fits"
    if low_bytes > memory_bytes:
        return "does not fit"
    return "tight" if low_bytes + high_bytes <= 2 * memory_bytes else "likely does not fit"


def worst(*verdicts: Verdict) -> Verdict:
    """A run fits if it fits everywhere."""
    return max(verdicts, key=VERDICTS.index)


def verdict_line(
    verdict: Verdict,
    low_bytes: int,
    high_bytes: int,
    gpu_memory_bytes: int,
    host: HostFit | None = None,
    *,
    has_options: bool = True,
) -> Text:
    """``"Fits: needs 53.06 to 61.19 GiB of 80.00 GiB, and 15.96 to 30.96 GiB of each host's 1.76 TiB"``.

    If only the memory of the hosts is short, the line names it and starts with it.

    Args:
        has_options: whether the command has the option --host-memory.
    """
    from rich.text import Text

    needed, has = format_span(low_bytes, high_bytes), format_bytes(gpu_memory_bytes)
    word, style = verdict.capitalize(), _STYLES[verdict]
    option = " (--host-memory)" * has_options
    gpu_verdict = judge(low_bytes, high_bytes, gpu_memory_bytes)
    if host is not None and verdict != "fits" and host.verdict == verdict != gpu_verdict:
        parts = _host_needs(host, "each host's", has_options)
        parts.insert(1, f"{needed} of each GPU's {has}")
        return Text.assemble((f"{word} in host memory", style), f": needs {', and '.join(parts)}")
    if verdict in ("tight", "likely does not fit"):
        of_host = [] if host is None else _host_needs(host, "its", has_options)
        if host is not None and host.is_condition:
            of_host.insert(0, f"{host.span}{option}")
        also = f". Each host also needs {' and '.join(of_host)}" * bool(of_host)
        above = ""
        if gpu_verdict == "likely does not fit":
            share = (high_bytes - gpu_memory_bytes) / (high_bytes - low_bytes)
            above = f"; {share:.0%} of this range is above it"
        return Text.assemble((word, style), f": needs {needed}, the card has {has}{above}{also}")
    of_host = [] if host is None else _host_needs(host, "each host's", has_options)
    condition = ""
    if host is not None and host.is_condition and verdict == "fits":
        condition = f"{host.condition} for it{option}"
    parts = [f"{needed} of {has}", *of_host]
    return Text.assemble((word, style), f"{condition}: needs {', and '.join(parts)}")


def host_line(host: HostFit) -> Text:
    """``"Host memory: does not fit: needs 145.75 to 265.75 GiB of each host's 10.00 GiB"``."""
    from rich.text import Text

    needs = ", and ".join(_host_needs(host, "each host's", has_options=True))
    return Text.assemble("Host memory: ", (host.verdict, _STYLES[host.verdict]), f": needs {needs}")


def _host_needs(host: HostFit, whose: str, has_options: bool) -> list[str]:
    """What a run needs of the memory, if it is known, and of the drives of a host."""
    needs = []
    if host.memory_bytes is not None:
        rented = f" (a typical cloud node{'; --host-memory changes it' * has_options})" * host.as_rented
        needs.append(f"{host.span} of {whose} {format_bytes(host.memory_bytes)}{rented}")
    if host.nvme_needed_bytes:
        needs.append(f"{format_bytes(host.nvme_needed_bytes)} of {whose} NVMe")
    return needs


def stuck_line(where: str) -> Text:
    """The line above the verdict of a run that never ends."""
    from rich.text import Text

    return Text(where[0].upper() + where[1:], style=BAD)


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """1 if there are runs and all of them do not, or likely do not, fit, else 0."""
    found = set(verdicts)
    return int(bool(found) and found <= NEGATIVE)
