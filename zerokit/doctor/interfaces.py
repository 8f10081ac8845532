"""Network interfaces of a machine. Its source also runs by itself on other machines."""

import fcntl
import os
import socket
import struct

_ADDRESS_OF = 0x8915
"""SIOCGIFADDR of linux/sockios.h."""
_ADDRESS_AT = 20
"""Offset of the IPv4 address in the answer."""


def interface_of(address: str) -> str | None:
    """The interface with an IPv4 address; None: there is none."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                found = fcntl.ioctl(asked.fileno(), _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
        if socket.inet_ntoa(found[_ADDRESS_AT : _ADDRESS_AT + 4]) == address:
            return name
    return None


def asked_by() -> str | None:
    """The interface of the current ssh connection."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return interface_of(words[2]) if len(words) == 4 else None


def reaching(host: str) -> str | None:
    """The interface that reaches another machine; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((host, 9))
        except OSError:
            return None
        return interface_of(asked.getsockname()[0])


def leads_to() -> list[str]:
    """Addresses of this machine's own name."""
    try:
        return sorted({str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)})
    except OSError:
        return []


def is_itself(address: str) -> bool:
    """Whether an address reaches only the machine itself."""
    return address.startswith("127.") or address == "::1"
