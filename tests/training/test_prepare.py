"""The steps of a preparation, and what they cost in exchanges between ranks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zerokit.config.base import ZERO
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import RecipeError, ZerokitError
from zerokit.recipe import load_recipe
from zerokit.training import prepare
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


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("zenflow", {"topk_ratio": 0.1}, "what ZenFlow keeps"),
        ("training.output_dir", __file__, "cannot write into .*test_prepare.py"),
        ("peft.alpha_of_none", 1, "alpha_of_none"),
        ("training.seed", 1, "was read"),
    ],
)
def test_a_checkpoint_is_read_after_cheap_checks(
    key: str, value: Any, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise RecipeError("the checkpoint was read")

    monkeypatch.setattr(prepare, "find_resume", lambda *_: tmp_path / "checkpoint-1")
    monkeypatch.setattr(prepare, "check_resumed", read)
    options = [] if key == "zenflow" else [f"--{key}", json.dumps(value).strip('"')]
    loaded = load_recipe(None, ["--training.output_dir", str(tmp_path), *options])
    run = RunContext(RankGroup(Ranks()), loaded)
    run_steps(run, prepare.ARGUMENTS)
    if key == "zenflow":  # which only some releases of DeepSpeed may use
        run.resolved.ds_config[ZERO] = {**run.resolved.ds_config[ZERO], key: value}
    with pytest.raises(ZerokitError, match=refused):
        run_steps(run, prepare.CHECKS)
