"""Choose the ZeRO stage and offload for a model on given cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zerokit.choices import Target
from zerokit.errors import ZerokitError
from zerokit.estimation.fit import verdict
from zerokit.estimation.request import Question, Runs
from zerokit.memory import estimate
from zerokit.reporting.verdicts import judge
from zerokit.tables import table_of
from zerokit.units import format_bytes, format_span, quantity

_TABLE = table_of(__file__)
_SETTINGS: Sequence[Mapping[str, Any]] = _TABLE["settings"]
"""The fastest first."""
_SEQ_LEN = 2048
_MICRO_BATCH: Mapping[Target, str] = _TABLE["micro_batch"]
"""What the run must have, by the program that fills the micro batch if the file has "auto"."""


class NothingFitsError(ZerokitError):
    """No stage and no offload makes the run fit."""

    exit_code = 1


def choose_zero(question: Question, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The first settings of ZeRO with which a run certainly fits, and the reason in a sentence.

    Args:
        question: the run, with a model shape and a card; see :func:`assumptions`.
        given: devices that must be kept, by ``offload_optimizer`` and ``offload_param``.

    Raises:
        NothingFitsError: none fits.
    """
    memory = question.cluster.gpu_memory_bytes
    assert memory is not None
    longest = getattr(question.model, "max_position_embeddings", None) or _SEQ_LEN
    question = replace(question, seq_len=min(_SEQ_LEN, longest), gradient_checkpointing=True)
    runs = Runs()
    tried: list[str] = []
    for settings in _kept(given):
        fit = verdict(estimate(runs.training_run(replace(question, **settings))), memory)
        needs = format_span(fit.needed_low_bytes, fit.needed_high_bytes)
        if judge(fit.needed_low_bytes, fit.needed_high_bytes, memory) != fit.verdict:
            needs += f", and {fit.host.span} of each host"
        if fit.verdict == "fits":
            rest = f"; {', '.join(tried)}" * bool(tried)
            of_card = f"{needs} of {format_bytes(memory)}{fit.host.condition}"
            return dict(settings), f"{_words(settings)} fits, with {of_card}{rest}"
        tried.append(f"{_words(settings)}: {fit.verdict} ({needs})")
    raise NothingFitsError(
        f"no ZeRO stage and offload fits {quantity(question.cluster.world_size, 'GPU')} of "
        f"{format_bytes(memory)}: {', '.join(tried)}",
        where="--gpu",
        hint="Ask zerokit estimate what else helps, or give --zero-stage",
    )


def assumptions(question: Question) -> str:
    """The sizes that :func:`choose_zero` assumes, in words."""
    longest = getattr(question.model, "max_position_embeddings", None) or _SEQ_LEN
    batch = _MICRO_BATCH[question.target].format(question.micro_batch_size or 1)
    checkpointing = "gradient_checkpointing=True" if question.target == "trainer" else "gradient checkpointing"
    return f"{batch}, {checkpointing} and {min(_SEQ_LEN, longest):,} tokens"


def _kept(given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    wanted = {key: device for key, device in given.items() if device is not None}
    least = 3 if "nvme" in wanted.values() else 1
    for settings in _SETTINGS:
        if wanted.keys() <= settings.keys() and settings["zero_stage"] >= least:
            yield {**settings, **wanted}


def _words(settings: Mapping[str, Any]) -> str:
    names = {"offload_optimizer": "the optimizer", "offload_param": "parameters"}
    places = {"cpu": "on the host", "nvme": "on NVMe"}
    moved = {
        place: " and ".join(name for key, name in names.items() if settings.get(key) == device)
        for device, place in places.items()
    }
    offload = " and ".join(f"{what} {place}" for place, what in moved.items() if what)
    return f"stage {settings['zero_stage']}{f' with {offload}' if offload else ''}"
