"""What zerokit's lint says of the ds_config that a rehearsed run ended up with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.documents import dotted
from zerokit.lint import check_config
from zerokit.rehearsal.report import ConfigFinding

_KNOWN_BY_NOW = ("script-optimizer", "script-optimizer-offload")
"""Rules that ask what optimizer the script makes: the run has shown that DeepSpeed takes it."""


def config_findings(
    ds_config: Mapping[str, Any] | None, *, num_gpus: int, gpus_per_node: int, gpu_memory_bytes: int
) -> list[ConfigFinding]:
    """Errors and warnings, in the order of the config.

    Args:
        ds_config: as DeepSpeed read it, with whatever transformers or accelerate had filled in; None if no
            engine was made.
        num_gpus: world size.
        gpus_per_node: GPUs of one node.
        gpu_memory_bytes: memory of one GPU.
    """
    if ds_config is None:
        return []
    report = check_config(
        ds_config,
        target="deepspeed",  # nobody fills anything in any more
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        gpu_memory_bytes=gpu_memory_bytes,
    )
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
