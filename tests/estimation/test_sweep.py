from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.estimation.requests import answer, question
from tests.examples import examples
from zerokit.estimation import Axes, Runs, sweep
from zerokit.memory import estimate


def test_a_sweep_is_the_single_runs() -> None:
    base = question()
    axes = Axes(zero_stage=(0, 1, 2, 3), num_gpus=(1, 8, 16), seq_len=(128, 512))
    singles = [estimate(Runs().training_run(one)) for one in axes.questions(base)]
    assert sweep(base, axes) == singles
    assert len(singles) == 24


def test_the_last_axis_changes_fastest() -> None:
    axes = Axes(zero_stage=(1, 2), micro_batch_size=(3, 4))
    combinations = [(one.zero_stage, one.micro_batch_size) for one in axes.questions(question())]
    assert combinations == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert axes.varied == ("zero_stage", "micro_batch_size")


def test_no_axes_leave_the_question() -> None:
    assert list(Axes().questions(question())) == [question()]
    assert list(Axes(num_gpus=(4,)).questions(question())) == [question(num_gpus=4)]


STAGES = st.integers(0, 3)
SIZES = st.integers(1, 8)


@examples(25)
@given(stage=STAGES, batch=SIZES, more=SIZES, seq=st.sampled_from([64, 200, 1024]), checkpointing=st.booleans())
def test_more_sequences_never_take_less(stage: int, batch: int, more: int, seq: int, checkpointing: bool) -> None:
    options = {"zero_stage": stage, "seq_len": seq, "gradient_checkpointing": checkpointing}
    small = answer(micro_batch_size=batch, **options)
    large = answer(micro_batch_size=batch + more, **options)
    assert large.device.peak_bytes >= small.device.peak_bytes
    assert large.device.by_phase["loss"] > small.device.by_phase["loss"]
    assert large.device.steady_bytes == small.device.steady_bytes
    assert large.model_states == small.model_states


@examples(25)
@given(stage=STAGES, nodes=st.integers(1, 16), more=st.integers(1, 16))
def test_more_gpus_never_keep_more(stage: int, nodes: int, more: int) -> None:
    few = answer(zero_stage=stage, num_gpus=8 * nodes)
    many = answer(zero_stage=stage, num_gpus=8 * (nodes + more))
    assert many.model_states.total_bytes <= few.model_states.total_bytes
    assert many.device.steady_bytes <= few.device.steady_bytes
    if stage == 0:
        assert many.device.peak_bytes == few.device.peak_bytes


@examples(15)
@given(gpus=st.sampled_from([2, 4, 8, 64]), batch=SIZES)
def test_each_stage_keeps_no_more_than_the_one_before(gpus: int, batch: int) -> None:
    totals = [
        answer(zero_stage=stage, num_gpus=gpus, micro_batch_size=batch).model_states.total_bytes for stage in range(4)
    ]
    assert totals == sorted(totals, reverse=True)
