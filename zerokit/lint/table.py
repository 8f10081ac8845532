"""The rules as rows of the files `rules/TOPIC.json`: text, examples, and what simple rules find.

A simple rule is a condition on keys, and what to report where it holds.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, islice
from pathlib import Path
from typing import Any

from zerokit.findings import Edit, Remove, SetValue, Severity
from zerokit.lint.condition_words import KINDS_OF_UNUSED_KEYS, condition, keys_of
from zerokit.lint.number_formats import format_at, precision
from zerokit.lint.optimizer_facts import spec
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
    each: str = ""
    """In place of `at`: each key without effect of this kind is reported (`KINDS_OF_UNUSED_KEYS`)."""
    without: str = ""
    """The name of a key that `each` leaves to another row."""
    key: str = ""
    """The key that the message is about, if that is another one."""
    message: str = "'{key}' {reason}"
    """With placeholders: `{key}`, `{value}`, `{reason}` (why the key has no effect), `{by_default}`, facts of
    the run such as `{stage}` and `{gpus}`, attributes of the model, of the cluster and of the optimizer's `spec`
    such as `{model.model_type}`, or any other dotted key for its value; `{value+1}` is the next number."""
    hint: str = "Remove the key"
    remove: str | None = None
    """The key that `--fix` removes; empty: the reported one."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """The keys that `--fix` sets."""
    severity: Severity | None = None
    """None: the rule's."""
    stops: bool = True
    """See :class:`Hit`."""

    def hits(self, subject: Subject) -> Iterator[Hit]:
        """What to report of a config; nothing if it does not have the mistake."""
        if not all(condition(words).holds(subject) for words in self.when):
            return
        if not self.each:
            yield self._hit(subject, keys_of(self.at))
            return
        is_meant = KINDS_OF_UNUSED_KEYS[self.each]
        for path, unused in subject.unused.items():
            if is_meant(unused, subject) and path[-1] != self.without:
                yield self._hit(subject, tuple(map(str, path)))

    def _hit(self, subject: Subject, at: tuple[str, ...]) -> Hit:
        about = keys_of(self.key) or at
        message, hint = (
            _PLACEHOLDER.sub(lambda match: self._word(match, subject, about), text)
            for text in (self.message, self.hint)
        )
        return Hit(subject.nearest_set(*at), message, hint, tuple(self._edits(at)), self.severity, self.stops)

    def _edits(self, at: tuple[str, ...]) -> Iterator[Edit]:
        if self.remove is not None:
            yield Remove(keys_of(self.remove) or at)
        for key, value in self.set.items():
            yield SetValue(keys_of(key), value)

    @staticmethod
    def _word(placeholder: re.Match[str], subject: Subject, path: tuple[str, ...]) -> str:
        """What a placeholder becomes in a message about the key at `path`."""
        name, more, form = placeholder.groups(default="")
        run = subject.run
        match name:
            case "key":
                return path[-1]
            case "reason":
                return subject.unused[path].reason
            case "by_default":
                return "" if subject.is_set(*path) else ", its default,"
            case "format":
                return str(format_at(subject, *path))
            case "precision":
                return str(precision(subject))
            case "stage":
                return str(subject.stage)
            case "gpus":
                return quantity(run.cluster.num_gpus or 0, "GPU")
        first, *attributes = name.split(".")
        if attributes and first in ("model", "cluster", "spec"):
            return str(reduce(getattr, attributes, spec(subject) if first == "spec" else getattr(run, first)))
        value = subject.value(*(path if name == "value" else keys_of(name)))
        value = value + 1 if more else value
        return format_count(value) if form == "count" else format(value, form)


def _check(finds: list[TableFinding], *, first: bool) -> Check:
    """The check by a rule's rows. `first`: the first row that holds is the only one that is reported."""

    def check(subject: Subject) -> Iterator[Hit]:
        hits = chain.from_iterable(finding.hits(subject) for finding in finds)
        return islice(hits, 1) if first else hits

    return check


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
    first: bool = False,
    given: Mapping[str, Any] | None = None,
    needs: Sequence[Need] = (),
    **row: Any,
) -> Rule:
    check, check_launch = CHECKS.get(id), LAUNCH_CHECKS.get(id)
    if check or check_launch:
        row["title"] = (inspect.getdoc(check or check_launch) or "").rstrip(".")
    if finds:
        check = _check([TableFinding(**finding) for finding in finds], first=first)
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
