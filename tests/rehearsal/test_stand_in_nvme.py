"""Stand-ins for DeepNVMe: files, the ledger, and page-locked memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.rehearsal import real_ops
from zerokit.rehearsal.stand_ins import async_io
from zerokit.rehearsal.stand_ins.async_io import PageLockedMemory
from zerokit.rehearsal.stand_ins.nvme_ledger import nvme_ledger


def _modules() -> dict[str, ModuleType]:
    return async_io.modules(real_ops.host_memory)


class Locked:
    """Modules whose page-locked allocator counts the bytes that it has handed out and that still live."""

    def __init__(self) -> None:
        self._alive: dict[int, int] = {}
        self.modules = async_io.modules(self._allocate)

    def _allocate(self, num_bytes: int) -> Tensor:
        tensor = real_ops.host_memory(num_bytes)
        storage = tensor.untyped_storage()
        self._alive[id(storage)] = num_bytes
        weakref.finalize(storage, self._alive.pop, id(storage))
        return tensor

    @property
    def bytes(self) -> int:
        return sum(self._alive.values())


@pytest.fixture
def locked() -> Iterator[Locked]:
    yield Locked()
    nvme_ledger().clear()


def test_values_go_to_the_file_and_come_back(tmp_path: Path) -> None:
    modules = _modules()
    real_ops.give_values(modules)
    handle = modules["async_io"].aio_handle(intra_op_parallelism=2)
    file = str(tmp_path / "state.swp")
    sent = torch.arange(1024, dtype=torch.float32).to(torch.bfloat16)
    assert handle.async_pwrite(sent, file, 4096) == 0
    assert handle.async_pwrite(sent * 2, file, 0) == 0
    assert handle.wait() == 2
    assert Path(file).stat().st_size == 4096 + 2048
    pinned = handle.new_cpu_locked_tensor(1024, sent)
    assert handle.sync_pread(pinned, file, 4096) == 1
    assert torch.equal(pinned, sent)
    through_bounce_buffer = torch.zeros(32, 32, dtype=torch.bfloat16)
    assert handle.async_pread(through_bounce_buffer, file) == 0
    assert handle.wait() == 1
    assert torch.equal(through_bounce_buffer.view(-1), sent * 2)


def test_without_values_the_ledger_stands_for_the_disk(tmp_path: Path) -> None:
    handle = _modules()["async_io"].aio_handle()
    file, buffer = str(tmp_path / "state.swp"), torch.ones(256)
    for _ in range(3):
        assert handle.sync_pwrite(buffer, file) == 1
    assert handle.sync_pread(buffer, file, 0) == 1
    assert torch.equal(buffer, torch.ones(256))
    assert not Path(file).exists()
    ledger = nvme_ledger()
    assert (ledger.file_bytes, ledger.written_bytes, ledger.read_bytes) == ({file: 1024}, 3072, 1024)
    assert ledger.total_bytes == 1024


def test_transfers_fail_as_the_compiled_ones_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = _modules()["async_io"].aio_handle(intra_op_parallelism=4)
    buffer = torch.zeros(256, dtype=torch.uint8)
    assert handle.async_pwrite(buffer, str(tmp_path / "missing" / "file")) == -1
    assert handle.async_pread(buffer, str(tmp_path / "nothing")) == -1
    assert handle.async_pwrite(buffer[:255], str(tmp_path / "file")) == -1
    errors = capsys.readouterr().err.splitlines()
    for line, reason in zip(errors, ("folder", "no such file", "intra_op_parallelism = 4"), strict=True):
        assert reason in line
    assert handle.sync_pwrite(buffer, str(tmp_path / "file")) == 1
    with pytest.raises(RuntimeError, match="of a file of 256 bytes"):
        handle.async_pread(buffer, str(tmp_path / "file"), 4)
    assert handle.wait() == 0
    nvme_ledger().make_folder(str(tmp_path / "missing"))
    assert handle.sync_pwrite(buffer, str(tmp_path / "missing" / "file")) == 1


def test_unpinned_memory_is_bounced_until_it_is_waited_for(locked: Locked, tmp_path: Path) -> None:
    handle = locked.modules["async_io"].aio_handle()
    pinned = handle.new_cpu_locked_tensor(256, torch.empty(0))
    assert locked.bytes == 1024
    handle.async_pwrite(pinned[64:], str(tmp_path / "pinned"))
    assert locked.bytes == 1024
    handle.async_pwrite(torch.zeros(512), str(tmp_path / "pageable"))
    assert locked.bytes == 1024 + 2048
    assert handle.wait() == 2
    assert locked.bytes == 1024
    assert handle.free_cpu_locked_tensor(pinned)
    del pinned
    assert locked.bytes == 0


def test_locked_memory_outlives_its_tensor_and_is_shared_by_the_ops(locked: Locked) -> None:
    pins, handle = locked.modules["pin_memory"].pin_handle(), locked.modules["async_io"].aio_handle()
    tensor = pins.new_cpu_locked_tensor(100, torch.empty(0, dtype=torch.int16))
    address = tensor.data_ptr()
    assert handle.is_pinned(tensor[10:])
    assert not handle.is_pinned(torch.zeros(100))
    del tensor
    assert locked.bytes == 200
    assert pins.free_cpu_locked_tensor_by_ptr(address)
    assert locked.bytes == 0
    assert not pins.free_cpu_locked_tensor_by_ptr(address)


def test_a_tensor_that_reaches_past_locked_memory_is_not_pinned() -> None:
    memory = PageLockedMemory(real_ops.host_memory)
    tensor = memory.new(16, torch.float32)
    neighbour = torch.empty(0).set_(tensor.untyped_storage(), 0, (16,), (1,))
    assert memory.owns(neighbour[3:9])
    assert not memory.owns(torch.empty(16))
