"""A run on several machines ends when one of them is gone.

A host that lost its power or its network tells nobody: collectives wait for it for half an hour, and with
NCCL for one whose processes have ended, too. So one rank of each host keeps a connection to rank 0, over
which nothing is sent. The kernels at both ends see to it (TCP's keepalive), however busy or stopped the
processes are.
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
from zerokit.distributed.ranks import Ranks
from zerokit.errors import RankError

_PROBE_SECONDS = 5
_PROBES = 6
"""Unanswered, after which a host counts as gone: 35 seconds, in which a switch can restart a port."""
_CONNECT_SECONDS = 10
_LEAVES = b"."
"""Sent by who leaves in order."""
_GRACE_SECONDS = 5.0
"""In which collectives may say more about a rank that has ended."""

Gather = Callable[[Any], list[Any]]


class OtherHosts:
    """The connections of this rank to the other hosts of the run."""

    def __init__(self, ranks: Ranks, gather: Gather) -> None:
        """Connect. Where that cannot be, such as behind a firewall, the run goes on without.

        Args:
            ranks: of the run.
            gather: gives the value of every rank, in rank order, on every rank; called twice.
        """
        self._connections: list[socket.socket] = []
        self._leaves = threading.Event()
        server = _server() if ranks.is_main else None
        meeting = (server.getsockname()[1], secrets.token_bytes(16)) if server is not None else None
        told = gather((socket.gethostname(), ranks.is_node_main, meeting))
        self.names = [str(name) for name, _, _ in told]
        """Of the hosts of all ranks."""
        others = [(rank, name) for rank, (name, is_node_main, _) in enumerate(told) if rank and is_node_main]
        port, token = told[0][2]
        if server is not None:
            self._accept(server, token, dict(others))
        elif ranks.is_node_main:
            self._connect(port, token, ranks.rank, self.names[0])
        gather(None)  # nobody goes on while another may still connect

    def leave(self) -> None:
        """Tell the others that this rank ends as it should."""
        self._leaves.set()
        for connection in self._connections:
            with suppress(OSError):
                connection.sendall(_LEAVES)
                connection.close()

    def _connect(self, port: int, token: bytes, rank: int, host: str) -> None:
        with suppress(OSError):
            connection = socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=_CONNECT_SECONDS)
            connection.sendall(token + rank.to_bytes(4, "big"))
            self._keep(connection, 0, host)

    def _accept(self, server: socket.socket, token: bytes, others: dict[int, str]) -> None:
        """Take the connections of `others`, hosts by rank, and of nobody else."""

        def accept() -> None:
            with server, suppress(OSError):
                server.settimeout(_CONNECT_SECONDS)
                while others:
                    connection, _ = server.accept()
                    connection.settimeout(_CONNECT_SECONDS)
                    said = connection.recv(len(token) + 4, socket.MSG_WAITALL)
                    rank = int.from_bytes(said[len(token) :], "big")
                    if secrets.compare_digest(said[: len(token)], token) and rank in others:
                        self._keep(connection, rank, others.pop(rank))
                    else:
                        connection.close()

        threading.Thread(target=accept, daemon=True).start()

    def _keep(self, connection: socket.socket, rank: int, host: str) -> None:
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
        threading.Thread(target=self._wait, args=(connection, rank, host), daemon=True).start()

    def _wait(self, connection: socket.socket, rank: int, host: str) -> None:
        """Wait for the end of `connection`, and end this process if it is not that of the run."""
        try:
            if connection.recv(1) == _LEAVES or self._leaves.is_set():
                return
            what = "has ended without a word"
            hint = "See what it has said there; if nothing, 'dmesg' there names what the kernel has ended"
        except OSError as error:
            what = f"does not answer any more ({error.strerror})"
            hint = "See whether it runs, and its network; then go on with training.resume_from_checkpoint"
        if self._leaves.wait(_GRACE_SECONDS):
            return
        console.print_error(RankError(what, where=f"rank {rank} on {host}", hint=hint))
        sys.stderr.flush()
        os._exit(RankError.exit_code)


def _server() -> socket.socket:
    """Listens on a free port of all addresses."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))
