"""The findings that a person requests."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from zerokit.errors import ZerokitError, did_you_mean, nearest
from zerokit.findings import SEVERITIES, Finding, Severity
from zerokit.lint.run import Report, all_rules


@dataclass(frozen=True)
class Selection:
    """Some of all rules and severities."""

    only: Collection[str] = ()
    """Rules to report; none: all."""
    disable: Collection[str] = ()
    """Rules not to report."""
    least: Severity = "info"
    """The least severity to report."""

    def __post_init__(self) -> None:
        """Refuse rules that do not exist (ZerokitError)."""
        for option, ids in (("--only", self.only), ("--disable", self.disable)):
            for id in ids:
                if id not in all_rules():
                    near = nearest(id, all_rules())
                    hint = did_you_mean(id, [near]) if near else "'zerokit explain' lists all rules"
                    raise ZerokitError(f"there is no rule '{id}'", where=option, hint=hint)

    def of(self, report: Report) -> Report:
        if not self.only and not self.disable and self.least == SEVERITIES[-1]:
            return report
        return replace(
            report,
            findings=tuple(finding for finding in report.findings if self._has(finding)),
            not_run={rule: needs for rule, needs in report.not_run.items() if self._runs(rule)},
            suppressed=tuple(finding for finding in report.suppressed if self._has(finding)),
        )

    def _has(self, finding: Finding) -> bool:
        shown = SEVERITIES.index(finding.severity) <= SEVERITIES.index(self.least)
        return shown and self._runs(finding.rule)

    def _runs(self, rule: str) -> bool:
        return rule not in self.disable and (not self.only or rule in self.only)
