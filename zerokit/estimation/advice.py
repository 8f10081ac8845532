"""Changes that make a run fit, each estimated, the cheapest first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zerokit.config.base import ZERO
from zerokit.documents import KeyPath, value_at, with_value
from zerokit.errors import ZerokitError
from zerokit.estimation.fit import Fit, verdict
from zerokit.estimation.request import Question, Runs
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.hardware.non_torch_memory import EXPANDABLE_SEGMENTS
from zerokit.memory import Estimate, Lora, estimate
from zerokit.memory.overheads import FRAGMENTATION
from zerokit.memory.settings import settings_of
from zerokit.models.parallelism import SEQUENCE_SIZES
from zerokit.reporting.phases import phase_words
from zerokit.reporting.verdicts import NEGATIVE, judge
from zerokit.units import format_bytes, format_span

_LORA_RANK = 16
_MOST_TIMES_THE_GPUS = 64
_FEW = 3
"""Numbers of GPUs that are tried together with other changes."""
_LONG_ACTIVATIONS = 0.3
"""Share of the peak from which on changes for long sequences are tried."""
_MOST_PARTS = 64
"""Parts of a sequence down to which shorter sequences are tried."""
_LARGE_TERM = 0.05
"""Share of the peak from which on a term is named."""
_WITHOUT_ACTIVATIONS = 0.8
"""Share of a card that a run may need to be called fitting where its activations are not counted."""
_USABLE = 0.98
"""Share of a card that a run may need to be called fitting by avoiding fragmentation alone."""


@dataclass(frozen=True)
class Change:
    what: str
    how: str
    """What to write where."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the question -> their new values."""
    zero_keys: Mapping[KeyPath, Any] = field(default_factory=dict)
    """Keys in the `zero_optimization` of the question's ds_config -> their new values."""
    is_same_training: bool = True
    """Whether the same parameters are trained on as many GPUs and as many tokens."""
    seq_len: int | None = None
    """The tokens to which it shortens sequences."""
    reads_fewer_sequences: bool = False
    """Whether fewer groups of GPUs read sequences of their own."""

    def apply(self, question: Question) -> Question:
        question = replace(question, **self.settings)
        for path, value in self.zero_keys.items():
            question = replace(question, ds_config=with_value(question.ds_config, (ZERO, *path), value))
        return question


@dataclass(frozen=True)
class Advice:
    """Changes that make a run fit together."""

    changes: tuple[Change, ...]
    fit: Fit
    """With the changes."""

    @property
    def is_same_training(self) -> bool:
        """Whether the same parameters are trained on as many GPUs and as many tokens."""
        return all(one.is_same_training for one in self.changes)

    @property
    def seq_len(self) -> int | None:
        """The tokens to which it shortens sequences."""
        return next((one.seq_len for one in self.changes if one.seq_len is not None), None)

    @property
    def line(self) -> str:
        """``"--zero-stage 3: needs 60.10 to 71.40 GiB"``."""
        options = " ".join(one.how for one in self.changes if not one.zero_keys)
        keys = ", ".join(one.how for one in self.changes if one.zero_keys)
        words = " and ".join(filter(None, (options, keys and f"{keys} in the ds_config")))
        words += " (trains adapters only)" * ("--lora-rank" in options)
        words += " (shorter sequences)" * (self.seq_len is not None)
        fewer = any(one.reads_fewer_sequences for one in self.changes)
        words += " (a step reads fewer sequences: accumulate more of them)" * fewer
        needs = format_span(self.fit.needed_low_bytes, self.fit.needed_high_bytes)
        host = self.fit.host
        known = f", and {host.span} of each host" if "offload" in words else ""
        return f"{words}: needs {needs}{host.condition or known}"


_Level = tuple[Change, ...]
"""Alternatives of one kind, from the weakest to the strongest; at most one of them is applied."""


class _Search:
    """Estimates changes of one question."""

    def __init__(self, question: Question, answer: Estimate, fit: Fit, runs: Runs) -> None:
        self._question, self._memory, self._runs = question, fit.gpu_memory_bytes, runs
        self._usable = (1 if answer.activations_counted else _WITHOUT_ACTIVATIONS) * fit.gpu_memory_bytes
        self._known: dict[tuple[str, ...], Fit | None] = {}

    def fit(self, changes: Iterable[Change]) -> Fit | None:
        """None: the changes do not go together."""
        question, names = self._question, []
        for change in changes:
            question = change.apply(question)
            names.append(change.how)
        key = tuple(sorted(names))
        if key not in self._known:
            try:
                self._known[key] = verdict(estimate(self._runs.training_run(question)), self._memory)
            except ZerokitError:
                self._known[key] = None
        return self._known[key]

    def advice(self, changes: tuple[Change, ...]) -> Advice | None:
        """None: the run does not certainly fit with the changes."""
        fit = self.fit(changes)
        if fit is None or fit.verdict != "fits" or fit.needed_high_bytes > self._usable:
            return None
        return Advice(changes, fit)

    def first(self, level: _Level) -> Advice | None:
        """The weakest change of a kind that makes the run fit."""
        strongest = self.fit(level[-1:])
        if strongest is not None and strongest.verdict != "fits":
            return None
        found = (self.advice((change,)) for change in level)
        return next((one for one in found if one is not None), None)

    def combined(self, levels: Iterable[_Level], before: tuple[Change, ...] = ()) -> Advice | None:
        """As few and as cheap changes as make the run fit together, after those `before`."""
        levels = [level for level in levels if level]
        strongest = self.fit((*before, *(level[-1] for level in levels)))
        if strongest is not None and strongest.verdict != "fits":
            return None
        chosen: list[Change] = []
        for level in levels:
            # Each kind at its strongest that is possible, until the run fits.
            for change in reversed(level):
                if self.fit((*before, *chosen, change)) is not None:
                    chosen.append(change)
                    break
            if self.advice((*before, *chosen)) is not None:
                return self._fewest(chosen, levels, before)
        return None

    def _fewest(self, chosen: list[Change], levels: list[_Level], before: tuple[Change, ...]) -> Advice | None:
        """The same without changes that are not needed, and with weaker ones where they are enough."""
        best = self.advice((*before, *chosen))
        for change in chosen[::-1]:  # the most expensive first
            level = next(level for level in levels if change in level)
            place = chosen.index(change)
            for weaker in ((), *((one,) for one in level[: level.index(change)])):
                tried = [*chosen[:place], *weaker, *chosen[place + 1 :]]
                found = self.advice((*before, *tried))
                if found is not None:
                    chosen, best = tried, found
                    break
        return best


def advise(question: Question, answer: Estimate, fit: Fit, runs: Runs | None = None) -> list[Advice]:
    """What makes a run fit that does not, or likely does not: single changes, else combinations."""
    if fit.verdict not in NEGATIVE:
        return []
    runs = runs or Runs()
    question = replace(question, ds_config=runs.settings(question)) if question.ds_config else question
    search = _Search(question, answer, fit, runs)
    levels = list(_levels(question, answer, fit))
    more_gpus = tuple(_more_gpus(question))
    adapter = tuple(_adapters(question, answer))
    found = [_with_fewer_gpus(search, level, levels) or search.first(level) for level in levels]
    if not any(found):
        found = [search.combined(levels)]
    found.append(search.first(adapter) or _with_others(search, adapter, levels))
    on_gpus = [level for level in levels if level and "offload" not in level[0].how]
    found.append(search.first(more_gpus) or _with_others(search, more_gpus[:_FEW], on_gpus))
    if not any(one is not None and one.is_same_training for one in found):
        shorter = tuple(_shorter(question, answer))
        found.append(_with_others(search, shorter, levels) or search.first(shorter))
    # What needs a host of unknown size comes last.
    return sorted((one for one in found if one is not None), key=lambda one: one.fit.host.is_condition)


def _with_fewer_gpus(search: _Search, level: _Level, levels: list[_Level]) -> Advice | None:
    """Fewer GPUs for each sequence than sequence parallelism needs by itself, with changes that cost no GPUs."""
    if (alone := search.first(level)) is None or "--sequence-parallel" not in alone.line:
        return None
    cheap = [other for other in levels if other and other[0].how in ("--chunked-loss", "--tiled-mlp")]
    return _with_others(search, level[: level.index(alone.changes[0])], cheap)


def _with_others(search: _Search, level: _Level, others: list[_Level]) -> Advice | None:
    """The weakest change of a kind that makes the run fit together with others."""
    return next((one for one in (search.combined(others, (change,)) for change in level) if one), None)


def _levels(question: Question, answer: Estimate, fit: Fit) -> Iterator[_Level]:
    """Changes that keep what is trained and the GPUs, the cheapest first."""
    run = answer.run
    stage = run.zero_stage
    if answer.activations_counted and question.chunked_loss is None:
        yield (Change("loss in chunks", "--chunked-loss", {"chunked_loss": "zerokit"}),)
    if answer.activations_counted:
        yield tuple(_smaller_batches(run.micro_batch_size or 1, run.gradient_accumulation_steps or 1))
    if answer.activations_counted and not question.gradient_checkpointing:
        yield (Change("gradient checkpointing", "--gradient-checkpointing", {"gradient_checkpointing": True}),)
    if question.lora is not None and not question.load_in_4bit:
        yield (Change("weights in 4 bits", "--load-in-4bit", {"load_in_4bit": True}),)
    if run.world_size > 1 and question.zero_stage != "none":
        yield tuple(_zero(question, "zero_stage", "stage", higher) for higher in range(stage + 1, 4))
    if _is_long(answer):
        if not question.tiled_mlp:
            yield (Change("MLPs in tiles", "--tiled-mlp", {"tiled_mlp": True}),)
        if not question.load_in_4bit:  # zerokit train refuses ZeRO-3 with it
            yield tuple(_sequence_parallelism(question))
        if not question.activation_offloading:
            what = "inputs of checkpointed layers on the host"
            yield (Change(what, "--activation-offloading", {"activation_offloading": True}),)
    if fit.host.verdict in NEGATIVE:
        yield tuple(_unpinned(question))
        yield tuple(_on_gpus(question, answer))
    elif question.zero_stage != "none":
        yield tuple(_offload(question, stage, answer))


def _sequence_parallelism(question: Question) -> Iterator[Change]:
    """More ranks of a node for each sequence, in place of tensor parallelism, with which it does not go."""
    now, local = question.parallelism, question.cluster.local_ranks
    instead = " without --tensor-parallel" * (now.tensor > 1)
    for size in (size for size in SEQUENCE_SIZES if size > now.sequence and local % size == 0):
        what, how = f"sequence parallelism over {size} GPUs", f"--sequence-parallel {size}{instead}"
        fewer = size > now.group_size
        yield Change(what, how, {"parallelism": Parallelism(sequence=size)}, reads_fewer_sequences=fewer)


def _smaller_batches(batch: int, steps: int) -> Iterator[Change]:
    for smaller in (size for size in range(batch - 1, 0, -1) if batch % size == 0):
        more = steps * batch // smaller
        how = f"--micro-batch-size {smaller} --gradient-accumulation-steps {more}"
        settings = {"micro_batch_size": smaller, "gradient_accumulation_steps": more}
        yield Change(f"micro batch {smaller}", how, settings)


def _shorter(question: Question, answer: Estimate) -> Iterator[Change]:
    """Sequences of a half, a quarter, ..., where activations are a large part of the peak."""
    parts = 2
    while _is_long(answer) and answer.run.seq_len and parts <= _MOST_PARTS:
        tokens = answer.run.seq_len // parts
        yield Change(
            f"sequences of {tokens:,} tokens",
            f"--seq-len {tokens}",
            {"seq_len": tokens},
            is_same_training=False,
            seq_len=tokens,
        )
        parts *= 2


def _is_long(answer: Estimate) -> bool:
    """Whether activations are a large part of the peak."""
    held = sum(term.bytes for term in answer.device.terms_at_peak if term.category == "activations")
    return held > _LONG_ACTIVATIONS * answer.device.peak_bytes


def _zero(question: Question, option: str, key: str, value: Any, what: str = "") -> Change:
    """A change of an option, or of the key of `zero_optimization` if there is a ds_config."""
    what = what or f"ZeRO stage {value}"
    if question.ds_config is None:
        how = f"--{option.replace('_', '-')} {value}"
        return Change(what, how, {option: value})
    written = value if key == "stage" else {"device": value}
    return _written(what, (key,), written)


def _written(what: str, path: tuple[str, ...], value: Any) -> Change:
    """A change of a key in `zero_optimization` of a ds_config."""
    how = json.dumps(with_value({}, (ZERO, *path), value))[1:-1]
    return Change(what, how, zero_keys={path: value})


def _offload(question: Question, stage: int, answer: Estimate) -> Iterator[Change]:
    """Offload to the host, of the optimizer and then of parameters, too, in the stage that it needs."""
    places = {line.name: line.where for line in answer.model_states.each}
    parameters = _zero(question, "offload_param", "offload_param", "cpu", "parameters on the host")
    if places["optimizer states"] != "GPU":
        if places["parameters"] == "GPU" and stage == 3:
            yield parameters
        return
    optimizer = _zero(question, "offload_optimizer", "offload_optimizer", "cpu", "optimizer on the host")
    staged = None
    for least in sorted({max(stage, 1), max(stage, 2), 3}):
        staged = _zero(question, "zero_stage", "stage", least) if least != stage else None
        yield _joined(staged, optimizer)
    yield _joined(staged, optimizer, parameters)


def _joined(*changes: Change | None) -> Change:
    each = [one for one in changes if one is not None]
    separator = ", " if each[0].zero_keys else " "
    return Change(
        " and ".join(one.what for one in each),
        separator.join(one.how for one in each),
        {name: value for one in each for name, value in one.settings.items()},
        {path: value for one in each for path, value in one.zero_keys.items()},
    )


def _unpinned(question: Question) -> Iterator[Change]:
    """Offload without pinned memory, which DeepSpeed's allocator rounds up to powers of two."""
    for key in ("offload_optimizer", "offload_param"):
        path = (key, "pin_memory")
        if question.ds_config is not None and value_at(question.ds_config, (ZERO, *path), False) is True:
            yield _written("no pinned memory on the host", path, False)


def _on_gpus(question: Question, answer: Estimate) -> Iterator[Change]:
    """Without offload, of parameters and then of the optimizer, too."""
    places = {line.name: line.where for line in answer.model_states.each}
    found: list[Change] = []
    for key, states in (("offload_param", "parameters"), ("offload_optimizer", "optimizer states")):
        if places[states] == "GPU":
            continue
        what, option = f"{states} on the GPUs", f"without --{key.replace('_', '-')}"
        in_file = question.ds_config is not None
        found.append(_written(what, (key, "device"), "none") if in_file else Change(what, option, {key: None}))
        yield _joined(*found)


def _more_gpus(question: Question) -> Iterator[Change]:
    times = 2
    while times <= _MOST_TIMES_THE_GPUS and question.zero_stage not in (0, "none"):
        cluster = question.cluster
        number = cluster.world_size * times
        per_node = cluster.gpus_per_node if number <= cluster.gpus_per_node else cluster.local_ranks
        larger = Cluster(number, per_node, cluster.gpu, cluster.host_bytes)
        yield Change(f"{number:,} GPUs", f"--num-gpus {number}", {"cluster": larger}, is_same_training=False)
        times *= 2


def _adapters(question: Question, answer: Estimate) -> Iterator[Change]:
    """LoRA in place of all parameters, which trains something else."""
    if question.num_trainable_parameters is not None or question.frozen_modules or isinstance(answer.run.model, int):
        return
    if any((question.lora, question.ia3, question.learned_tokens)):
        return
    how, settings = f"--lora-rank {_LORA_RANK}", {"lora": Lora(_LORA_RANK)}
    yield Change("LoRA in place of all parameters", how, settings, is_same_training=False)
    if answer.run.zero_stage < 3:
        what = "LoRA on weights in 4 bits in place of all parameters"
        in_4_bits = {**settings, "load_in_4bit": True}
        yield Change(what, f"{how} --load-in-4bit", in_4_bits, is_same_training=False)


def plain_torch(question: Question, answer: Estimate, runs: Runs) -> Estimate | None:
    """The estimate without DeepSpeed of a full fine-tuning in bf16 under stage 0."""
    settings = settings_of(answer.run)
    adapts = answer.num_trainable_parameters < answer.num_parameters
    if question.zero_stage != 0 or settings.precision != "bf16" or adapts:
        return None
    return estimate(runs.training_run(replace(question, zero_stage="none")))


def advice_lines(advice: list[Advice], answer: Estimate, fit: Fit) -> Iterator[str]:
    """Lines for a terminal: what would make the run fit, and what is not estimated."""
    if fit.verdict == "fits":
        return
    fragmentation = sum(term.high - term.low for term in answer.overheads if term.name == FRAGMENTATION.name)
    without, memory = fit.needed_high_bytes - fragmentation, fit.gpu_memory_bytes
    of_gpu = judge(fit.needed_low_bytes, fit.needed_high_bytes, memory)
    if of_gpu != "fits" and fit.needed_low_bytes <= memory and without <= _USABLE * memory:
        yield (
            f"Without fragmentation it needs at most {format_bytes(without)}, which fits: "
            f"set {EXPANDABLE_SEGMENTS}, which avoids most of it"
        )
    if fit.verdict not in NEGATIVE:
        return
    if advice:
        yield "It fits with one of these, estimated, the cheapest first:"
    for one in advice:
        yield f"  {one.line}"
    if not advice:
        yield "It does not fit with any change that zerokit estimates: take larger cards or a smaller model"


def peak_line(answer: Estimate) -> str:
    """The largest terms of the peak on the GPU."""
    peak = answer.device.peak_bytes
    terms = [term for term in answer.device.terms_at_peak if term.bytes >= _LARGE_TERM * peak][:_FEW]
    named = ", ".join(f"{term.name} {format_bytes(term.bytes)}" for term in terms)
    return f"At the GPU's peak, in {phase_words(answer.device.peak_phase)}: {named}"
