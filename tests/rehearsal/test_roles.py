"""Which ranks have one role, and who is rehearsed, by the groups that a script makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerokit.rehearsal.ranks.journal import Journal
from zerokit.rehearsal.ranks.role_watch import RoleWatch
from zerokit.rehearsal.ranks.roles import MOST_RANKS, Axis, GroupKind, Ranks, Roles, axes_of, find_roles


def grid(num_gpus: int, **sizes: int) -> list[tuple[str, GroupKind, Ranks]]:
    """All groups of ranks that lie in a grid, the first axis the slowest, named by their kinds."""
    made: list[tuple[str, GroupKind, Ranks]] = []
    stride = num_gpus
    for kind, size in sizes.items():
        stride //= size
        for start in range(num_gpus):
            if start // stride % size == 0:
                ranks = tuple(range(start, start + stride * size, stride))
                made.append((f"groups.py:1 {kind}", kind, ranks))  # type: ignore[arg-type]
    return made


def roles_of(num_gpus: int, groups: list[tuple[str, GroupKind, Ranks]]) -> Roles:
    return find_roles(num_gpus, axes_of(groups))


def test_ranks_that_differ_by_data_parallelism_alone_have_one_role() -> None:
    roles = roles_of(16, grid(16, data=16))
    assert (roles.names, roles.rehearsed) == (("",), (0, 15))
    assert [roles.stands_for(rank) for rank in (0, 1, 14, 15)] == [0, 15, 15, 15]
    # As ZeRO++ and MiCS make them: within a node, and across nodes.
    assert roles_of(16, grid(16, data=2) + grid(8, data=8)).rehearsed == (0, 15)


def test_each_stage_of_a_pipeline_is_a_role() -> None:
    roles = roles_of(8, grid(8, pipeline=4, data=2))
    assert roles.rehearsed == (0, 2, 4, 7)
    assert roles.names[3] == "pipeline stage 3 of 4"
    assert [roles.stands_for(rank) for rank in range(8)] == [0, 0, 2, 2, 4, 4, 7, 7]


@pytest.mark.parametrize("kind", ["tensor", "sequence", "expert"])
def test_of_another_group_the_first_rank_and_the_others_are(kind: str) -> None:
    roles = roles_of(8, grid(8, **{kind: 8}))
    assert roles.names == (f"{kind} rank 0 of 8", f"{kind} ranks 1 to 7 of 8")
    assert roles.rehearsed == (0, 7)
    roles = roles_of(8, grid(8, data=2, **{kind: 4}))
    assert roles.names == (f"{kind} rank 0 of 4", f"{kind} ranks 1 to 3 of 4")
    assert {roles.stands_for(rank) for rank in (1, 2)} == {7}


@pytest.mark.parametrize(
    ("num_gpus", "sizes", "rehearsed"),
    [
        (4, {"data": 2, "tensor": 2}, (0, 1, 2, 3)),
        (8, {"data": 4, "tensor": 2}, (0, 1, 6, 7)),
        (8, {"data": 2, "sequence": 4}, (0, 3, 4, 7)),
        (8, {"tensor": 2, "data": 4}, (0, 3, 4, 7)),
        (8, {"data": 2, "sequence": 2, "tensor": 2}, tuple(range(8))),
        (16, {"pipeline": 4, "data": 2, "tensor": 2}, (0, 1, 4, 5, 8, 9, 14, 15)),
        (32, {"data": 4, "unknown": 2, "sequence": 2, "tensor": 2}, (0, 1, 2, 3, 28, 29, 30, 31)),
        (8, {"data": 2, "expert": 4}, (0, 7)),  # whose ranks have data of their own
    ],
)
def test_a_rank_hears_nobody_who_has_the_data_of_another_group(
    num_gpus: int, sizes: dict[str, int], rehearsed: Ranks
) -> None:
    groups = grid(num_gpus, **sizes)
    roles = roles_of(num_gpus, groups)
    assert roles.rehearsed == rehearsed
    for _, kind, ranks in groups:
        if kind in ("tensor", "sequence", "unknown") and set(ranks) & set(rehearsed):
            assert {roles.stands_for(rank, ranks) for rank in ranks} <= set(ranks)


def test_groups_of_groups_make_no_further_roles() -> None:
    alone = grid(16, pipeline=4, data=2, tensor=2)
    with_models = [*alone, ("mpu.py:9", "tensor", (0, 1, 4, 5, 8, 9, 12, 13))]
    assert roles_of(16, alone) == roles_of(16, with_models)
    assert len(roles_of(16, alone).names) == len(roles_of(16, alone).rehearsed) == 8


def test_there_are_never_more_roles_than_can_be_rehearsed() -> None:
    for groups in (grid(64, pipeline=64), grid(64, pipeline=8, tensor=4, expert=2), grid(64, pipeline=16, tensor=4)):
        roles = roles_of(64, groups)
        assert len(roles.rehearsed) <= MOST_RANKS
        assert {roles.of_rank[rank] for rank in roles.rehearsed} == set(roles.of_rank)
    assert roles_of(64, grid(64, pipeline=64)).names[1] == "pipeline stages 8 to 15 of 64"


def test_ranks_that_are_rehearsed_already_count() -> None:
    rehearsed: Ranks = ()
    groups: list[tuple[str, GroupKind, Ranks]] = []
    for kind in ("tensor", "sequence", "pipeline"):
        made = grid(32, pipeline=8, data=1, sequence=2, tensor=2)
        groups += [one for one in made if one[1] == kind]
        roles = find_roles(32, axes_of(groups), rehearsed)
        assert set(rehearsed) <= set(roles.rehearsed)
        assert len(roles.rehearsed) <= MOST_RANKS
        rehearsed = roles.rehearsed
    assert any("pipeline stage" in name for name in roles.names)


def test_groups_that_make_no_roles_are_named() -> None:
    roles = roles_of(16, grid(16, pipeline=8, tensor=2))
    assert roles.left_out == ("tensor groups of 2",)
    assert Roles.from_json(roles.to_json()) == roles
    assert roles_of(8, grid(8, pipeline=4, tensor=2)).left_out == ()


def test_a_group_whose_purpose_nobody_tells_counts_but_for_one_of_all_ranks() -> None:
    assert roles_of(8, [("train.py:3", "unknown", tuple(range(8)))]).rehearsed == (0, 7)
    halves: list[tuple[str, GroupKind, Ranks]] = [
        ("train.py:3", "unknown", (0, 1, 2, 3)),
        ("train.py:3", "unknown", (4, 5, 6, 7)),
    ]
    assert roles_of(8, halves).names == ("rank 0 of 4", "ranks 1 to 3 of 4")


def test_the_watch_answers_what_ranks_tell(tmp_path: Path) -> None:
    watch = RoleWatch(tmp_path, 4)
    assert watch.update_roles() == (0, 3)
    Journal(tmp_path, 0).write("groups.2", payload=json.dumps(grid(4, pipeline=2, data=2)).encode())
    assert watch.update_roles() == (0, 3)
    assert watch.roles.names == ("pipeline stage 0 of 2", "pipeline stage 1 of 2")
    said = Journal(tmp_path, "roles")
    said.read_on()
    (entry,) = said.of_kind["roles"]
    assert Roles.from_json(said.payload(entry)) == watch.roles


def test_ranks_that_send_to_each_other_are_stages_if_nobody_says_what_they_are(tmp_path: Path) -> None:
    watch = RoleWatch(tmp_path, 4)
    Journal(tmp_path, 3).write("pair.2", "3", "2")
    assert watch.update_roles() == (0, 1, 2, 3)
    ring = tmp_path / "ring"
    ring.mkdir()
    watch = RoleWatch(ring, 4)
    Journal(ring, 0).write("groups.1", payload=json.dumps(grid(4, sequence=4)).encode())
    Journal(ring, 3).write("pair.2", "3", "2")
    assert watch.update_roles() == (0, 3)
    assert watch.roles.names[0] == "sequence rank 0 of 4"


def test_a_pipeline_is_known_by_either_name_of_its_groups() -> None:
    model = [(where.replace("1", "2"), "tensor", ranks) for where, _, ranks in grid(8, pipeline=4)]
    assert axes_of([*model, *grid(8, pipeline=4)])[0].kind == "pipeline"  # type: ignore[list-item]
    assert isinstance(axes_of(grid(8, data=8))[0], Axis)
