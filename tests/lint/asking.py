"""What the rules say of a config, for tests that ask about one rule at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zerokit.lint.rules  # noqa: F401 - registers them
from tests.json_data import load_json
from zerokit.findings import Finding
from zerokit.lint import RULES, check_config
from zerokit.resolving.run import Run

__all__ = ["MICRO", "RULES", "deepspeed_cases", "found", "said", "zero"]

MICRO = {"train_micro_batch_size_per_gpu": 1}


def zero(stage: Any, **keys: Any) -> dict[str, Any]:
    """A config with a batch size and a section `zero_optimization`."""
    return {**MICRO, "zero_optimization": {"stage": stage, **keys}}


def found(rule: str, config: Mapping[str, Any], **run: Any) -> list[Finding]:
    """The findings of one rule."""
    return [finding for finding in check_config(config, Run.of(**run)).findings if finding.rule == rule]


def said(rule: str, config: Mapping[str, Any], **run: Any) -> list[tuple[str, str]]:
    """Path and severity of the findings of one rule."""
    return [(".".join(map(str, finding.path)), finding.severity) for finding in found(rule, config, **run)]


def deepspeed_cases(table: str) -> Any:
    """A table of `deepspeed_cases.json`: configs to try with DeepSpeed, by what is tried."""
    return load_json("lint/deepspeed_cases.json")[table]
