"""Where each value of a recipe was written, for errors."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerokit.documents import Document, KeyPath


@dataclass(frozen=True)
class Origins:
    """Where each value of a recipe was written."""

    document: Document
    overrides: frozenset[KeyPath] = frozenset()
    arguments: Mapping[KeyPath, str] = field(default_factory=dict)
    """Values that are arguments of the command, by key."""

    def where(self, path: KeyPath) -> str:
        """The place of a value, for an error: a file and line, or a command-line option."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.overrides:
                return f"--{'.'.join(str(key) for key in path[:end])}"
        return self.arguments.get(path) or self.document.where(path)

    def is_later(self, path: KeyPath, than: KeyPath) -> bool:
        """Whether the command line sets a value, and not the other one, which the recipe may set."""
        return path in self.overrides and than not in self.overrides
