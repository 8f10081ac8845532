"""Which mode generation chooses by memory."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, GenerationConfig

from zerokit.distributed import nvme
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import ConfigError, ZerokitError
from zerokit.generation import mode
from zerokit.generation.ds_config import Device, Engine, plan_engine
from zerokit.generation.mode import Free, Work, choose_mode
from zerokit.generation.model import ModelFiles
from zerokit.generation.options import Options
from zerokit.generation.requests import Request
from zerokit.units import GIB, MIB

CPU = Device(is_gpu=False, supports_bfloat16=True, supports_float16=False)
WORK = Work(prompt_tokens=16, new_tokens=16, sequences=40)


class TwoRanks(RankGroup):
    """The first of two ranks; the other one has as much memory as `other`."""

    def __init__(self, other: int, card: str | None = None) -> None:
        super().__init__(Ranks(world_size=2, local_world_size=2))
        self._other = Free(other, 64 * GIB, card)

    def gather_objects(self, item: Any) -> list[Any]:
        return [item, self._other if isinstance(item, Free) else None]


def options(**given: Any) -> Options:
    return Options(model="m", texts=("x",), **given)


@pytest.fixture
def engine(model: ModelFiles) -> Engine:
    return plan_engine(None, requested_dtype="auto", model=model, device=CPU)


@pytest.mark.parametrize(
    ("own", "other", "chosen"), [(3, 3, "replicated"), (3, 0.9, "tensor"), (0.9, 3, "tensor")], ids=str
)
def test_ranks_choose_by_the_least_memory(
    own: float,
    other: float,
    chosen: str,
    model: ModelFiles,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = 4 * (model.num_parameters or 0)
    monkeypatch.setattr(mode, "free_memory", lambda _: Free(int(own * weights), 64 * GIB, None))
    made = choose_mode(TwoRanks(int(other * weights)), engine, model, options(), WORK)
    assert (made.mode, made.zero_stage, made.dtype) == (chosen, 0, "float32")
    line = capsys.readouterr().err
    assert f"mode {chosen}, " in line
    assert ("replicated: needs" in line) == (chosen != "replicated")


def test_a_card_that_is_too_small_gets_offloaded_weights_and_all_sequences(
    model: ModelFiles, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = "NVIDIA H100 80GB HBM3"
    monkeypatch.setattr(mode, "free_memory", lambda _: Free(33 * MIB, 64 * GIB, card))
    made = choose_mode(TwoRanks(33 * MIB, card), engine, model, options(mode="offloaded"), WORK)
    zero = made.ds_config["zero_optimization"]
    assert (zero["stage"], zero["offload_param"]) == (3, {"device": "cpu", "pin_memory": True})
    assert made.batch_size in (8, 20)  # all sequences of a rank, if they fit


@pytest.mark.parametrize("has_libaio", [True, False])
def test_weights_go_to_nvme_where_the_host_is_too_small(
    has_libaio: bool, model: ModelFiles, engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = "NVIDIA H100 80GB HBM3"
    monkeypatch.setattr(mode, "free_memory", lambda _: Free(33 * MIB, 64 * MIB, card))
    monkeypatch.setattr(nvme, "has_async_io", lambda: has_libaio)
    asked = options(mode="offloaded", output=tmp_path / "out.jsonl")
    group = RankGroup(Ranks())
    if not has_libaio:
        with pytest.raises(ConfigError, match="--mode: offload to nvme needs libaio"):
            choose_mode(group, engine, model, asked, WORK)
        return
    made = choose_mode(group, engine, model, asked, WORK)
    offload = made.ds_config["zero_optimization"]["offload_param"]
    assert offload.pop("buffer_size") == 320 * 64  # the embedding
    assert offload == {
        "device": "nvme",
        "nvme_path": str(tmp_path / "zerokit-weights"),
        "pin_memory": True,
        "buffer_count": 12,
    }


def test_the_folder_on_nvme_is_no_link_and_beside_no_pipe(
    model: ModelFiles, engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mode, "free_memory", lambda _: Free(33 * MIB, 64 * MIB, "NVIDIA H100 80GB HBM3"))
    monkeypatch.setattr(nvme, "has_async_io", lambda: True)
    (tmp_path / "current").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zerokit-weights").symlink_to(tmp_path / "elsewhere")
    asked = options(mode="offloaded", output=tmp_path / "pipe")
    made = choose_mode(RankGroup(Ranks()), engine, model, asked, WORK)
    offload = made.ds_config["zero_optimization"]["offload_param"]
    assert offload["nvme_path"] == str(tmp_path / "current" / "zerokit-weights")
    with pytest.raises(ZerokitError, match="zerokit-weights: is a link, which zerokit does not follow"):
        choose_mode(RankGroup(Ranks()), engine, model, replace(asked, output=tmp_path / "out.jsonl"), WORK)


def test_quantized_models_are_never_divided(model: ModelFiles, engine: Engine) -> None:
    quantized = replace(model, num_parameters=None)
    assert choose_mode(TwoRanks(0), engine, quantized, options(), WORK).mode == "replicated"


@pytest.mark.parametrize(("room", "chosen"), [(1.5, "replicated"), (0.9, "sharded")], ids=str)
def test_models_that_cannot_be_counted_are_judged_by_their_weights(
    room: float, chosen: str, model: ModelFiles, engine: Engine
) -> None:
    unknown = replace(model, config=BloomConfig(n_layer=1, n_head=2, hidden_size=4, num_attention_heads=[2]))
    free = int(room * 4 * (model.num_parameters or 0))
    assert choose_mode(TwoRanks(free), engine, unknown, options(), WORK).mode == chosen


def test_tensor_parallelism_needs_a_plan_also_where_memory_is_not_known(model: ModelFiles, engine: Engine) -> None:
    bloom = replace(model, config=BloomConfig(n_layer=1, n_head=2, hidden_size=4))
    with pytest.raises(ConfigError, match=r"--mode: tensor is not possible: .* does not go with bloom"):
        choose_mode(TwoRanks(0), engine, bloom, options(mode="tensor"), WORK)
    bloom.config.num_attention_heads = [2]  # one for each layer
    assert choose_mode(TwoRanks(0), engine, bloom, options(mode="sharded"), WORK).mode == "sharded"


@pytest.mark.parametrize(("tokens", "rows"), [(None, 8), (32 * 15, 15), (9, 1), (10**6, 20)])
def test_a_batch_of_tokens_is_judged_by_its_rows(
    tokens: int | None, rows: int, model: ModelFiles, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    choose_mode(TwoRanks(10 * GIB), engine, model, options(mode="replicated", max_batch_tokens=tokens), WORK)
    assert f"mode replicated, {rows} at once" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["sharded", "replicated", "gathered", "tensor"])
def test_a_named_mode_is_used_whatever_the_memory(named: Any, model: ModelFiles, engine: Engine) -> None:
    assert choose_mode(TwoRanks(0), engine, model, options(mode=named), WORK).mode == named


def test_one_rank_has_nothing_to_divide(model: ModelFiles, engine: Engine) -> None:
    with pytest.raises(ConfigError, match="--mode: tensor is not possible: there is one GPU"):
        choose_mode(RankGroup(Ranks()), engine, model, options(mode="tensor"), WORK)


def test_a_ds_config_has_the_mode() -> None:
    with pytest.raises(ConfigError, match="--mode: --ds-config is given too"):
        options(mode="sharded", ds_config=Path("ds.json"))


def test_beams_are_counted_in_the_memory_and_not_in_the_batch(
    model: ModelFiles, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mode, "free_memory", lambda _: Free(GIB, 64 * GIB, None))
    requests = [Request(index, [5] * 16, 2) for index in range(30)]
    lines = []
    for beams in (1, 8):  # four sequences for each of two completions
        config = GenerationConfig(max_new_tokens=16, num_beams=beams, num_return_sequences=2, do_sample=beams == 1)
        work = Work.of(requests, config)
        assert (work.sequences, work.beams) == (60 * max(beams // 2, 1), max(beams // 2, 1))
        assert choose_mode(RankGroup(Ranks()), engine, model, options(), work).batch_size in (None, 8)
        lines.append(capsys.readouterr().err)
    assert all("mode replicated, 8 at once" in line for line in lines)
    found = [re.findall(r"([\d.]+) ([KM])iB of KV cache", line)[0] for line in lines]
    caches = [float(size) * {"K": 1, "M": 1024}[unit] for size, unit in found]
    assert caches[1] == pytest.approx(4 * caches[0], rel=0.01)
