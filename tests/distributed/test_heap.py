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
print(keep_freed_memory() if sys.argv[1] == "kept" else None)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
ROUNDS, BLOCKS, SIZE = 20, 16, 8 * 2**20
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


def again(way: str, **settings: str) -> tuple[str, int]:
    """Whether memory is kept, and page faults of each round."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = run([sys.executable, "-c", AGAIN, way], env=env | settings)
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_what_is_freed_is_there_for_what_is_allocated_next() -> None:
    _, by_itself = again("as it is")
    kept, faults = again("kept")
    assert kept == "True"
    assert faults < by_itself / 10


def test_settings_of_the_user_stay_as_they_are() -> None:
    assert again("kept", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
    assert again("kept", GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")[0] == "False"
