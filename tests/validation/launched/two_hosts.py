"""Two hosts on one machine: each with its own name, address, processes, /dev/shm and ssh daemon.

They are Linux namespaces and see the same files, as hosts with a network file system do. The cable between
them is this process, which hands on, delays or loses what one's network device (a TUN) gives for the other.
Where the machine does not allow that, :func:`missing` says what it lacks.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_NEEDED = {"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client", "pdsh": "pdsh"}
"""Programs, and Debian's packages that have them."""
_NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc")
_DEVICE = "cable"
"""The name of the network device on each host."""
_TUN = Path("/dev/net/tun")
_SET_DEVICE = 0x400454CA
"""TUNSETIFF of linux/if_tun.h."""
_IP_PACKETS_ALONE = 0x0001 | 0x1000
"""IFF_TUN | IFF_NO_PI."""


def missing() -> str | None:
    """Why two hosts cannot be made here, or None."""
    lacking = sorted({package for program, package in _NEEDED.items() if _found(program) is None})
    if lacking:
        return f"two hosts need {', '.join(lacking)}"
    if not _TUN.exists():
        return f"no {_TUN}"
    done = subprocess.run(["unshare", *_NAMESPACES, "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else None


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Host:
    """One of them.

    Args:
        name: of the host.
        address: IPv4 of its end of the cable.
        init: its first process; all others end with it.
    """

    def __init__(self, name: str, address: str, init: subprocess.Popen[str]) -> None:
        self.name, self.address = name, address
        self._init = init
        children = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text(encoding="ascii").split()
        self.pid = int(children[0])
        """Of its first process, as this machine numbers them."""

    def words(self, *command: str | Path, folder: Path) -> list[str]:
        """The command line that runs `command` on this host, in `folder`."""
        inside = ["nsenter", "-t", str(self.pid), "-n", "-p", "-m", "-u", "-i", f"--wd={folder}", "--"]
        return [*inside, *map(str, command)]

    def run(self, *command: str | Path) -> None:
        """Run something short, which must not fail."""
        subprocess.run(self.words(*command, folder=Path("/")), check=True, capture_output=True)

    def processes(self) -> list[str]:
        """Command lines of all that runs here but the first process and the ssh daemon."""
        done = subprocess.run(
            self.words("ps", "-eo", "pid,args", "--no-headers", folder=Path("/")),
            check=True,
            capture_output=True,
            text=True,
        )
        lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
        return [words for pid, words in lines if pid != "1" and not words.startswith(("sshd", "ps -eo"))]

    @property
    def runs(self) -> bool:
        """Whether it has not disappeared."""
        return self._init.poll() is None

    def disappear(self) -> None:
        """End all processes at once, as power that fails does."""
        os.kill(self.pid, signal.SIGKILL)
        self._init.wait()


class Cable:
    """Hands on what either host sends to the other.

    Args:
        hosts: both.
    """

    def __init__(self, hosts: tuple[Host, Host]) -> None:
        self.is_pulled = False
        """Nothing arrives any more, and nobody is told."""
        self.delay_seconds = 0.0
        self.lost_share = 0.0
        self._ends = [_device(host) for host in hosts]
        self._close, self._closes = os.pipe()
        self._thread = threading.Thread(target=self._hand_on, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand on no more."""
        os.write(self._closes, b".")
        self._thread.join()
        for end in (*self._ends, self._close, self._closes):
            os.close(end)

    def _hand_on(self) -> None:
        other = dict(zip(self._ends, reversed(self._ends), strict=True))
        chance = random.Random(0)
        waiting: list[tuple[float, int, bytes]] = []
        while True:
            wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            readable, _, _ = select.select([*self._ends, self._close], [], [], wait)
            if self._close in readable:
                return
            for end in readable:
                packet = os.read(end, 65536)
                if not self.is_pulled and chance.random() >= self.lost_share:
                    heapq.heappush(waiting, (time.monotonic() + self.delay_seconds, other[end], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, end, packet = heapq.heappop(waiting)
                with suppress(OSError):  # of a host that has disappeared
                    os.write(end, packet)


def _device(host: Host) -> int:
    """A network device on `host`, whose packets this process reads and writes."""
    made: list[int] = []

    def make() -> None:  # in a thread of its own, which stays in the host's network
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{host.pid}/ns/net").open("rb") as network:
            if libc.setns(network.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")
        device = os.open(_TUN, os.O_RDWR)
        fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH22x", _DEVICE.encode(), _IP_PACKETS_ALONE))
        made.append(device)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    host.run("ip", "addr", "add", f"{host.address}/24", "dev", _DEVICE)
    host.run("ip", "link", "set", _DEVICE, "up")
    return made[0]


class Hosts:
    """Both.

    Args:
        first, second: the first one starts runs.
        cable: between them.
        folder: has the hostfile.
    """

    def __init__(self, first: Host, second: Host, cable: Cable, folder: Path) -> None:
        self.first, self.second, self.cable = first, second, cable
        self.hostfile = folder / "hostfile"
        self.hostfile.write_text(f"{first.name} slots=1\n{second.name} slots=1\n", encoding="utf-8")


@contextmanager
def two_hosts(folder: Path, environment: Mapping[str, str]) -> Iterator[Hosts]:
    """Start two hosts, and end whatever runs on them afterwards.

    Args:
        folder: an empty one for their keys and settings.
        environment: variables that ssh sessions have, besides those that sshd sets.
    """
    settings = _settings(folder, environment)
    addresses = {"alpha": "10.77.0.1", "beta": "10.77.0.2"}
    with ExitStack() as running:
        hosts = [running.enter_context(_host(*host, settings)) for host in addresses.items()]
        for host in hosts:
            host.run("ip", "link", "set", "lo", "up")
        cable = Cable((hosts[0], hosts[1]))
        running.callback(cable.close)
        for host in hosts:
            host.run(str(_found("sshd")), "-f", settings / "sshd_config")
        yield Hosts(hosts[0], hosts[1], cable, folder)


@contextmanager
def _host(name: str, address: str, settings: Path) -> Iterator[Host]:
    # What a host sees of its own is mounted before it says that it is ready.
    mounts = [f"mount --bind {settings / file} /etc/{file}" for file in ("hosts", "ssh/ssh_config")]
    begin = [f"hostname {name}", *mounts, "mount -t tmpfs -o size=2g tmpfs /dev/shm", "mkdir -p /run/sshd"]
    script = " && ".join([*begin, "echo ready", "exec sleep infinity"])
    init = subprocess.Popen(
        ["unshare", *_NAMESPACES, "--fork", "--mount-proc", "--kill-child", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert init.stdout is not None
        said = init.stdout.readline()
        assert said == "ready\n", said + init.stdout.read()
        yield Host(name, address, init)
    finally:
        init.kill()
        init.wait()


def _settings(folder: Path, environment: Mapping[str, str]) -> Path:
    """Keys, and the files of /etc that both hosts have."""
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    set_environment = " ".join(f'"{name}={value}"' for name, value in environment.items())
    _write(
        folder / "sshd_config",
        f"HostKey {key}",
        f"AuthorizedKeysFile {key}.pub",
        "StrictModes no",
        "PermitRootLogin yes",
        "PidFile none",
        f"SetEnv {set_environment}",
    )
    (folder / "ssh").mkdir()
    _write(
        folder / "ssh" / "ssh_config",
        f"IdentityFile {key}",
        "StrictHostKeyChecking no",
        "UserKnownHostsFile /dev/null",
        "LogLevel ERROR",
    )
    _write(folder / "hosts", "127.0.0.1 localhost", "10.77.0.1 alpha", "10.77.0.2 beta")
    return folder


def _write(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
