"""Known defects of DeepSpeed that a ds_config brings about, and changes of meaning between its releases.

The table is `defects.json`. It has only what DeepSpeed itself does wrong and what the sources of the releases
show: ``tools/deepspeed_surface/evidence.py`` says, under the same ids, where the faulty and the fixed lines
first appear. Rows whose source ends with "measured" were also reproduced by training a small model with the
releases on both sides.

`changes` are settings that a release reads otherwise than the newest, where no key, default or bound shows
it. Defaults that changed are with their keys, see :func:`zerokit.releases.versions.default_at`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zerokit.config.base import ZERO, Section
from zerokit.config.conditions import TORCH_FP32, Condition, bf16_optimizer
from zerokit.documents import KeyPath, from_dotted
from zerokit.findings import Severity
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    SCHEDULER,
    optimizer_argument,
    optimizer_name,
    schedule_argument,
    schedule_name,
    torch_adam,
)
from zerokit.lint.subject import Subject
from zerokit.releases.versions import Span, Version, parse_span, parse_version

Harm = Literal["wrong results", "crash", "stuck", "memory", "speed"]


def condition(words: str) -> Condition:
    """The condition that a text of the table names, such as "ZeRO stage 1 or 2" or "`fp16.enabled` false".

    Raises:
        KeyError: no condition has these words.
    """
    test = _NAMED.get(words)
    if test is None and " or " in words and all(part in _NAMED for part in words.split(" or ")):
        return reduce(or_, map(condition, words.split(" or ")))
    if test is None:
        found = ((make, re.fullmatch(pattern, words)) for pattern, make in _PATTERNS.items())
        test = next((make(*match.groups()) for make, match in found if match), None)
    if test is None:
        raise KeyError(words)
    known, counts_gpus = test, words == "more than one GPU"
    return Condition(words, lambda subject, path: bool(known(subject)), counts_gpus=counts_gpus)


Test = Callable[[Subject], Any]


def _keys(name: str) -> tuple[str, ...]:
    return tuple(map(str, from_dotted(name)))


def _has_value(name: str, value: str | None) -> Test:
    """Whether the key has the value, by itself or by default. None: it is true, or a section that is
    there."""
    if value is None:
        return lambda subject: (found := subject.value(*_keys(name))) is True or isinstance(found, Section)
    wanted: Any = {"true": True, "false": False}.get(value, value)
    return lambda subject: subject.value(*_keys(name)) == wanted


def _is_above(name: str, least: str) -> Test:
    """Whether the key has a larger number, by itself or by the recipe where it is "auto"."""

    def test(subject: Subject) -> bool:
        number = subject.value(*_keys(name))
        if number is None and subject.is_set(*_keys(name), to="auto"):
            number = _training(subject, name)
        return isinstance(number, int) and number > int(least)

    return test


def _training(subject: Subject, name: str) -> Any:
    return None if subject.run.recipe is None else subject.run.recipe.training.get(name)


def _fused_adam(subject: Subject) -> bool:
    plain = optimizer_name(subject) in ("adam", "adamw") and not torch_adam(subject)
    return plain and subject.offloads_optimizer is False


def _more_than_an_int_counts(subject: Subject) -> bool:
    ranks, model = 1 if subject.stage == 0 else subject.cluster.num_gpus, subject.run.model
    return model is not None and ranks is not None and model.num_parameters // ranks > 2**31 - 1


def _all_steps_warm_up(subject: Subject) -> bool:
    total = schedule_argument(subject, "total_num_steps")
    return isinstance(total, int) and total == schedule_argument(subject, "warmup_num_steps")


def _has_lists(subject: Subject) -> bool:
    params = subject.written_value(*SCHEDULER)
    return isinstance(params, Mapping) and any(isinstance(value, list) for value in params.values())


_NAMED: Mapping[str, Test] = {
    "bf16": lambda subject: subject.value("bf16", "enabled") is True,
    "fp16": lambda subject: subject.value("fp16", "enabled") is True,
    "more than one GPU": lambda subject: subject.cluster.num_gpus is None or subject.cluster.num_gpus > 1,
    "`offload_optimizer`": lambda subject: subject.offloads_optimizer,
    "no `offload_optimizer`": lambda subject: subject.offloads_optimizer is False,
    "offload to NVMe": lambda subject: "nvme" in map(subject.device, ("offload_optimizer", "offload_param")),
    "`data_types.grad_accum_dtype` fp32": lambda subject: (
        subject.value("data_types", "grad_accum_dtype") in TORCH_FP32
    ),
    "bf16, ZeRO stage 1, `data_types.grad_accum_dtype` fp32, no `offload_optimizer`": bf16_optimizer,
    "`gradient_clipping` above 0 in the file": lambda subject: (
        subject.is_set("gradient_clipping") and subject.value("gradient_clipping")
    ),
    "`peft` in the recipe": lambda subject: subject.run.recipe and subject.run.recipe.peft is not None,
    "`peft.modules_to_save` in the recipe": lambda subject: (
        subject.run.recipe and (subject.run.recipe.peft or {}).get("modules_to_save")
    ),
    "a mixture of experts": lambda subject: subject.run.model and subject.run.model.experts is not None,
    "DeepSpeed's Adam or AdamW on the GPU": _fused_adam,
    "an optimizer other than DeepSpeed's Adam or AdamW on the GPU": lambda subject: not _fused_adam(subject),
    "more than 2^31 - 1 parameters on a GPU": _more_than_an_int_counts,
    "a rate of the optimizer other than 0.001": lambda subject: (
        subject.is_set(*OPTIMIZER, "lr") and optimizer_argument(subject, "lr") not in (None, 0.001)
    ),
    "a schedule": schedule_name,
    "lists among `scheduler.params`": _has_lists,
    "`total_num_steps` equal to `warmup_num_steps`": _all_steps_warm_up,
    "`cycle_first_stair_count` or `cycle_second_stair_count`": lambda subject: (
        schedule_argument(subject, "cycle_first_stair_count")
        or schedule_argument(subject, "cycle_second_stair_count")
    ),
}
"""Conditions by their words, where these follow no pattern."""

_PATTERNS: Mapping[str, Callable[..., Test]] = {
    r"ZeRO stage ([\d, or]+)": lambda stages: lambda subject: str(subject.stage) in re.findall(r"\d", stages),
    r"the optimizer (\w+)": lambda name: lambda subject: optimizer_name(subject) == name.lower(),
    r"the schedule (.+)": lambda names: lambda subject: schedule_name(subject) in names.split(" or "),
    r"`training\.(\w+)` in the recipe": lambda name: lambda subject: _training(subject, name) is True,
    r"no `([\w.]+)`": lambda name: lambda subject: subject.is_absent(*_keys(name)),
    r"`([\w.]+)` above (\d+)": _is_above,
    r"`([\w.]+)`(?: (\w+))?": _has_value,
}
"""Patterns of the other words -> the test, by what the pattern's groups match."""


def _all(words: list[str] | None) -> Condition | None:
    return reduce(and_, map(condition, words)) if words else None


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One defect: what it is, which releases have it, which configs meet it, what to do."""

    id: str
    """A short stable name."""
    releases: str
    """The first that has it .. the first without it. Left out: older than all supported, or the newest has
    it still."""
    harm: Harm
    summary: str
    """What goes wrong, without a full stop."""
    source: str
    """DeepSpeed's issues and pull requests or the place in its sources, and whether it was measured."""
    when: Condition | None = None
    """What in a config brings it about; None where no config shows it."""
    beyond: str = ""
    """What must hold too, which no config shows."""
    at: str = f"{ZERO}.stage"
    """The key to report, dotted."""
    sometimes: bool = False
    """Whether it need not happen when all conditions hold, such as a race."""
    instead: str = ""
    """What helps other than another release."""
    severity: Severity | None = None
    """None: error if it always happens and does harm, else warning."""
    rule: str = ""
    """The rule that finds it: a defect of the newest release needs no version to be reported."""

    @cached_property
    def span(self) -> Span:
        """The releases that have it."""
        return parse_span(self.releases)

    def affects(self, version: Version) -> bool:
        """Whether a release has it."""
        return version in self.span

    def met_at(self, subject: Subject) -> KeyPath | None:
        """Where a config meets it: the key, or the nearest section that the file has; None if it does not."""
        if self.when is None or not self.when.holds(subject):
            return None
        path = _keys(self.at)
        return next(path[:end] for end in range(len(path), -1, -1) if not end or subject.is_set(*path[:end]))

    def severity_in(self, subject: Subject) -> Severity:
        """How bad it is for a config that meets it."""
        if self.when is not None and self.when.counts_gpus and subject.cluster.num_gpus is None:
            return "warning"
        if self.severity is not None:
            return self.severity
        costs_only = self.harm in ("memory", "speed")
        return "warning" if self.sometimes or costs_only else "error"

    @property
    def advice(self) -> str:
        """What to do, without a full stop."""
        ways = [f"use DeepSpeed {self.span.until} or later"] if self.span.until is not None else []
        ways += [self.instead] if self.instead else []
        text = ", or ".join(ways) or "leave this setting out"
        return text[0].upper() + text[1:]

    @property
    def page(self) -> str:
        """All of it, in Markdown."""
        return f"# {self.id}\n\n{self.summary}.\n\n" + "".join(f"- {line}\n" for line in self._facts())

    def _facts(self) -> Iterator[str]:
        since, until = self.span.since, self.span.until
        if until is None:
            yield f"Releases: from {since} on, the newest too"
        else:
            yield f"Releases: {f'from {since} on, and ' if since else ''}before {until}, which fixes it"
        if self.when is not None:
            yield f"When: {self.when.words}"
        if self.beyond:
            yield f"{'And' if self.when is not None else 'When'}: {self.beyond}"
        yield f"Harm: {self.harm}, {'not ' * self.sometimes}always"
        if self.rule:
            yield f"The rule {self.rule} finds it, whatever the release"
        elif self.when is None:
            yield "No config shows it"
        yield f"What helps: {self.advice}"
        yield f"Source: {self.source}"


class Change(NamedTuple):
    """A setting that a release reads otherwise than the newest."""

    since: Version
    """The first release that behaves as today's."""
    before: str
    """What older releases do, without a full stop."""
    when: Condition
    at: str
    """The key to report, dotted; empty for none."""
    severity: Severity
    """How bad the older behaviour is."""
    source: str
    """DeepSpeed's pull request."""


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

KNOWN_DEFECTS: dict[str, Defect] = {
    row["id"]: Defect(**{**row, "when": _all(row.get("when"))}) for row in _TABLE["defects"]
}
"""By id. The ids are unique and stay."""

CHANGES: dict[str, Change] = {
    row.pop("id"): Change(
        **{**row, "since": parse_version(row["since"]), "when": reduce(and_, map(condition, row["when"]))}
    )
    for row in _TABLE["changes"]
}
"""By id, oldest first."""
