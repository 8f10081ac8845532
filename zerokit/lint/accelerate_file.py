"""The YAML of ``accelerate launch`` (``default_config.yaml``), which sets some of what a ds_config sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.documents import Document
from zerokit.lint.run import OnBug, Report, check_launch_document

_MARKS = frozenset({"distributed_type", "deepspeed_config", "compute_environment"})
"""Keys that only accelerate's file has; `ClusterConfig` in `accelerate/commands/config/config_args.py`."""


def is_accelerate_config(data: Any) -> bool:
    """Whether `data` is what ``accelerate config`` writes."""
    return isinstance(data, Mapping) and not _MARKS.isdisjoint(data)


def check_accelerate_yaml(document: Document, *, on_bug: OnBug | None = None) -> Report:
    """Everything that is wrong with the YAML of ``accelerate launch``, as far as it concerns DeepSpeed.

    The rules are those registered by :func:`zerokit.lint.rule.launch_rule`.

    Args:
        document: as read by :func:`zerokit.documents.read_document`.
        on_bug: called for a rule that fails, so that the others go on; None lets its exception through.
    """
    return check_launch_document(document, on_bug=on_bug)
