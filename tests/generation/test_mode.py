"""Which mode generation chooses by memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import ConfigError
from zerokit.generation import mode
from zerokit.generation.ds_config import Device, plan_engine
from zerokit.generation.mode import choose_mode
from zerokit.generation.model import ModelFiles
from zerokit.generation.options import Options

CPU = Device(is_gpu=False, supports_bfloat16=True, supports_float16=False)


class TwoRanks(RankGroup):
    """The first of two ranks; the other one has as much memory as `other`."""

    def __init__(self, other: int) -> None:
        super().__init__(Ranks(world_size=2, local_world_size=2))
        self._other = other

    def gather_objects(self, item: Any) -> list[Any]:
        return [item, self._other]


def options(**given: Any) -> Options:
    return Options(model="m", texts=("x",), **given)


@pytest.fixture
def weights(model: ModelFiles) -> int:
    assert model.num_parameters is not None
    return 4 * model.num_parameters


@pytest.mark.parametrize(
    ("own", "other", "stage"), [(2, 2, 0), (2, 1.9, 3), (1.9, 2, 3)], ids=["fits", "not there", "not here"]
)
def test_ranks_choose_by_the_least_memory(
    own: float, other: float, stage: int, model: ModelFiles, weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = plan_engine(None, requested_dtype="auto", model=model, device=CPU)
    monkeypatch.setattr(mode, "_free_bytes", lambda _: int(own * weights))
    chosen = choose_mode(TwoRanks(int(other * weights)), engine, model, options())
    assert chosen.zero_stage == stage
    assert chosen.dtype == "float32"


def test_one_rank_and_quantized_models_are_never_divided(model: ModelFiles) -> None:
    engine = plan_engine(None, requested_dtype="auto", model=model, device=CPU)
    assert choose_mode(RankGroup(Ranks()), engine, model, options()).zero_stage == 0
    quantized = replace(model, num_parameters=None)
    assert choose_mode(TwoRanks(0), engine, quantized, options()).zero_stage == 0


@pytest.mark.parametrize(("named", "stage"), [("sharded", 3), ("replicated", 0)])
def test_a_named_mode_is_taken(named: Any, stage: int, model: ModelFiles) -> None:
    engine = plan_engine(None, requested_dtype="auto", model=model, device=CPU)
    assert choose_mode(TwoRanks(0), engine, model, options(mode=named)).zero_stage == stage


def test_a_ds_config_has_the_mode() -> None:
    with pytest.raises(ConfigError, match="--mode: --ds-config is given too"):
        options(mode="sharded", ds_config=Path("ds.json"))
