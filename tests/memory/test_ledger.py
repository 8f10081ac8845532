from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import ZerokitError
from zerokit.memory.decoder import DecoderShape
from zerokit.memory.ledger import Ledger, training_ledger
from zerokit.memory.model_states import model_states
from zerokit.memory.precision import state_bytes
from zerokit.memory.term import Phase, Term
from zerokit.memory.zero_buffers import ZeroOptions, owned_gradients

PHASES: tuple[Phase, ...] = get_args(Phase)


def shape(num_hidden_layers: int = 22, vocab_size: int = 32000) -> DecoderShape:
    return DecoderShape(2048, 5632, num_hidden_layers, 32, 32, vocab_size)


# Allocated bytes of DeepSpeed 0.19.8's own engine with FusedAdam, torch 2.13 and transformers 5.23, run on
# devices that hold no data: (stage, world size, precision, shape, seq_len, options, figures). The figures
# are of rank 0 in its third step: after the step, the most in forward and backward, the most in the step.
# Micro batch 1, multi-head attention. The ledger is of the fullest rank, so that it may lie above.
REHEARSED: list[tuple[int, int, str, DecoderShape, int, dict[str, Any], tuple[int, int, int]]] = [
    (0, 4, "bf16", shape(), 4096, {}, (17661441536, 28066173952, 30276732416)),
    (1, 4, "bf16", shape(), 4096, {}, (6307680256, 16712413184, 8844881920)),
    (2, 4, "bf16", shape(), 4096, {}, (6307680256, 16712413184, 8844881920)),
    (3, 4, "bf16", shape(), 4096, {}, (6046336000, 18454897664, 7938446848)),
    (0, 4, "bf16", shape(vocab_size=1000), 2048, {}, (15883761152, 20298458112, 27229292032)),
    (1, 4, "bf16", shape(vocab_size=1000), 2048, {}, (5672783872, 11087481344, 7949176832)),
    (2, 4, "bf16", shape(vocab_size=1000), 2048, {}, (5672783872, 11037243904, 7949176832)),
    (3, 4, "bf16", shape(vocab_size=1000), 2048, {}, (5538415616, 11916141568, 7240062464)),
    (0, 64, "fp16", shape(), 512, {}, (17661412864, 21227084288, 30276703744)),
    (1, 64, "fp16", shape(), 512, {}, (2759602176, 6317527552, 3048366080)),
    (2, 64, "fp16", shape(), 512, {}, (2759602176, 5470235136, 3048366080)),
    (3, 64, "fp16", shape(), 512, {}, (1315574784, 4620016640, 1433660928)),
    (
        1,
        8,
        "bf16",
        shape(num_hidden_layers=30, vocab_size=128256),
        1024,
        {},
        (7234049024, 12634650112, 9826254336),
    ),
    (
        2,
        8,
        "bf16",
        shape(num_hidden_layers=30, vocab_size=128256),
        1024,
        {},
        (7234049024, 11988050944, 9826254336),
    ),
    (
        3,
        8,
        "bf16",
        shape(num_hidden_layers=30, vocab_size=128256),
        1024,
        {},
        (5133997056, 11898119168, 6683899904),
    ),
    (
        1,
        4,
        "bf16",
        shape(vocab_size=4000),
        1024,
        {"reduce_bucket_size": 50_000_000},
        (5734215680, 8626866176, 8041328640),
    ),
    (
        2,
        4,
        "bf16",
        shape(vocab_size=4000),
        1024,
        {"reduce_bucket_size": 50_000_000},
        (5734215680, 8022602240, 8041328640),
    ),
    (
        3,
        4,
        "bf16",
        shape(vocab_size=4000),
        1024,
        {"reduce_bucket_size": 50_000_000},
        (4687559680, 8902323200, 6407638528),
    ),
    (
        1,
        16,
        "bf16",
        shape(vocab_size=4000),
        256,
        {"overlap_comm": True},
        (3153817088, 6469948928, 3728202240),
    ),
    (
        2,
        16,
        "bf16",
        shape(vocab_size=4000),
        256,
        {"overlap_comm": True},
        (3153817088, 6469948928, 3728202240),
    ),
]


def figures() -> list[Any]:
    return [
        pytest.param(*row, id=f"stage{row[0]}-{row[1]}x-{row[2]}-V{row[3].vocab_size}") for row in REHEARSED
    ]


@pytest.mark.parametrize(
    ("stage", "world_size", "precision", "shape", "seq_len", "options", "measured"), figures()
)
def test_agrees_with_the_real_engine(
    stage: int,
    world_size: int,
    precision: str,
    shape: DecoderShape,
    seq_len: int,
    options: dict[str, Any],
    measured: tuple[int, int, int],
) -> None:
    ledger = training_ledger(
        shape,
        zero_stage=stage,
        world_size=world_size,
        micro_batch_size=1,
        seq_len=seq_len,
        precision=precision,
        options=ZeroOptions(**options),
    )
    steady, forward_and_backward, step = measured
    through_backward = max(ledger.phase_bytes(phase) for phase in ("forward", "loss", "backward"))
    assert ledger.steady_bytes == pytest.approx(steady, rel=2e-5)
    assert 0.99 < through_backward / forward_and_backward < 1.06
    assert 0.999 < ledger.phase_bytes("step") / step < 1.011


def ledger_of(**changes: Any) -> Ledger:
    run = {"zero_stage": 2, "world_size": 4, "micro_batch_size": 1, "seq_len": 512} | changes
    return training_ledger(shape(), **run)


def test_the_peak_is_the_largest_phase_and_not_the_sum() -> None:
    ledger = Ledger(
        (
            Term("states", 10, "always", "", ""),
            Term("activations", 5, "forward", "", ""),
            Term("activations", 5, "loss", "", ""),
            Term("logits", 3, "loss", "", ""),
            Term("copies", 6, "step", "", ""),
        )
    )
    assert ledger.steady_bytes == 10
    assert [ledger.phase_bytes(phase) for phase in PHASES] == [10, 15, 18, 10, 16]
    assert (ledger.peak_phase, ledger.peak_bytes) == ("loss", 18)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_that_live_always_are_those_of_the_accounting(stage: int, precision: str) -> None:
    states = state_bytes(precision, stage)
    ledger = ledger_of(zero_stage=stage, precision=precision)
    always = {term.name: term.bytes for term in ledger.terms if term.phase == "always"}
    accounted = model_states(
        shape().num_parameters(tie_word_embeddings=False),
        zero_stage=stage,
        world_size=4,
        bytes_per_parameter=states.parameter,
        bytes_per_gradient=states.gradient,
        optimizer_bytes_per_parameter=states.optimizer,
    )
    assert always["optimizer states"] == pytest.approx(accounted.optimizer_states_bytes, rel=1e-6)
    assert always["parameters"] == pytest.approx(accounted.parameters_bytes, rel=1e-6)
    if stage == 3:
        assert always["gradients"] == pytest.approx(accounted.gradients_bytes, rel=1e-6)


def test_a_long_sequence_peaks_in_the_loss_and_a_small_batch_elsewhere() -> None:
    assert ledger_of(seq_len=8192).peak_phase == "loss"
    assert ledger_of(seq_len=16).peak_phase in ("backward", "step")
    assert ledger_of(zero_stage=0, seq_len=16).peak_phase == "step"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_term_says_where_it_comes_from_in_symbols_and_numbers(stage: int) -> None:
    for term in ledger_of(zero_stage=stage).terms:
        assert term.phase in PHASES
        assert " = " in term.formula
        assert "/" in term.source
        assert term.bytes > 0


@given(
    stage=st.integers(0, 3),
    world_size=st.integers(1, 300),
    seq_len=st.integers(1, 2000),
    precision=st.sampled_from(["bf16", "fp32"]),
    tied=st.booleans(),
    bucket=st.integers(1, 10**9),
)
def test_more_ranks_and_shorter_sequences_never_cost_more(
    stage: int, world_size: int, seq_len: int, precision: str, tied: bool, bucket: int
) -> None:
    def steady_and_peak(ranks: int, tokens: int) -> tuple[int, int]:
        ledger = training_ledger(
            shape(3, 500),
            zero_stage=stage,
            world_size=ranks,
            micro_batch_size=1,
            seq_len=tokens,
            precision=precision,
            tie_word_embeddings=tied,
            options=ZeroOptions(reduce_bucket_size=bucket),
        )
        return ledger.steady_bytes, ledger.peak_bytes

    steady, peak = steady_and_peak(world_size, seq_len)
    # Padding to a multiple of 2N may cost a few elements more.
    assert steady_and_peak(4 * world_size, seq_len)[0] <= steady + 64 * 4 * world_size
    assert steady_and_peak(world_size, seq_len + 1)[1] >= peak >= steady


def test_a_border_parameter_counts_whole_on_both_of_its_ranks() -> None:
    ranks = owned_gradients([6, 8, 6], world_size=2)
    assert [(rank.kept, rank.largest_slice) for rank in ranks] == [(14, 6), (14, 6)]
    assert [rank.kept for rank in owned_gradients([10, 10], world_size=2)] == [10, 10]
    assert [rank.kept for rank in owned_gradients([6, 8, 6], world_size=1)] == [20]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"zero_stage": 5}, "zero_stage"),
        ({"world_size": 0}, "world_size"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"seq_len": -1}, "seq_len"),
        ({"precision": "int8"}, "int8"),
    ],
)
def test_unusable_runs_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ZerokitError, match=named):
        ledger_of(**wrong)
    with pytest.raises(ZerokitError, match="reduce_bucket_size"):
        ZeroOptions(reduce_bucket_size=0)
