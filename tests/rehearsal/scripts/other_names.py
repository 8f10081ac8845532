"""Changes each of some files by another name than its own, and prints what it sees then.

Usage: other_names.py FOLDER TEMPORARY, run in FOLDER, which has a file with the name of each way.
"""

import ctypes
import errno
import mmap
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

FOLDER, TEMPORARY = map(Path, sys.argv[1:])
PID, TASK = os.getpid(), threading.get_native_id()
LIBC = ctypes.CDLL(None, use_errno=True)
EMPTY_PATH, FOLLOW, CURRENT = 0x1000, 0x400, -100
WAYS: dict[str, Callable[[Path], object]] = {}


def way(function: Callable[[Path], object]) -> Callable[[Path], object]:
    WAYS[function.__name__] = function
    return function


def write(path: str | Path) -> None:
    with Path(path).open("w") as opened:
        opened.write("changed")


def call(number: int | str, *words: object) -> None:
    """A call of the C library by its name, or of the kernel by its number."""
    function = (LIBC.syscall, number) if isinstance(number, int) else (getattr(LIBC, number),)
    if function[0](*function[1:], *words) == -1:
        raise OSError(ctypes.get_errno(), "")


def reading(path: Path, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags)


for _name, _before in {
    "root": "/proc/self/root",
    "root_of_pid": f"/proc/{PID}/root",
    "root_of_task": f"/proc/self/task/{TASK}/root",
    "root_of_thread": "/proc/thread-self/root",
    "root_of_root": "/proc/self/root/proc/self/root/./dev/fd/../root",
    "root_of_parent": f"/proc/{os.getppid()}/root",
    "up_from_proc": "/proc/..",
    "up_from_dev": "/dev/shm/../..",
    "up_from_sys": "/sys/kernel/../..",
}.items():
    WAYS[_name] = lambda path, before=_before: write(f"{before}{path}")

for _name, _before in {
    "cwd": "/proc/self/cwd",
    "cwd_of_pid": f"/proc/{PID}/cwd",
    "cwd_of_task": f"/proc/{PID}/task/{TASK}/cwd",
    "cwd_of_thread": "/proc/thread-self/cwd",
}.items():
    WAYS[_name] = lambda path, before=_before: write(f"{before}/{path.name}")

for _name, _before in {
    "reopened": "/proc/self/fd",
    "reopened_of_pid": f"/proc/{PID}/fd",
    "reopened_of_task": f"/proc/self/task/{TASK}/fd",
    "reopened_of_thread": "/proc/thread-self/fd",
    "reopened_of_dev": "/dev/fd",
}.items():
    WAYS[_name] = lambda path, before=_before: write(f"{before}/{reading(path)}")


@way
def reopened_path(path: Path) -> None:
    write(f"/proc/self/fd/{reading(path, os.O_PATH)}")


@way
def reopened_to_append(path: Path) -> None:
    opened = os.open(f"/dev/fd/{reading(path)}", os.O_WRONLY | os.O_APPEND)
    os.ftruncate(opened, 0)
    os.write(opened, b"changed")


@way
def reopened_and_mapped(path: Path) -> None:
    opened = os.open(f"/proc/self/fd/{reading(path)}", os.O_RDWR)
    with mmap.mmap(opened, 7) as mapped:
        mapped[:] = b"changed"


@way
def reopened_folder(path: Path) -> None:
    write(f"/proc/self/fd/{reading(path.parent)}/{path.name}")


@way
def cwd_of_child(path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        write(f"/proc/{child.pid}/cwd/{path.name}")
        assert child.stdin is not None
        child.stdin.close()


@way
def folder_descriptor(path: Path) -> None:
    folder = os.open("/proc/self/cwd", os.O_RDONLY)
    os.write(os.open(path.name, os.O_WRONLY | os.O_TRUNC, dir_fd=folder), b"changed")


@way
def removed(path: Path) -> None:
    Path(f"/proc/self/cwd/{path.name}").unlink()


@way
def renamed(path: Path) -> None:
    Path(f"/proc/self/root{path}").rename(TEMPORARY / path.name)


@way
def renamed_over(path: Path) -> None:
    write(TEMPORARY / "other")
    (TEMPORARY / "other").rename(f"/proc/self/cwd/{path.name}")


@way
def truncated(path: Path) -> None:
    os.truncate(f"/proc/self/fd/{reading(path)}", 3)


@way
def new_entries(path: Path) -> None:
    for name, make in {"mknod": os.mknod, "mkdir": os.mkdir}.items():
        make(f"/proc/self/cwd/{path.name}.{name}")
    Path(f"/proc/thread-self/root{path}.symlink").symlink_to("x")


@way
def attributes(path: Path) -> None:
    opened = reading(path)
    os.fchmod(opened, 0o600)
    Path(f"/proc/self/fd/{opened}").chmod(0o600)
    for name in (f"/proc/self/fd/{opened}", f"/proc/self/root{path}", opened):
        os.utime(name, (1, 1))
        os.chown(name, os.getuid(), os.getgid())
    for name in (f"/proc/self/fd/{opened}", opened):
        with suppress(OSError):  # not every file system has any
            os.setxattr(name, "user.x", b"changed")
    assert "user.x" not in os.listxattr(path)


@way
def attributes_without_a_path(path: Path) -> None:
    opened = reading(path)
    call("fchownat", opened, b"", os.getuid(), os.getgid(), EMPTY_PATH)
    call("utimensat", opened, b"", (ctypes.c_int64 * 4)(1, 0, 1, 0), EMPTY_PATH)
    os.chdir(FOLDER)
    call("utimensat", CURRENT, b"", (ctypes.c_int64 * 4)(1, 0, 1, 0), EMPTY_PATH)
    with suppress(OSError):  # an older kernel lacks it
        call(452, opened, b"", 0o600, EMPTY_PATH)  # fchmodat2


@way
def flags_of_inode(path: Path) -> None:
    ioctl(reading(path), 0x40086602, struct.pack("l", 0x40))  # FS_IOC_SETFLAGS, FS_NODUMP_FL


@way
def linked_into_temporary(path: Path) -> None:
    os.link(path, TEMPORARY / "hard")
    write(TEMPORARY / "hard")


@way
def linked_by_descriptor(path: Path) -> None:
    call("linkat", CURRENT, b"/proc/self/fd/%d" % reading(path), CURRENT, bytes(TEMPORARY / "hard_2"), FOLLOW)
    write(TEMPORARY / "hard_2")


@way
def linked_without_a_path(path: Path) -> None:
    call("linkat", reading(path), b"", CURRENT, bytes(TEMPORARY / "hard_3"), EMPTY_PATH)
    write(TEMPORARY / "hard_3")


@way
def linked_beside(path: Path) -> None:
    os.link(f"/proc/self/cwd/{path.name}", f"{path}.hard")
    write(f"/proc/self/cwd/{path.name}.hard")


@way
def linked_before(path: Path) -> None:
    """The test has made it."""
    write(TEMPORARY / path.name)
    os.truncate(TEMPORARY / path.name, 3)
    (TEMPORARY / path.name).chmod(0o600)


@way
def attributes_linked_before(path: Path) -> None:
    """The test has made it."""
    (TEMPORARY / path.name).chmod(0o600)
    os.utime(TEMPORARY / path.name, (1, 1))


@way
def link_in_temporary(path: Path) -> None:
    (TEMPORARY / "link").symlink_to(path)
    write(TEMPORARY / "link")


@way
def link_to_folder(path: Path) -> None:
    (TEMPORARY / "folder").symlink_to(path.parent)
    write(TEMPORARY / "folder" / path.name)


@way
def link_to_procfs(path: Path) -> None:
    (TEMPORARY / "descriptor").symlink_to(f"/proc/self/fd/{reading(path)}")
    write(TEMPORARY / "descriptor")


@way
def link_in_shared_memory(path: Path) -> None:
    link = Path("/dev/shm", f"zerokit-test-{PID}")
    link.symlink_to(path)
    try:
        write(link)
    finally:
        link.unlink()


@way
def without_a_name(path: Path) -> None:
    opened = os.open("/proc/self/cwd", os.O_TMPFILE | os.O_WRONLY)
    os.write(opened, b"changed")
    call("linkat", CURRENT, b"/proc/self/fd/%d" % opened, CURRENT, bytes(path) + b".new", FOLLOW)
    assert Path(f"{path}.new").read_text() == "changed"


@way
def call_of_openat2(path: Path) -> None:
    call(437, CURRENT, bytes(path), struct.pack("QQQ", os.O_WRONLY | os.O_TRUNC, 0, 0), 24)


@way
def call_by_x32(path: Path) -> None:
    call(0x40000000 + 2, bytes(path), os.O_WRONLY | os.O_TRUNC)


@way
def changed_root(path: Path) -> None:
    os.chroot(path.parent)
    write(f"/{path.name}")


@way
def mounted(path: Path) -> None:
    call("mount", bytes(path.parent), bytes(TEMPORARY), None, 0x1000, None)  # MS_BIND
    write(TEMPORARY / path.name)


if __name__ == "__main__":
    for name, change in WAYS.items():
        path = FOLDER / name
        try:
            change(path)
            print(name, path.read_text())
        except OSError as error:
            print(name, errno.errorcode[error.errno or 0])
