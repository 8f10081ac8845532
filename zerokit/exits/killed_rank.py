"""Finds which rank was killed, and on which machine, in messages of launchers, Slurm and the kernel."""

import re

from zerokit.exits.log import Log
from zerokit.units import quantity

_SAID = [
    re.compile(pattern)
    for pattern in (
        # torchrun's report, and the line before it
        r"host {1,8}: (?P<node>\S{1,200})\n[^\n]{0,60}rank {1,8}: (?P<who>\d{1,7}) [^\n]{0,60}"
        r"\n[^\n]{0,60}exitcode {1,8}: (?:-9|137)\b",
        r"\(exitcode: (?:-9|137)\) (?P<what>local_rank): (?P<who>\d{1,7})\b",
        # pdsh's prefix of a line of DeepSpeed's launcher; the command in it is always that of its last rank
        r"(?:^|\n)(?P<node>[\w.-]{1,200}): (?P<who>)\[[^\n]{1,8400}exits with return code = (?:-9|137)\b",
        r"error: (?P<node>[\w.-]{1,200}): (?P<what>task)s? (?P<who>\d[\d,-]{0,200}): "
        r"(?P<how>Killed|Out Of Memory)",
        r"process rank (?P<who>\d{1,7}) with PID \d{1,10} on node (?P<node>\S{1,200}) exited on signal 9\b",
    )
]
_VICTIM = "Out Of Memory"
_WORDS = {"local_rank": "local rank", "task": "task", None: "rank"}
_KILLED = re.compile(r"Killed process (\d{1,10})\b")
_STARTED = re.compile(r"process (\d{1,10}) spawned with command: [^\n]{1,2000}?--local_rank=(\d{1,7})\b")
"""DeepSpeed's launcher prints it for each rank of its machine."""
_MOST = 4


def killed_ranks(log: Log, begin: int, end: int) -> str:
    """``rank 3 on node1``, or several ranks; empty if the log names none."""
    matches = (match for pattern in _SAID for match in pattern.finditer(log.text))
    found = [match.groupdict() for match in matches if begin <= match.start() and match.end() <= end]
    # Slurm then kills all other tasks itself.
    found = [one for one in found if one.get("how") == _VICTIM] or found
    # If several messages name one rank, use its global rank and machine.
    named = [(one.get("what"), one["who"], one.get("node")) for one in found]
    named = [one for one in named if one[0] is None and one[1]] or named
    ranks = {match[1]: match[2] for match in _STARTED.finditer(log.text)}
    if not any(who for _, who, _ in named):
        pids = (match[1] for match in _KILLED.finditer(log.text, begin, end))
        named = [("local_rank", ranks[pid], None) for pid in pids if pid in ranks] or named
    words = [
        f"{_WORDS[what] if who else 'a rank'}{f' {who}' if who else ''}{f' on {node}' if node else ''}"
        for what, who, node in dict.fromkeys(named)
    ]
    more = len(words) - _MOST
    return ", ".join(words[:_MOST]) + (f" and {quantity(more, 'other')}" if more > 0 else "")
