"""A process that frees and allocates memory again and again."""

from __future__ import annotations

import os
import platform
import sys

import pytest

from tests.processes import run

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries cannot be told")

AGAIN = """
import ctypes, resource, sys
from zerokit.distributed.heap import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
ROUNDS, BLOCKS, SIZE = 5, 4, 8 * 2**20
for round in range(ROUNDS + 1):
    if round == 1:
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(SIZE) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(block)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun) // ROUNDS)
"""
SETTINGS = ("MALLOC_", "GLIBC_")


def faults(way: str, **settings: str) -> int:
    """Pages that each round is given anew."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return int(run([sys.executable, "-c", AGAIN, way], env=env | settings).stdout)


def test_what_is_freed_is_there_for_what_is_allocated_next() -> None:
    by_itself = faults("as it is")
    assert faults("kept") < by_itself / 10
    assert faults("kept", GLIBC_TUNABLES="glibc.rtld.nns=4") < by_itself / 10  # no word on the allocator


def test_settings_of_the_user_stay_as_they_are() -> None:
    for name, value in (
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("MALLOC_TOP_PAD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"),
    ):
        by_user = faults("as it is", **{name: value})
        assert by_user > 1000
        assert faults("kept", **{name: value}) > by_user / 2
