"""The rules as rows of the files `rules/TOPIC.json`: text, examples, and what simple rules find.

A simple rule is a condition on keys, and what to report where it holds.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.findings import Edit, Remove, SetValue, Severity
from zerokit.lint.condition_words import condition, keys_of
from zerokit.lint.rule import CHECKS, LAUNCH_CHECKS, RULES, TOPICS, Check, Hit, Need, Rule, add
from zerokit.lint.subject import Subject
from zerokit.units import format_count, quantity

_PLACEHOLDER = re.compile(r"\{([\w.]+)(\+1)?(?::([^}]+))?\}")


@dataclass(frozen=True, kw_only=True)
class TableFinding:
    """What a row reports, and when."""

    when: list[str]
    """Conditions that must all hold, by their words (`condition_words`)."""
    at: str = ""
    """The dotted key to report. If the file lacks it, the nearest section that the file has is reported."""
    key: str = ""
    """The key that the message is about, if that is another one."""
    message: str = "'{key}' {reason}"
    """With placeholders: `{key}`, `{value}`, `{reason}` (why the key has no effect), facts of the run such as
    `{stage}` and `{gpus}`, or any dotted key for its value; `{value+1}` is the next
    number."""
    hint: str = "Remove the key"
    remove: str | None = None
    """The key that `--fix` removes; empty: the reported one."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """The keys that `--fix` sets."""
    severity: Severity | None = None
    """None: the rule's."""

    def holds(self, subject: Subject) -> bool:
        """Whether the config has the mistake."""
        return all(condition(words).holds(subject) for words in self.when)

    def hit(self, subject: Subject) -> Hit:
        """What to report of a config that has the mistake."""
        message, hint = (self._filled(text, subject) for text in (self.message, self.hint))
        place = subject.nearest_set(*keys_of(self.at))
        return Hit(place, message, hint, tuple(self._edits()), self.severity)

    def _edits(self) -> Iterator[Edit]:
        if self.remove is not None:
            yield Remove(keys_of(self.remove or self.at))
        for key, value in self.set.items():
            yield SetValue(keys_of(key), value)

    def _filled(self, text: str, subject: Subject) -> str:
        return _PLACEHOLDER.sub(lambda match: self._word(match, subject), text)

    def _word(self, placeholder: re.Match[str], subject: Subject) -> str:
        name, more, form = placeholder.groups(default="")
        path, run = keys_of(self.key or self.at), subject.run
        match name:
            case "key":
                return path[-1]
            case "reason":
                return subject.unused[path].reason
            case "stage":
                return str(subject.stage)
            case "num_gpus":
                return str(run.cluster.num_gpus)
            case "gpus_per_node":
                return str(run.cluster.gpus_per_node)
            case "gpus":
                return quantity(run.cluster.num_gpus or 0, "GPU")
            case "gpu":
                return str(run.cluster.gpu and run.cluster.gpu.name)
            case "model":
                return str(run.model and run.model.name)
            case "quantization":
                return str(run.model and run.model.quantization)
        value = subject.value(*(path if name == "value" else keys_of(name)))
        value = value + 1 if more else value
        return format_count(value) if form == "count" else format(value, form)


def _check(finds: list[TableFinding]) -> Check:
    def check(subject: Subject) -> Iterator[Hit]:
        return (finding.hit(subject) for finding in finds if finding.holds(subject))

    return check


def _title(check: Any) -> str:
    return (inspect.getdoc(check) or "").rstrip(".")


def register_table(folder: Path) -> None:
    """Put the rules of all topics on the list, in the order of the files `TOPIC.json`.

    What a rule finds is in its row (`finds`), or a function finds it (`rule`, `launch_rule`), which has the
    title. A row with neither describes what other code finds.

    Raises:
        ValueError: a function checks a rule that no row describes.
    """
    for topic in TOPICS:
        for row in json.loads((folder / f"{topic}.json").read_text(encoding="utf-8")):
            add(_rule(topic, **row))
    lost = {*CHECKS, *LAUNCH_CHECKS} - {*RULES}
    if lost:
        raise ValueError(f"no row describes the rule '{min(lost)}'")


def _rule(
    topic: str,
    *,
    id: str,
    text: list[str],
    finds: Sequence[Mapping[str, Any]] = (),
    given: Mapping[str, Any] | None = None,
    needs: Sequence[Need] = (),
    **row: Any,
) -> Rule:
    check, check_launch = CHECKS.get(id), LAUNCH_CHECKS.get(id)
    if check or check_launch:
        row["title"] = _title(check or check_launch)
    if finds:
        check = _check([TableFinding(**finding) for finding in finds])
    return Rule(
        id=id,
        topic=topic,
        text="\n\n".join(text),
        given=given or {},
        needs=tuple(needs),
        check=check,
        check_launch=check_launch,
        **row,
    )
