"""The steps of a preparation, and what they cost in exchanges between ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import RecipeError
from zerokit.recipe import load_recipe
from zerokit.training.prepare import PreparationStep, run_steps
from zerokit.training.run_context import RunContext


class Counting(RankGroup):
    """The second rank of two, whose other rank has no errors."""

    def __init__(self) -> None:
        super().__init__(Ranks(rank=1, world_size=2, local_rank=1, local_world_size=2))
        self.events: list[str] = []

    def gather_objects(self, value: Any) -> list[Any]:
        self.events.append("exchange")
        return [None, value]


def context() -> tuple[RunContext, list[str]]:
    group = Counting()
    return RunContext(group, load_recipe(None, [])), group.events


def test_local_steps_in_a_row_share_one_exchange_of_errors() -> None:
    run, events = context()

    def step(name: str, where: Any = "local") -> PreparationStep:
        return PreparationStep(lambda _: events.append(name), where)

    run_steps(run, [step("one"), step("two"), step("three", "collective"), step("four")])
    assert events == ["one", "two", "exchange", "three", "four", "exchange"]
    events.clear()
    run_steps(run, [step("one", "node_first"), step("two", "node_first")])
    # The first rank of the node has gone through each before.
    assert events == ["exchange", "one", "exchange", "exchange", "two", "exchange"]


def test_the_error_of_a_step_is_raised_after_its_exchange_and_ends_the_steps() -> None:
    run, events = context()

    def fail(_: RunContext) -> None:
        raise RecipeError("is wrong", where="w", hint="h")

    later = partial(events.append, "later")
    with pytest.raises(RecipeError, match="is wrong"):
        run_steps(
            run,
            [
                PreparationStep(fail),
                PreparationStep(lambda _: later()),
                PreparationStep(lambda _: later(), "collective"),
            ],
        )
    assert events == ["exchange"]
