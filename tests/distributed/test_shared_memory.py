"""The shared memory of CPU ranks: looked at before, and not left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from zerokit.distributed.ranks import Ranks
from zerokit.distributed.shared_memory import check_shared_memory, release_shared_memory
from zerokit.errors import LaunchError

ADDRESS = f"zerokit-test-{os.getpid()}"


@pytest.fixture
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """Files as DeepSpeed names them: of this run's two ranks, and of a run beside it."""
    monkeypatch.setenv("MASTER_ADDR", ADDRESS)
    monkeypatch.setenv("MASTER_PORT", "29501")
    prefix = f"deepspeed_allreduce_buffer_{os.getuid()}_{ADDRESS}"
    names = {"0": "29501_0", "1": "29501_1", "10": "29501_10", "other": "29502_0"}
    files = {key: Path("/dev/shm", f"{prefix}_{name}") for key, name in names.items()}
    for file in files.values():
        file.write_bytes(b"x")
    yield files
    for file in files.values():
        file.unlink(missing_ok=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_removes_exactly_its_own_shared_memory(rank: int, shared_memory: dict[str, Path]) -> None:
    for _ in range(2):
        release_shared_memory(Ranks(rank, 2, rank, 2))
        assert {key for key, file in shared_memory.items() if not file.exists()} == {str(rank)}


def test_a_rank_that_ends_early_removes_that_of_its_run(shared_memory: dict[str, Path]) -> None:
    release_shared_memory(Ranks(0, 2, 0, 2), of_all=True)
    assert {key for key, file in shared_memory.items() if not file.exists()} == {"0", "1"}


@pytest.mark.parametrize(("free_mib", "ranks"), [(64, 1), (131, 2), (263, 4), (0, 1)])
def test_too_little_is_said_before_deepspeed_dies_of_it(
    free_mib: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def space(free: int) -> None:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1 << 20))

    space(free_mib)
    with pytest.raises(LaunchError, match=rf"^/dev/shm: has .* free, and {ranks} CPU ranks? .*--shm-size=1g"):
        check_shared_memory(Ranks(0, ranks, 0, ranks))
    space(66 * ranks)
    check_shared_memory(Ranks(0, ranks, 0, ranks))


@pytest.mark.torch
def test_name_and_size_are_those_that_deepspeed_gives() -> None:
    import deepspeed

    source = Path(deepspeed.__file__).parent / "ops" / "csrc" / "cpu" / "comm" / "shm.cpp"
    text = source.read_text()
    assert '#define SHM_BUFFER_NAME "deepspeed_allreduce_buffer"' in text
    assert '"%s_%d_%s_%s", SHM_BUFFER_NAME, getuid(), addr_string, port_string' in " ".join(text.split())
    assert "#define MAX_BUF_SIZE 1048576 * 32" in text
    assert "#define NAIVE_ALLREDUCE_THRESHOLD 1048576\n" in text
    assert "char buffer[2 * NAIVE_ALLREDUCE_THRESHOLD + 2 * MAX_BUF_SIZE];" in text
