"""Which cores a rank gets."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import processes
from zerokit.distributed import cores
from zerokit.distributed.cores import bind_to_cores, share
from zerokit.distributed.ranks import Ranks
from zerokit.processors import cpu_limit, num_threads, physical_cores

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="other systems bind no process")]


def machine(folder: Path, *, sockets: int, cores: int) -> None:
    """Two threads a core, the second ones numbered after all first ones."""
    for cpu in range(2 * sockets * cores):
        place = folder / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        socket, core = divmod(cpu % (sockets * cores), cores)
        (place / "physical_package_id").write_text(f"{socket}\n")
        (place / "core_id").write_text(f"{core}\n")


def test_ranks_share_no_core_and_no_socket_that_they_need_not(tmp_path: Path) -> None:
    machine(tmp_path, sockets=2, cores=6)
    found = physical_cores(range(24), tmp_path)
    assert found[0] == [0, 12]
    assert len(found) == 12
    for ranks in (1, 2, 3, 4, 5, 12):
        shares = [share(found, rank, ranks) for rank in range(ranks)]
        assert sorted(cpu for one in shares for core in one for cpu in core) == list(range(24))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for rank in range(4):
        sockets = {core[0] // 6 for core in share(found, rank, 4)}
        assert sockets == {rank // 2}
    assert physical_cores([3, 5], tmp_path / "none") == [[3], [5]]


def bound(
    monkeypatch: pytest.MonkeyPatch, masks: list[set[int]], rank: int, hosts: str = ""
) -> tuple[int | None, set[int]]:
    """What a rank is given that sees the cores of its mask, on the host of its letter."""
    hosts = hosts or "a" * len(masks)
    local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    asked: list[Any] = []

    def gather(own: Any) -> list[Any]:
        asked.append(own)
        return [(host, sorted(mask)) for host, mask in zip(hosts, masks, strict=True)]

    monkeypatch.setattr(socket, "gethostname", lambda: hosts[rank])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # a person's, to torchrun, too
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail(f"{count} threads"))
    given: set[int] = set(masks[rank])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: masks[rank])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: (given.clear(), given.update(cpus)))
    monkeypatch.setattr("zerokit.distributed.cores.physical_cores", lambda cpus: [[cpu] for cpu in cpus])
    group: Any = SimpleNamespace(ranks=Ranks(rank, len(masks), local.index(rank), len(local)), gather_objects=gather)
    found = bind_to_cores(group)
    assert asked == [(hosts[rank], sorted(masks[rank]))], "all ranks ask each other, or all wait"
    return found, given


def test_ranks_that_see_the_same_cores_are_bound_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {4, 5, 6, 7}
    assert bound(monkeypatch, [same, same], 0) == (2, {4, 5})
    assert bound(monkeypatch, [same, same], 1) == (2, {6, 7})
    assert bound(monkeypatch, [{0, 1}, {2, 3}], 1) == (None, {2, 3}), "their launcher has bound them"
    assert bound(monkeypatch, [{0}, {0}], 1) == (None, {0}), "more ranks than cores"
    assert bound(monkeypatch, [same], 0) == (None, same)
    three = [same] * 3
    for hosts in ("abb", "bab"):  # nodes with different numbers of ranks, in any order
        assert bound(monkeypatch, three, hosts.index("a"), hosts) == (None, same)
        assert bound(monkeypatch, three, hosts.index("b"), hosts) == (2, {4, 5})
        assert bound(monkeypatch, three, 2, hosts) == (2, {6, 7})


SHARES = """
import os
from zerokit.distributed.cores import share_threads
from zerokit.distributed.ranks import Ranks
share_threads(Ranks(1, 2, 1, 2))
import torch
print(os.environ["OMP_NUM_THREADS"], torch.get_num_threads())
"""
_SET_BY_OTHERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHELASTIC_RUN_ID")


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, None),  # which torchrun has set
        ({"OMP_NUM_THREADS": "3", "TORCHELASTIC_RUN_ID": "none"}, 3),
    ],
)
def test_a_rank_has_its_share_of_threads_unless_a_person_says_otherwise(
    variables: dict[str, str], threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _SET_BY_OTHERS:
        monkeypatch.setenv(name, variables.get(name, ""))
        if name not in variables:
            monkeypatch.delenv(name)
    taken: list[int] = []
    monkeypatch.setattr(cores, "_set_here", None)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    cores.share_threads(Ranks(1, 2, 1, 2))
    assert os.environ["OMP_NUM_THREADS"] == str(threads or num_threads(2))
    assert taken == ([] if threads else [num_threads(2)])


def test_the_share_of_a_rank_that_is_bound_is_not_divided_again() -> None:
    """As DeepSpeed's launcher binds with --bind_cores_to_rank, and taskset does."""
    own = {name: value for name, value in os.environ.items() if name not in _SET_BY_OTHERS}
    cpus = sorted(os.sched_getaffinity(0))[:1]
    bind = f"import os\nos.sched_setaffinity(0, {cpus})\n"
    assert processes.checked([sys.executable, "-c", bind + SHARES], env=own) == "1 1\n"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000",
            },
            4.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n2:memory:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
    ],
)
def test_control_groups_limit_the_processor(files: dict[str, str], limit: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_limit(tmp_path) == limit


def test_threads_are_shared_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr("zerokit.processors.physical_cores", lambda cpus: [[cpu] for cpu in cpus])
    for limit, processes_, threads in ((None, 8, 8), (None, 100, 1), (12.5, 1, 12), (12.5, 4, 3), (0.5, 1, 1)):
        monkeypatch.setattr("zerokit.processors.cpu_limit", lambda limit=limit: limit)
        assert num_threads(processes_) == threads
