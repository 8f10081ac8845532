"""What the ranks of a rehearsal leave for each other at their ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerokit.rehearsal.ranks.journal import Entry, Journal
from zerokit.rehearsal.ranks.roles import ROLES, Roles, data_parallel

_PAUSE = 0.01
"""Seconds between looks."""


def left_by_all(folder: Path, num_gpus: int, *names: str) -> tuple[dict[int, list[bytes]], Roles]:
    """Wait until all ranks that are rehearsed have ended.

    Whoever fails without a word ends the rehearsal, and with it those who wait.

    Args:
        folder: in which they exchange what they say.
        num_gpus: world size.
        names: of what they said before.

    Returns:
        Its payloads, by the rank that said it, of those that said all of it; and the roles.
    """
    watch = Journal(folder, ROLES)
    journals: dict[int, Journal] = {}
    while True:
        watch.read_on()
        said = watch.of_kind["roles"]
        roles = Roles.from_json(watch.payload(said[-1])) if said else data_parallel(num_gpus)
        for rank in roles.rehearsed:
            journals.setdefault(rank, Journal(folder, rank)).read_on()
        if "ends" in watch.entries or (
            all("ends" in one.entries for one in journals.values()) and _looked_at(said, journals)
        ):
            break
        time.sleep(_PAUSE)
    return {
        rank: [journal.payload(journal.entries[name]) for name in names]
        for rank, journal in sorted(journals.items())
        if all(name in journal.entries for name in names)
    }, roles


def _looked_at(said: Sequence[Entry], journals: Mapping[int, Journal]) -> bool:
    """Whether the roles that were said last rest on all groups and pairs that ranks have told of."""
    pairs = {tuple(sorted(pair.words)) for one in journals.values() for pair in one.of_kind["pair"]}
    told = len(journals[0].of_kind["groups"]) + len(pairs)
    return told == 0 if not said else said[-1].name == f"roles.{told}"
