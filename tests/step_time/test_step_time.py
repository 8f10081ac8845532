"""The closed form of a step's time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.validation.memory.rehearsed import Point
from tests.validation.parallelism import step_times as parallel
from tests.validation.planning.step_times import RECORD, predict
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.step_time import StepTime, layers_of, step_time

_SMALL = {"num_hidden_layers": 4}
_SEEDS = json.loads(RECORD.read_text(encoding="utf-8"))
_ROWS = {f"{seed}, {number}": row for seed, rows in _SEEDS.items() for number, row in rows.items()}


def _time(card: str = "H100-SXM", network: float | None = None, **changes: Any) -> StepTime:
    arguments = {"zero": {"stage": 2}, "micro_batch_size": 2, "changes": _SMALL, **changes}
    point = Point("small", "meta-llama/Llama-3.1-8B", **arguments)
    cluster = Cluster(point.num_gpus, point.gpus_per_node, find_gpu(card), network_gbit_s=network)
    return step_time(point.training_run(), CardCosts(cluster))


@pytest.mark.torch  # with which a model type is read that zerokit has no code for
@pytest.mark.parametrize("name", [name for name in _ROWS if "error" in _ROWS[name]][::3])
def test_rehearsals_are_predicted(name: str) -> None:
    """A sample of the record."""
    row = _ROWS[name]
    real = row["rehearsed"]
    predicted = predict(row["drawn"], real["host_threads"])
    assert predicted.seconds == pytest.approx(real["step_seconds"], rel=0.15)
    assert predicted.low_seconds <= real["step_seconds"] <= predicted.high_seconds


_PARALLEL = json.loads(parallel.RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(_PARALLEL)[::2])
def test_rehearsals_of_groups_are_predicted(name: str) -> None:
    """Sequence and tensor parallelism: a sample of the record."""
    row = _PARALLEL[name]
    predicted = predict(row["drawn"], row["rehearsed"]["host_threads"], parallel.point_of(row["drawn"]))
    assert predicted.seconds == pytest.approx(row["rehearsed"]["step_seconds"], rel=0.15)


def _grouped(*, network: float = 400.0, **changes: Any) -> StepTime:
    point = Point("small", "meta-llama/Llama-3.1-8B", {"stage": 3}, num_gpus=16, seq_len=65536, changes=_SMALL)
    costs = CardCosts(Cluster(16, 8, find_gpu("H100-SXM"), network_gbit_s=network))
    return step_time(replace(point.training_run(), gradient_checkpointing=True, **changes), costs)


def test_groups_exchange_by_their_links() -> None:
    """Within a node the network does not matter; across nodes exchanges take longer, and longest on a slow one."""
    alone, near, far = (_grouped(parallelism=Parallelism(size)) for size in (1, 8, 16))
    assert near.parts["compute"] < alone.parts["compute"] / 4
    assert far.parts["communication"] > near.parts["communication"]
    assert _grouped(parallelism=Parallelism(16), network=100.0).seconds > far.seconds
    layers = _grouped(parallelism=Parallelism(1, 8))
    assert layers.parts["communication"] > 2 * near.parts["communication"]


@pytest.mark.parametrize("saver", ["tiled_mlp", "activation_offloading"])
def test_settings_that_save_activations_take_time(saver: str) -> None:
    """The MLP runs again, or copies come back to the GPU."""
    assert _grouped(**{saver: True}).seconds > 1.005 * _grouped().seconds


@given(
    stage=st.sampled_from([0, 1, 2, 3]),
    tokens=st.integers(16, 4096),
    offload=st.booleans(),
    checkpointing=st.booleans(),
    accumulation=st.integers(1, 3),
)
def test_parts_add_up_and_more_tokens_take_longer(
    stage: int, tokens: int, offload: bool, checkpointing: bool, accumulation: int
) -> None:
    """The parts are no less than 0 and sum to the whole, which lies within its bounds."""
    zero: dict[str, Any] = {"stage": stage}
    if offload and stage:
        zero["offload_optimizer"] = {"device": "cpu"}
    same: dict[str, Any] = {"zero": zero, "checkpointing": checkpointing, "accumulation": accumulation}
    same["extra"] = {"gradient_accumulation_steps": accumulation}
    found = _time(seq_len=tokens, **same)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert min(found.parts.values()) >= 0
    assert found.low_seconds <= found.seconds <= found.high_seconds
    assert _time(seq_len=2 * tokens, **same).seconds >= found.seconds


def test_slower_networks_and_cards_take_longer() -> None:
    """The same run on two nodes, and on one GPU."""
    slow = _time(num_gpus=16, network=100.0)
    assert slow.seconds > _time(num_gpus=16, network=3200.0).seconds
    assert slow.parts["communication"] > slow.parts["compute"] * 0.1
    assert _time("A100-80GB-SXM").seconds > _time("H100-SXM").seconds
    assert _time(num_gpus=1).parts["communication"] == 0


def test_adapters_take_less_than_all_weights() -> None:
    """No weight gradients, no reduction of them."""
    lora = {"rank": 16, "target_modules": ["q_proj", "v_proj"]}
    full, adapted = _time(seq_len=4096), _time(seq_len=4096, lora=lora)
    assert adapted.seconds < 0.85 * full.seconds
    assert adapted.parts["communication"] < 0.1 * full.parts["communication"]


def test_shorter_sequences_take_less() -> None:
    """The mean length of a micro-batch counts."""
    run = Point("small", "meta-llama/Llama-3.1-8B", {"stage": 2}, changes=_SMALL).training_run()
    costs = CardCosts(Cluster(8, 8, find_gpu("H100-SXM")))
    assert step_time(run, costs, layers=layers_of(run, costs, 500.0)).seconds < step_time(run, costs).seconds
    with pytest.raises(ZerokitError, match="shape of a text model"):
        step_time(replace(run, model=10**9, attention=None), costs)
