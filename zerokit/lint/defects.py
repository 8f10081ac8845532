"""Known defects of DeepSpeed that a ds_config brings about, and changes of meaning between its releases.

The table is `defects.json`; ``tools/deepspeed_surface/evidence.py`` has, under the same ids, the first
releases with the faulty and with the fixed lines. Rows whose source ends with "measured" were also
reproduced by training a small model. `changes` are settings that a release reads otherwise than the newest,
where no key, default or bound shows it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Literal, NamedTuple

from zerokit.config.base import ZERO
from zerokit.config.conditions import Condition
from zerokit.documents import KeyPath
from zerokit.findings import Severity
from zerokit.lint.condition_words import condition, keys_of
from zerokit.lint.subject import Subject
from zerokit.releases.versions import Span, Version, parse_span, parse_version
from zerokit.tables import table_of

Harm = Literal["wrong results", "crash", "stuck", "memory", "speed"]


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
    better: str = ""
    """The release to advise, where the first without the defect has a related one."""
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
        return version in self.span

    def met_at(self, subject: Subject) -> KeyPath | None:
        """Where a config meets it: the key, or the nearest section that the file has; None if it does not."""
        if self.when is None or not self.when.holds(subject):
            return None
        return subject.nearest_set(*keys_of(self.at))

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
        release = self.better or self.span.until
        ways = [f"use DeepSpeed {release} or later"] if release is not None else []
        if self.better and self.span.until is not None:
            ways[0] += f" ({self.span.until} fixes this one only)"
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


def _all(words: list[str]) -> Condition:
    return reduce(and_, map(condition, words))


_TABLE = table_of(__file__)

KNOWN_DEFECTS: dict[str, Defect] = {
    row["id"]: Defect(**{**row, "when": _all(row["when"]) if "when" in row else None}) for row in _TABLE["defects"]
}
"""By id. The ids are unique and stay."""

CHANGES: dict[str, Change] = {
    row.pop("id"): Change(**{**row, "since": parse_version(row["since"]), "when": _all(row["when"])})
    for row in _TABLE["changes"]
}
"""By id, oldest first."""
