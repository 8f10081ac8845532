"""What the models find, for an older release of DeepSpeed: they describe the newest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerokit.documents import Document
from zerokit.findings import Finding

if TYPE_CHECKING:
    from zerokit.config.versions import Version

_ABOUT_KEYS = ("removed-key", "unknown-key", "misplaced-key")


def for_release(finding: Finding, document: Document, version: Version | None) -> Finding:
    """The finding as it is, or as a note where the given release still takes what the newest does not."""
    if version is None or not _is_taken(finding, document, version):
        return finding
    message = f"{finding.message}; DeepSpeed {version} still takes it"
    return replace(finding, message=message, severity="info", fix=())


def _is_taken(finding: Finding, document: Document, version: Version) -> bool:
    from zerokit.config.versions import known_at, optimizers_at, refused_at, schedulers_at

    path = finding.path
    if finding.rule in _ABOUT_KEYS:
        return known_at(path, version) and not refused_at(path, version)
    if finding.rule == "bad-value" and path in (("optimizer", "type"), ("scheduler", "type")):
        name = str(_value(document.data, path))
        known = optimizers_at(version) if path[0] == "optimizer" else schedulers_at(version)
        return name in known or (path[0] == "optimizer" and name.lower() in known)
    return False


def _value(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data
