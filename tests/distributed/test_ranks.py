"""Who this process is, by the variables of each launcher."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from zerokit.distributed import group
from zerokit.distributed import ranks as ranks_module
from zerokit.distributed.ranks import Ranks, free_port, read_ranks
from zerokit.errors import LaunchError

ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        # deepspeed
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_SIZE": "4", "CROSS_RANK": "1"}, Ranks(5, 8, 1, 4)),
        # torchrun, accelerate launch
        (
            {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"},
            Ranks(5, 8, 1, 4),
        ),
        # torchrun's word counts where both are there
        (
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_SIZE": "2"},
            Ranks(0, 2, 0, 1),
        ),
        # by hand on one node
        ({"RANK": "0", "WORLD_SIZE": "1"}, Ranks(0, 1, 0, 1)),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, Ranks(1, 2, 1, 2)),
    ],
)
def test_each_launchers_variables_are_understood(environment: dict[str, str], expected: Ranks) -> None:
    before = dict(environment)
    assert read_ranks(environment) == expected
    assert environment == before


def test_plain_python_is_a_world_of_one_that_deepspeed_finds() -> None:
    environment: dict[str, str] = {}
    assert read_ranks(environment) == Ranks(0, 1, 0, 1)
    port = int(environment.pop("MASTER_PORT"))
    assert 1024 <= port < 65536
    assert environment == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }


def test_plain_python_keeps_the_address_it_was_given_and_reads_itself_back() -> None:
    environment = dict(ADDRESS)
    assert read_ranks(environment) == read_ranks(environment) == Ranks()
    assert environment.items() >= ADDRESS.items()


@pytest.mark.parametrize(
    ("environment", "where", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE", "set only some of RANK, WORLD_SIZE and LOCAL_RANK"),
        ({"WORLD_SIZE": "2"}, "RANK", "set only some of RANK, WORLD_SIZE and LOCAL_RANK"),
        ({"RANK": "zero", "WORLD_SIZE": "2"}, "RANK", "'zero' is not a number"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE", "'' is not a number"),
        # which could be any rank of its node
        ({"RANK": "1", "WORLD_SIZE": "2"}, "LOCAL_RANK", "set only some of RANK, WORLD_SIZE and LOCAL_RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "x"}, "LOCAL_RANK", "'x' is not a number"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "x"}, "LOCAL_SIZE", "'x' is not a number"),
        (
            {"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"},
            "SLURM_NTASKS",
            "4 processes were started without RANK and WORLD_SIZE",
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": "2"},
            "OMPI_COMM_WORLD_SIZE",
            "2 processes were started without RANK and WORLD_SIZE",
        ),
        ({"SLURM_NTASKS": "four", "SLURM_STEP_ID": "0"}, "SLURM_NTASKS", "'four' is not a number"),
    ],
)
def test_variables_that_do_not_add_up_are_named(environment: dict[str, str], where: str, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        read_ranks(environment)
    assert caught.value.where == where
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
        {"SLURM_NTASKS": "4"},  # in a batch script, outside srun
    ],
)
def test_a_slurm_job_of_one_process_is_plain_python(environment: dict[str, str]) -> None:
    assert read_ranks(environment) == Ranks()


def test_a_launcher_inside_srun_counts() -> None:
    launched = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert read_ranks({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", **launched}).rank == 3


def test_one_rank_is_main_and_one_per_node_prepares() -> None:
    assert Ranks(0, 4, 0, 2).is_main
    assert not Ranks(2, 4, 0, 2).is_main
    assert Ranks(2, 4, 0, 2).is_node_main
    assert not Ranks(3, 4, 1, 2).is_node_main


@pytest.mark.parametrize(
    ("ranks", "num_gpus", "num_cores", "message"),
    [
        (3, 2, 64, "3 ranks on this node, which has 2 GPUs"),
        (2, 1, 64, "2 ranks on this node, which has 1 GPU"),
        (3, 0, 2, "3 ranks on this node, which has 2 CPU cores"),
        (2, 2, 1, None),
        (2, 0, 2, None),
        (1, 0, 1, None),
    ],
)
def test_more_ranks_than_devices_are_refused(
    ranks: int, num_gpus: int, num_cores: int, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "count_gpus", lambda: num_gpus)
    monkeypatch.setattr(group.os, "cpu_count", lambda: num_cores)
    place = Ranks(0, 16, 0, ranks)
    if message is None:
        group.check_launch(place)
        return
    with pytest.raises(LaunchError) as caught:
        group.check_launch(place)
    assert caught.value.message == message
    assert f"--num_gpus {num_gpus or num_cores}" in (caught.value.hint or "")


def test_a_free_port_is_not_one_that_the_system_hands_out() -> None:
    with ExitStack() as opened:
        handed_out = set()
        for _ in range(20):
            asked = opened.enter_context(socket.socket())
            asked.bind(("", 0))
            handed_out.add(asked.getsockname()[1])
    system = ranks_module._handed_out()
    assert handed_out <= set(system)
    drawn = {free_port() for _ in range(20)}
    assert drawn.isdisjoint(system)
    assert len(drawn) > 1, "a run that starts beside this one would come upon the same"


def test_a_port_that_somebody_has_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    monkeypatch.setattr(ranks_module, "_PORTS", range(first, first + 2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        assert free_port() != first
        with pytest.raises(LaunchError, match=f"another process has port {first}"):
            free_port(first)


def test_where_the_system_hands_out_every_port_one_of_them_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "_handed_out", lambda: range(1024, 65_536))
    assert free_port() >= 1024
