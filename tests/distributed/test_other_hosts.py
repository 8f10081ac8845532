"""One rank of each host notices the end of another host; what needs real hosts is in tests/launched."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import REPOSITORY

_RANK = """
import ast, os, sys, threading
from zerokit.distributed import other_hosts
from zerokit.distributed.other_hosts import OtherHosts
from zerokit.distributed.ranks import Ranks

other_hosts._GRACE_SECONDS = 0.1  # there are no collectives that would say more

def gather(value):
    print(repr(value), flush=True)
    return ast.literal_eval(sys.stdin.readline())

hosts = OtherHosts(Ranks(int(sys.argv[1]), 3, 0, 1), gather)
print("connected", flush=True)
for line in sys.stdin:
    if line == "leave\\n":
        hosts.leave()
        print("left", flush=True)
    elif line.startswith("join "):
        for thread in threading.enumerate():
            if thread.name.startswith(f"rank {line.split()[1]} on "):
                thread.join()
        print("joined", flush=True)
"""


class _Rank:
    def __init__(self, number: int, folder: Path) -> None:
        environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(REPOSITORY)}
        self.errors = folder / f"{number}.err"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RANK, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@pytest.fixture
def ranks(tmp_path: Path):
    """Three hosts of one rank each, connected, though strangers came first."""
    started = [_Rank(number, tmp_path) for number in range(3)]
    strangers = []
    try:
        for _ in range(2):  # gathers
            told = [ast.literal_eval(rank.hear()) for rank in started]
            if told[0] is not None:
                port = told[0][2][0]
                strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
                strangers[1].sendall(bytes(16) + (1).to_bytes(4, "big"))
            for rank in started:
                rank.tell(repr(told))
        assert [rank.hear() for rank in started] == ["connected\n"] * 3
        yield started
    finally:
        for stranger in strangers:
            stranger.close()
        for rank in started:
            rank.process.kill()
            rank.process.communicate()


def test_a_host_that_ends_ends_the_others_through_rank_0(ranks) -> None:
    ranks[1].process.kill()
    assert ranks[0].process.wait() == 1
    said = ranks[0].errors.read_text()
    assert said.startswith("zerokit: error: rank 1 on "), said
    assert "has ended without a word" in said
    assert ranks[2].process.wait() == 1
    assert ranks[2].errors.read_text().startswith("zerokit: error: rank 0 on ")


def test_a_host_that_leaves_in_order_ends_nobody(ranks) -> None:
    ranks[2].tell("leave")
    assert ranks[2].hear() == "left\n"
    ranks[2].process.kill()
    ranks[0].tell("join 2")
    assert ranks[0].hear() == "joined\n"
    assert ranks[0].errors.read_text() == ""
