from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.memory.runs import ds_config, run
from zerokit.memory.layout import Parameter
from zerokit.memory.param_coordinator import GATHER_BUFFERS, GATHERED, KEPT_BY_AUTOGRAD, Coordinator, Submodule
from zerokit.memory.settings import Settings, settings_of
from zerokit.memory.timeline import Timeline

SIZES = st.lists(st.integers(100, 10_000), min_size=1, max_size=12)


def _settings(world_size: int, **keys: Any) -> Settings:
    zero = {"stage3_param_persistence_threshold": 50}
    settings = settings_of(run(config=ds_config(3, zero=zero), world_size=world_size))
    return replace(settings, **keys)


def _pass(coordinator: Coordinator, timeline: Timeline, calls: list[Submodule]) -> int:
    """One forward and backward pass; the most that was gathered."""
    coordinator.reset()
    most = 0
    for call in calls:
        coordinator.fetch(call)
        most = max(most, timeline.bytes_of(GATHERED))
        coordinator.release(call)
    return most


def _there_and_back(sizes: list[int]) -> list[Submodule]:
    calls = [
        Submodule(f"layer.{number}", (Parameter(f"layer.{number}", size, True, "mlp"),))
        for number, size in enumerate(sizes)
    ]
    return [*calls, *reversed(calls)]


@given(SIZES, st.sampled_from([1, 2, 7]), st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 20_000))
def test_everything_is_given_back(sizes: list[int], world: int, live: int, ahead: int, reuse: int) -> None:
    calls, timeline = _there_and_back(sizes), Timeline()
    settings = _settings(world, max_live=live, prefetch_bucket=ahead, max_reuse_distance=reuse)
    coordinator = Coordinator(timeline, settings, calls)
    for _ in range(2):
        most = _pass(coordinator, timeline, calls)
        assert most <= 2 * sum(sizes)
        assert min(timeline.bytes_of(kind) for kind in (GATHERED, GATHER_BUFFERS)) >= 0
    coordinator.release_all()
    assert timeline.total == 0


@given(SIZES)
def test_without_prefetch_and_reuse_one_parameter_is_whole_at_a_time(sizes: list[int]) -> None:
    calls, timeline = _there_and_back(sizes), Timeline()
    settings = _settings(4, max_live=0, prefetch_bucket=0, max_reuse_distance=0)
    assert _pass(Coordinator(timeline, settings, calls), timeline, calls) == 2 * max(sizes)
    assert timeline.total == 0


@given(SIZES)
def test_within_the_reuse_distance_nothing_is_released_before_its_backward(sizes: list[int]) -> None:
    calls, timeline = _there_and_back(sizes), Timeline()
    settings = _settings(4, max_live=0, prefetch_bucket=0, max_reuse_distance=10**9)
    assert _pass(Coordinator(timeline, settings, calls), timeline, calls) == 2 * sum(sizes)


def test_several_parameters_are_gathered_into_a_buffer_and_copied_out_of_it() -> None:
    pair = tuple(Parameter("layer", size, True, "mlp") for size in (1000, 500))
    calls, timeline = [Submodule("layer", pair)], Timeline()
    timeline.enter("forward")
    Coordinator(timeline, _settings(4), calls).fetch(calls[0])
    assert timeline.bytes_of(GATHERED) == 3000
    assert timeline.bytes_of(GATHER_BUFFERS) == 0
    assert timeline.peak_bytes == 6000
    assert timeline.fullest["forward"] == {GATHER_BUFFERS: {2: 1500}, GATHERED: {2: 1500}}


def test_what_autograd_keeps_outlives_its_release() -> None:
    calls, timeline = _there_and_back([1000]), Timeline()
    settings = _settings(4, max_live=0, prefetch_bucket=0, max_reuse_distance=0)
    coordinator = Coordinator(timeline, settings, calls)
    coordinator.fetch(calls[0])
    coordinator.save(calls[0])
    coordinator.release(calls[0])
    assert timeline.bytes_of(KEPT_BY_AUTOGRAD) == timeline.total == 2000
    coordinator.fetch(calls[1])
    assert timeline.total == 4000
    coordinator.unsave(calls[1])
    coordinator.release(calls[1])
    assert timeline.total == 0


def test_small_parameters_are_never_gathered() -> None:
    calls, timeline = _there_and_back([50]), Timeline()
    assert _pass(Coordinator(timeline, _settings(4), calls), timeline, calls) == 0


@given(SIZES, st.integers(0, 20_000))
def test_before_the_order_of_calls_is_known_one_parameter_is_whole_at_a_time(sizes: list[int], ahead: int) -> None:
    calls, timeline = _there_and_back(sizes), Timeline()
    settings = _settings(4, max_live=10**9, prefetch_bucket=ahead, max_reuse_distance=10**9)
    assert _pass(Coordinator(timeline, settings, ()), timeline, calls) == 2 * max(sizes)
    assert timeline.total == 0


def test_what_is_computed_again_keeps_trained_weights_alone() -> None:
    pair = (Parameter("layer.weight", 1000, True, "mlp"), Parameter("layer.frozen", 500, False, "mlp"))
    call, timeline = Submodule("layer", pair), Timeline()
    coordinator = Coordinator(timeline, _settings(4), ())
    coordinator.fetch(call)
    coordinator.save(call, only_trained=True)
    coordinator.release(call)
    assert timeline.bytes_of(KEPT_BY_AUTOGRAD) == 2 * 1000
