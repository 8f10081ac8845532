"""Findings of zerokit's lint on the ds_config that a rehearsed run used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.console import note
from zerokit.documents import dotted
from zerokit.hardware.cluster import Cluster
from zerokit.lint import check_config
from zerokit.rehearsal.recording import RankFacts
from zerokit.rehearsal.report.report import ConfigFinding
from zerokit.resolving.run import Run

_KNOWN_BY_NOW = ("script-optimizer", "script-optimizer-offload")
"""Rules about the optimizer that the script makes: the run has shown that DeepSpeed accepts it."""


def config_findings(ds_config: Mapping[str, Any] | None, cluster: Cluster) -> list[ConfigFinding]:
    """Errors and warnings, in the order of the config.

    Args:
        ds_config: as DeepSpeed read it, with whatever transformers or accelerate had filled in; None if no
            engine was made.
        cluster: what it was rehearsed on.
    """
    if ds_config is None:
        return []
    report = check_config(
        ds_config, Run(target="deepspeed", cluster=cluster)
    )  # nobody fills anything any more
    return [
        ConfigFinding(
            rule=finding.rule,
            severity=finding.severity,
            path=dotted(finding.path),
            message=finding.message,
            hint=finding.hint,
        )
        for finding in report.findings
        if finding.severity != "info" and finding.rule not in _KNOWN_BY_NOW
    ]


def print_config_errors(facts: RankFacts | None, cluster: Cluster) -> None:
    """Print errors in the ds_config of a run that failed on stderr, as far as something was recorded."""
    if facts is None:
        return
    for found in config_findings(facts.refused_ds_config or facts.ds_config, cluster):
        if found.severity == "error":
            note(str(found))
