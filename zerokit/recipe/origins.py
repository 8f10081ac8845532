"""Where each value of a recipe was written, for errors."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.documents import Document, KeyPath


@dataclass(frozen=True)
class Origins:
    """Where each value of a recipe was written."""

    document: Document
    overrides: frozenset[KeyPath] = frozenset()

    def where(self, path: KeyPath) -> str:
        """The place of a value, for an error: a file and line, or a command-line option."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.overrides:
                return f"--{'.'.join(str(key) for key in path[:end])}"
        return self.document.where(path)

    def is_later(self, path: KeyPath, than: KeyPath) -> bool:
        """Whether the command line sets a value, and not the other one, which the recipe may set."""
        return path in self.overrides and than not in self.overrides
