"""The letters of formulas, and what they stand for in one run."""

from __future__ import annotations

from typing import NamedTuple

from zerokit.memory.estimate import Estimate
from zerokit.memory.gpu import sizes_of_run
from zerokit.memory.settings import settings_of


class Letter(NamedTuple):
    """A letter's number in one run."""

    number: int
    meaning: str


def letters_of(answer: Estimate) -> dict[str, Letter]:
    """All letters that the formulas of `answer` have; widths where activations are counted."""
    settings, sizes = settings_of(answer.run), sizes_of_run(answer.run, settings_of(answer.run))
    letters = {
        "Φ": Letter(answer.num_parameters, "parameters"),
        "Φₜ": Letter(answer.num_trainable_parameters, "trained parameters"),
        "N": Letter(settings.world_size, "GPUs"),
        "e": Letter(settings.parameter_bytes, "bytes of a parameter or an activation"),
        "g": Letter(settings.accumulation_bytes, "bytes of a gradient while it is accumulated"),
        "c": Letter(settings.communication_bytes, "bytes of a gradient while it is reduced"),
        "m": Letter(settings.master_bytes, "bytes of a master weight"),
        "k": Letter(settings.state_bytes, "bytes of the optimizer's moments of a parameter"),
        "t": Letter(settings.temporary_bytes, "bytes that the optimizer's step makes for a parameter"),
        "reduce_bucket_size": Letter(settings.reduce_bucket, "elements of a bucket of gradients"),
    }
    if packed := answer.model_states.parameters.packed_bytes:
        unpacked = answer.model_states.parameters.elements
        letters["Φ₄"] = Letter(answer.num_parameters - unpacked, "parameters in 4 bits")
        letters["w"] = Letter(packed, "bytes of the weights in 4 bits")
    if sizes is not None:
        letters |= {
            "b": Letter(sizes.batch, "sequences of a micro batch"),
            **_evaluated(answer),
            "s": Letter(sizes.seq, "tokens of a sequence"),
            "V": Letter(sizes.vocabulary, "words of the vocabulary"),
            "h": Letter(sizes.h, "hidden size"),
            "f": Letter(sizes.f, "width of the feed-forward layer"),
            "q": Letter(sizes.q, "width of all queries"),
            "kv": Letter(sizes.kv, "width of all keys, and of all values"),
            "a": Letter(sizes.a, "attention heads"),
        }
    return letters


def _evaluated(answer: Estimate) -> dict[str, Letter]:
    batch = answer.run.eval_batch_size
    return {} if batch is None else {"bₑ": Letter(batch, "sequences of a batch of evaluation")}
