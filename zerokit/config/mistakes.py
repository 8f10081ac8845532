"""One error of the models as a finding, with the edit after which the rest can be looked at."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic_core import ErrorDetails

from zerokit.config.base import Reader
from zerokit.config.key_index import section_at
from zerokit.config.repairs import Mender, key_path
from zerokit.documents import Document, KeyPath, dotted
from zerokit.findings import Edit, Finding, Remove, SetValue, Severity


class Mistake(NamedTuple):
    """One error of the models."""

    finding: Finding
    edit: SetValue | Remove | None = None
    """The edit after which the rest of the config can be looked at as if the value were right."""
    meant: KeyPath | None = None
    """What an unknown key was meant to be, as the models spell it; itself if another program reads it, None
    where that cannot be told."""
    folded: tuple[KeyPath, ...] = ()
    """More keys of which the finding speaks."""


class Explainer:
    """One error, looked at from all sides; those who know of keys and of values derive from it."""

    def __init__(self, detail: ErrorDetails, document: Document, mender: Mender) -> None:
        self.kind, self.value = detail["type"], detail["input"]
        self.context: dict[str, Any] = detail.get("ctx") or {}
        self.text = detail["msg"]
        self.path = key_path(detail["loc"])
        self.document = document
        self.mender = mender
        self.data = mender.data
        self.name = _name(self.path)

    @property
    def reader(self) -> Reader:
        """How DeepSpeed reads the section that it is in."""
        model = section_at(self.path[:-1], self.data)
        return model.read_by if model is not None else "lookup"

    def found(
        self,
        rule: str,
        message: str,
        hint: str,
        severity: Severity = "error",
        fix: tuple[Edit, ...] = (),
        edit: SetValue | Remove | None = None,
    ) -> Mistake:
        place = self.document.position(self.path)
        line, column = place if place is not None else (None, None)
        return Mistake(Finding(self.path, message, hint, line, column, severity, rule, fix), edit)


def _name(path: KeyPath) -> str:
    """The last key in quotes, with that of the list that it counts in."""
    start = next((at for at in reversed(range(len(path))) if isinstance(path[at], str)), 0)
    return f"'{dotted(path[start:])}'" if path else "the config"
