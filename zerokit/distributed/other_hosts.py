"""Ends a run on several machines when one of them is gone.

Collectives would wait half an hour for a host without power or network; with NCCL also for one whose
processes have ended. So one rank of each host keeps a connection to rank 0, on which TCP's keepalive detects
the end.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zerokit import console
from zerokit.distributed.exit_reports import exit_now, mark_outside_cause
from zerokit.distributed.ranks import Ranks
from zerokit.errors import RankError

_PROBE_SECONDS = 5
_PROBES = 6
"""Unanswered probes until a host counts as gone: 35 seconds, in which a switch can restart a port."""
_CONNECT_SECONDS = 10
_ACCEPT_SECONDS = 1
_TOKEN_BYTES = 16
_LEAVES = b"."
"""Sent by a rank that leaves in order."""
_GRACE_SECONDS = 5.0
"""Time for collectives to report more about a rank that has ended."""

Gather = Callable[[Any], list[Any]]


class OtherHosts:
    """The connections of this rank to the other hosts of the run."""

    def __init__(self, ranks: Ranks, gather: Gather) -> None:
        """Connect, if possible. `gather` returns the value of every rank in rank order; called twice."""
        self._connections: list[socket.socket] = []
        self._leaves = threading.Event()
        server = _server() if ranks.is_main else None
        meeting = (server.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES)) if server is not None else None
        told = gather((socket.gethostname(), ranks.is_node_main, meeting))
        self.names = [str(name) for name, _, _ in told]
        """Of the hosts of all ranks."""
        port, token = told[0][2]
        all_met = threading.Event()
        if server is not None:
            others = {rank for rank, (_, is_node_main, _) in enumerate(told) if rank and is_node_main}
            threading.Thread(target=self._accept, args=(server, token, others, all_met), daemon=True).start()
        elif ranks.is_node_main:
            self._connect(port, token, ranks.rank)
        gather(None)  # who could connect has been answered by now
        all_met.set()

    def leave(self) -> None:
        """Tell the others that this rank ends as it should."""
        self._leaves.set()
        for connection in self._connections:
            with suppress(OSError):
                connection.sendall(_LEAVES)
                connection.close()

    def _connect(self, port: int, token: bytes, rank: int) -> None:
        with suppress(OSError):
            connection = socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=_CONNECT_SECONDS)
            connection.sendall(token + rank.to_bytes(4, "big"))
            if connection.recv(_TOKEN_BYTES, socket.MSG_WAITALL) == token:
                self._keep(connection, 0)
            else:
                connection.close()

    def _accept(self, server: socket.socket, token: bytes, others: set[int], all_met: threading.Event) -> None:
        server.settimeout(_ACCEPT_SECONDS)
        with server:
            while not all_met.is_set():
                with suppress(OSError):  # nobody came, or who came has gone
                    connection, _ = server.accept()
                    threading.Thread(target=self._meet, args=(connection, token, others), daemon=True).start()

    def _meet(self, connection: socket.socket, token: bytes, others: set[int]) -> None:
        """Accept a connection of each of `others` once, and of no stranger."""
        connection.settimeout(_CONNECT_SECONDS)
        with suppress(OSError):
            said = connection.recv(len(token) + 4, socket.MSG_WAITALL)
            rank = int.from_bytes(said[len(token) :], "big")
            if secrets.compare_digest(said[: len(token)], token) and rank in others:
                others.remove(rank)
                self._keep(connection, rank)
                connection.sendall(token)
                return
        connection.close()

    def _keep(self, connection: socket.socket, rank: int) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", _PROBE_SECONDS),
            ("TCP_KEEPINTVL", _PROBE_SECONDS),
            ("TCP_KEEPCNT", _PROBES),
        ):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._connections.append(connection)
        where = f"rank {rank} on {self.names[rank]}"
        threading.Thread(target=self._wait, args=(connection, where), name=where, daemon=True).start()

    def _wait(self, connection: socket.socket, where: str) -> None:
        """Wait for the end of `connection`, and end this process unless the run is over."""
        try:
            if connection.recv(1) == _LEAVES or self._leaves.is_set():
                return
            what = "has ended without a word"
            hint = "See what it has said there; if nothing, 'dmesg' there names what the kernel has ended"
        except OSError as error:
            what = f"does not answer any more ({error.strerror})"
            hint = "See whether it runs, and its network; then start again (zerokit train: with --resume auto)"
        if self._leaves.wait(_GRACE_SECONDS):
            return
        console.print_error(RankError(what, where=where, hint=hint))
        sys.stderr.flush()
        mark_outside_cause()
        exit_now(RankError.exit_code)


def _server() -> socket.socket:
    """A socket that listens on a free port of all addresses."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
