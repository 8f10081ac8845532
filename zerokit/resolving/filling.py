"""A ds_config on its way to DeepSpeed, and the notes that are made of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from zerokit.config.base import AUTO
from zerokit.config.load import load_valid_part
from zerokit.config.normal_form import without_comments
from zerokit.documents import Document, KeyPath, dotted, leaves, split_dotted, value_at
from zerokit.resolving.arguments import Arguments
from zerokit.resolving.auto_word import autos
from zerokit.resolving.run import Run

Origin = Literal["file", "auto", "added", "computed", "default"]
"""file: the ds_config itself. auto: filled in where the file says "auto". added: written by the target, which
was not asked. computed: by DeepSpeed, from other values. default: DeepSpeed's."""


@dataclass(frozen=True)
class Lost:
    """Something that was set and changes nothing."""

    name: str
    """A dotted key of the ds_config, or an argument."""
    message: str
    line: int | None = None


@dataclass(frozen=True)
class Refused:
    """Why a run does not train: whoever gets the config stops when it starts, or at its first step."""

    name: str
    """A dotted key of the ds_config; "" for the whole of it."""
    message: str
    hint: str | None = None


class Filling:
    """A config on its way to DeepSpeed, and the notes that are made of it."""

    def __init__(self, document: Document, run: Run, added: Mapping[str, str]) -> None:
        self.document = document
        self.run = run
        self.config: dict[str, Any] = without_comments(load_valid_part(document).written)
        self.added = added
        self.origins: dict[str, tuple[Origin, str, bool]] = {name: ("added", who, True) for name, who in added.items()}
        self.lost: list[Lost] = []
        self.refused: list[Refused] = []
        self.own_autos = {dotted(path) for path in autos(self.config)}

    @property
    def arguments(self) -> Arguments:
        return self.run.arguments

    def node(self, name: str) -> tuple[dict[str, Any] | None, str]:
        """The section that a dotted path is in, None if there is none, and the key."""
        section = value_at(self.config, split_dotted(name)[:-1])
        return (section if isinstance(section, dict) else None), name.rpartition(".")[2]

    def get(self, name: str) -> Any:
        section, key = self.node(name)
        return None if section is None else section.get(key)

    def write(self, name: str, value: Any, why: str) -> None:
        """Write a value that the file does not have, or has otherwise."""
        section, key = self.node(name)
        assert section is not None
        section[key] = value
        self.origins[name] = ("added", why, True)

    def wants(self, name: str) -> bool:
        """Whether there is an "auto" that is not filled in yet."""
        return bool(self.get(name) == AUTO) and not self.is_unknown(name)

    def fill(self, name: str, value: Any, why: str) -> None:
        """Write `value` in place of "auto"; None if it is not known."""
        if not self.wants(name):
            return
        section, key = self.node(name)
        assert section is not None
        if name in self.added:
            why += "; the key is absent, and zerokit train adds it"
        if value is None:
            self.origins[name] = ("auto", why, False)
        else:
            section[key] = value
            self.origins[name] = ("auto", why, True)

    def is_unknown(self, name: str) -> bool:
        return name in self.origins and not self.origins[name][2]

    def refuse(self, name: str, message: str, hint: str | None = None) -> None:
        self.refused.append(Refused(name, message, hint))

    def lose(self, name: str, message: str) -> None:
        path = split_dotted(name)
        self.lost.append(Lost(name, message, self.document.line(path) if path in self._paths else None))

    @cached_property
    def _paths(self) -> set[KeyPath]:
        return {path[:end] for path, _ in leaves(self.document.data) for end in range(1, len(path) + 1)}
