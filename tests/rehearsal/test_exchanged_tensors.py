"""What ranks' integers come to, by the operations as torch hands them to a process group."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests import processes
from zerokit.rehearsal.native import backend
from zerokit.rehearsal.stand_ins import collective_results
from zerokit.rehearsal.stand_ins.collective_results import LastingWork, Received, operation_of
from zerokit.rehearsal.stand_ins.virtual_process_group import VirtualProcessGroup
from zerokit.rehearsal.watching.steps import Traffic
from zerokit.rehearsal.worker.virtual_rank import train_together


@pytest.mark.parametrize("ends", [LastingWork.let_go, Received.wait])
def test_work_of_python_lasts_until_it_is_waited_for(
    ends: Callable[[Received], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_results, "_FORGETS", True)
    alive = weakref.ref(Received(lambda: None, 0))
    work = alive()
    assert work is not None
    ends(work)
    del work
    assert alive() is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SUM", [16, -17]),
        ("AVG", [3, -3]),
        ("PRODUCT", [200, -49]),
        ("MIN", [2, -7]),
        ("MAX", [5, -1]),
        ("BAND", [0, -7]),
        ("BOR", [7, -1]),
        ("BXOR", [2, -1]),
    ],
)
def test_integers_come_to_what_the_operation_says(
    name: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective_results, "uncounted", nullcontext)
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, name)
    own, other = torch.tensor([5, -7]), torch.tensor([2, -1])
    held = [one.numpy().tobytes() for one in (own, own, other, other, other)]
    result = collective_results.reduce_values(own, held, operation_of(options))
    assert result.tolist() == expected


def test_whether_integers_are_shared_does_not_depend_on_how_many_a_rank_has() -> None:
    for elements in (1, 2**22):
        held = torch.empty(elements, dtype=torch.int64, device="meta")
        assert collective_results.is_exchanged(held, from_one=False)


def test_the_library_computes_what_ranks_tell_each_other() -> None:
    header = Path(backend.__file__).with_name("blocks.h").read_text()
    sizes = dict(re.findall(r"constexpr int64_t (k\w+) = ([0-9* ]+);", header))
    small, computed = (eval(sizes[name]) for name in ("kSmallBytes", "kComputedBytes"))
    assert small == backend.SMALL_BYTES
    assert computed >= collective_results._MAX_EXCHANGED_BYTES


def test_the_groups_of_a_device_mesh_are_told_of() -> None:
    program = """
import json
from unittest import mock
import numpy
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from zerokit.rehearsal.stand_ins.torch_distributed import install_groups
from zerokit.rehearsal.stand_ins.virtual_process_group import VirtualProcessGroup
told = set()
install_groups(
    lambda _store, rank, size, _timeout: VirtualProcessGroup(
        rank, size, mock.Mock(), mock.Mock(is_active=False), mock.Mock()
    ),
    dist.HashStore,
    rank=0,
    world_size=4,
    note=lambda ranks, _group, what: told.add((what, ranks)),
)
dist.distributed_c10d._store_based_barrier = lambda *_: None
init_device_mesh("cpu", (2, 2), mesh_dim_names=("data_parallel", "tensor_parallel"))
assert {("mesh_tensor_parallel", (0, 1)), ("mesh_tensor_parallel", (2, 3))} <= told, told
dist.new_group(list(numpy.array([[0, 1], [2, 3]])[:, 0]), group_desc="cut out of an array")
json.dumps([ranks for what, ranks in told if what == "cut out of an array"])
divided = dist.split_group(split_ranks=[[0, 2], [1, 3]], group_desc="divided")
assert dist.get_process_group_ranks(divided) == [0, 2]
assert {("divided", (0, 2)), ("divided", (1, 3))} <= told, told
group = dist.new_group(backend="gloo")  # as Lightning's Fabric has it
group._exchange = mock.Mock()
group.monitored_barrier()
group._exchange.record_call.assert_called_once_with((0, 1, 2, 3), "barrier", number=0, is_async=False)
dist.destroy_process_group(group)
"""
    processes.checked([sys.executable, "-c", program])


def test_a_mesh_that_is_the_group_of_all_ranks_says_what_it_is_for(tmp_path: Path) -> None:
    program = """
import json, sys
from pathlib import Path
from unittest import mock
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.ranks.journal import Journal
from zerokit.rehearsal.stand_ins.torch_distributed import install
folder = Path(sys.argv[1])
exchange = Exchange(folder, 0, 4)
install(mock.Mock(rank=mock.Mock(exchange=exchange, rank=0, num_gpus=4, time=None)))
mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("data_parallel", "tensor_parallel"))
mesh["tensor_parallel"]
DeviceMesh(device_type="cpu", mesh=mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)  # by names, as torch 2.7's
exchange.publish_groups()
journal = Journal(folder, 0)
journal.read_on()
told = json.loads(journal.payload(journal.of_kind["groups"][-1]))
assert [(kind, ranks) for _, kind, ranks in told if len(ranks) > 1] == [("tensor", [0, 1, 2, 3])], told
"""
    processes.checked([sys.executable, "-c", program, str(tmp_path)])


def alone(rank: int, size: int, traffic: Any) -> VirtualProcessGroup:
    """A group whose other ranks are not rehearsed."""
    group = VirtualProcessGroup(rank, size, traffic, mock.Mock(is_active=False), mock.Mock())
    group._ranks = tuple(range(size))
    return group


@pytest.mark.parametrize(
    ("shape", "together"), [((), False), ((2,), False), ((1, 3), False), ((20, 5), True), ((4, 1024), True)]
)
def test_layers_that_add_up_activations_are_told_from_figures_to_print(shape: tuple[int, ...], together: bool) -> None:
    traffic = Traffic(mock.Mock(phase="between", event_count=lambda: 0))
    alone(0, 8, traffic)._note("all_reduce", [torch.empty(shape)])
    assert train_together(traffic.calls) == together


def test_a_group_serves_the_gpu_and_the_host() -> None:
    """As torch's checkpoints ask, before they hand a state dict to the other ranks."""
    group = alone(1, 4, mock.Mock())
    assert {device.type for device in group._device_types} == {"cuda", "cpu"}
    backends = [group._get_backend(device) for device in group._device_types]
    assert all(one is group and not one.supports_splitting for one in backends)  # torch 2.5's new_group asks


def test_a_message_from_any_rank_says_from_which_also_where_none_is_rehearsed() -> None:
    """As `torch.distributed.recv` asks for it."""
    group = alone(1, 4, Traffic(mock.Mock(phase="between", event_count=lambda: 0)))
    work = group.recv_anysource([torch.empty(3)])
    assert work.wait()
    assert work._source_rank() == 0
