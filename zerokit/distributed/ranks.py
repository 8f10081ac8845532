"""The place of this process among the ranks of a run, from the launcher's environment. Imports no torch.

Supports ``deepspeed``, ``torchrun``, ``accelerate launch`` and plain ``python``.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import LaunchError

STUCK_AFTER = 100.0
"""Seconds after which a rank that is stuck is ended."""


@dataclass(frozen=True)
class Ranks:
    """This process's place: global rank of `world_size`, local rank of `local_world_size` on its node."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that prints and writes results."""
        return self.rank == 0

    @property
    def is_node_main(self) -> bool:
        """Whether this is the one process that prepares shared files on its node."""
        return self.local_rank == 0


def read_ranks(environment: MutableMapping[str, str] | None = None) -> Ranks:
    """Read the launcher's variables. For plain ``python``, set those of a world of one, so DeepSpeed needs no
    MPI.

    Raises:
        LaunchError: a variable is not a number, or some are set and others missing.
    """
    env = os.environ if environment is None else environment
    if "RANK" not in env and "WORLD_SIZE" not in env:
        _refuse_bare_starters(env)
        env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        env.setdefault("MASTER_ADDR", "127.0.0.1")
        env.setdefault("MASTER_PORT", str(free_port()))
        return Ranks()
    rank = _number(env, "RANK")
    world_size = _number(env, "WORLD_SIZE")
    local_rank = _number(env, "LOCAL_RANK", default=0 if world_size == 1 else None)
    # DeepSpeed's launcher says LOCAL_SIZE where torchrun and accelerate say LOCAL_WORLD_SIZE.
    local_size = _number(env, "LOCAL_SIZE", default=world_size)
    local_world_size = _number(env, "LOCAL_WORLD_SIZE", default=local_size)
    return Ranks(rank, world_size, local_rank, local_world_size)


def _refuse_bare_starters(env: MutableMapping[str, str]) -> None:
    """Refuse processes of srun and mpirun without torch's variables: each would run alone."""
    names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"]
    if "SLURM_STEP_ID" in env:
        names.append("SLURM_NTASKS")
    for name in names:
        if _number(env, name, default=1) > 1:
            raise LaunchError(
                f"{env[name]} processes were started without RANK and WORLD_SIZE",
                where=name,
                hint="Start one process per node, with 'torchrun' or 'deepspeed' in it",
            )


def _number(env: MutableMapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None:
        if default is None:
            raise LaunchError(
                "the launcher set only some of RANK, WORLD_SIZE and LOCAL_RANK",
                where=name,
                hint="Start with 'deepspeed', 'torchrun' or 'accelerate launch'",
            )
        return default
    try:
        return int(text)
    except ValueError:
        raise LaunchError(f"'{text}' is not a number", where=name, hint="Unset it") from None


def free_port(wanted: int = 0) -> int:
    """A TCP port of this machine that was free a moment ago.

    Args:
        wanted: this port, or LaunchError if it is taken. 0: a port that the system does not assign by itself,
            because the ranks use it only seconds later.
    """
    if wanted:
        if not _bound(wanted):
            raise port_taken(wanted)
        return wanted
    # Drawn, not counted from the first: a run that starts beside this one must come upon another. And not by
    # `random` itself, which a script may have seeded.
    handed_out = _handed_out()
    candidates = [port for port in _PORTS if port not in handed_out]
    tries = secrets.SystemRandom().sample(candidates, k=min(_PORT_TRIES, len(candidates)))
    port = next(filter(_bound, tries), 0) or _bound(0)
    if not port:
        raise LaunchError("no port is free", where="--master_port", hint="'ss -ltnp' says who has them")
    return port


_PORTS = range(10_000, 29_500)
"""Range to draw from: below the launchers' default, 29500, and Kubernetes' range for services, from 30000."""

_PORT_TRIES = 100


def _handed_out() -> range:
    """The ports that this system assigns to connections and on request."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except OSError:
        return range(49_152, 65_536)  # RFC 6335, 6, which systems other than Linux keep to
    return range(int(first), int(last) + 1)


def _bound(port: int) -> int:
    """Bind `port` (0: any). Returns the port, or 0 if it is in use."""
    with socket.socket() as probe:
        # A port whose last run has just ended is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))  # as the store of rank 0 does: all addresses
        except OSError:
            return 0
        return int(probe.getsockname()[1])


def port_taken(port: int | str) -> LaunchError:
    """The error if the ranks cannot meet at `port`."""
    return LaunchError(
        f"another process has port {port}",
        where="--master_port",
        hint="Give the launcher a free one with --master_port, such as 29511 "
        "('zerokit train --num-gpus N' finds one by itself)",
    )
