"""The memory of a training step as a ledger: named terms, phases, and the peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from zerokit.memory.decoder import DecoderShape
from zerokit.memory.model_states import check_positive
from zerokit.memory.phases import (
    Run,
    always_terms,
    backward_terms,
    forward_terms,
    loss_terms,
    step_terms,
)
from zerokit.memory.precision import state_bytes
from zerokit.memory.term import Phase, Term, total_bytes
from zerokit.memory.zero_buffers import ZeroOptions


@dataclass(frozen=True)
class Ledger:
    """All terms of one GPU; the phases follow each other, so the peak is the largest of them."""

    terms: tuple[Term, ...]

    @property
    def steady_bytes(self) -> int:
        """What lives between two steps, from the end of the first on."""
        return total_bytes(term for term in self.terms if term.phase == "always")

    def phase_bytes(self, phase: Phase) -> int:
        """What is held at the largest moment of `phase`, what lives always included."""
        own = total_bytes(term for term in self.terms if term.phase == phase)
        return self.steady_bytes + (own if phase != "always" else 0)

    @property
    def peak_phase(self) -> Phase:
        """The phase with the most bytes; the earlier of two that are equal."""
        phases: tuple[Phase, ...] = get_args(Phase)
        return max(phases, key=self.phase_bytes)

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once."""
        return self.phase_bytes(self.peak_phase)


def training_ledger(
    shape: DecoderShape,
    *,
    zero_stage: int,
    world_size: int,
    micro_batch_size: int,
    seq_len: int,
    precision: str = "bf16",
    tie_word_embeddings: bool = False,
    options: ZeroOptions | None = None,
) -> Ledger:
    """The ledger of full training of a Llama-type decoder with Adam under ZeRO, without offload.

    Covers bytes that torch's allocator hands out: not the CUDA context, NCCL, or fragmentation. Assumes one
    parameter group, SDPA attention, no activation checkpointing, one micro batch per step, DeepSpeed's
    FusedAdam, and gradients accumulated in the parameters' dtype.

    Args:
        shape: the decoder's sizes.
        zero_stage: 0 to 3.
        world_size: N, the data-parallel ranks.
        micro_batch_size: sequences per GPU and forward pass.
        seq_len: tokens per sequence.
        precision: "bf16", "fp16" or "fp32".
        tie_word_embeddings: the output layer shares the embedding's weight.
        options: buffer sizes; DeepSpeed's defaults if None.

    Raises:
        ZerokitError: a size that is not positive, or an unknown stage or precision.
    """
    check_positive(world_size=world_size, micro_batch_size=micro_batch_size, seq_len=seq_len)
    run = Run(
        shape=shape,
        tie_word_embeddings=tie_word_embeddings,
        zero_stage=zero_stage,
        world_size=world_size,
        micro_batch_size=micro_batch_size,
        seq_len=seq_len,
        states=state_bytes(precision, zero_stage),
        options=options or ZeroOptions(),
    )
    phases = (always_terms, forward_terms, loss_terms, backward_terms, step_terms)
    return Ledger(tuple(term for terms in phases for term in terms(run)))
