"""Checks sections with misspelled names as the sections that they were plainly meant to be."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from zerokit.config.load import ValidPart, load_valid_part
from zerokit.config.repairs import edited
from zerokit.config.unknown_keys import there_as_well
from zerokit.documents import Document, KeyPath, dotted, value_at
from zerokit.findings import Edit, Finding, Move, Remove, ReplaceText, SetValue
from zerokit.lint.adjust import drop_contradicting_fixes, for_this_run
from zerokit.resolving.run import Run

_Entry = TypeVar("_Entry")


class RenamedSections(NamedTuple):
    """A document in which each section has the name that it was plainly meant to have."""

    document: Document
    """In which everything keeps its line."""
    valid: ValidPart
    """Of `document`."""
    findings: list[Finding]
    """What is wrong with the names in the file."""
    as_in_file: Callable[[Finding], Finding]
    """Makes a finding in `document` one in the file."""


def rename_sections(document: Document, run: Run) -> RenamedSections:
    """Give the sections of a document that plainly have another's name their own."""
    found: list[Finding] = []
    moves: list[Move] = []

    def in_file(path: KeyPath) -> KeyPath:
        for move in reversed(moves):
            if path[: len(move.to)] == move.to:
                path = (*move.path, *path[len(move.to) :])
        return path

    def keep_one(path: KeyPath) -> str:
        line = meant.line(path)
        place = f"'{dotted(in_file(path))}'" + (f", line {line}," if line else "")
        return f"Keep one of the two: {place} means the same"

    def as_in_file(finding: Finding) -> Finding:
        for move in moves:  # the file has the section under another name
            if finding.hint and finding.path[:-1] == move.to[:-1]:
                another = finding.hint.replace(there_as_well(move.to[-1]), keep_one(move.to))
                finding = replace(finding, hint=another)
        return _with_paths(finding, in_file) if moves else finding

    meant, valid = document, load_valid_part(document)
    while move := _first(valid.findings, meant):
        finding, edit = move
        rivals = [
            one.path for one in valid.findings if one.path != edit.path and one.fix == (Move(one.path, edit.to),)
        ]
        settled = list(drop_contradicting_fixes(valid.findings, meant.data))[valid.findings.index(finding)]
        contradicts = rivals and not settled.fix
        finding = replace(finding, hint=keep_one(rivals[0]), fix=()) if contradicts else settled
        found.append(as_in_file(for_this_run(finding, meant, run)))
        moves.append(edit)
        meant = replace(
            meant,
            data=edited(meant.data, [edit]),
            positions=_moved(meant.positions, edit),
            spans=_moved(meant.spans, edit),
        )
        valid = load_valid_part(meant)
    return RenamedSections(meant, valid, found, as_in_file)


def _first(findings: list[Finding], document: Document) -> tuple[Finding, Move] | None:
    """The first finding that a section has another name, and its fix; two may be meant to be the same."""
    for finding in findings:
        match finding.fix:
            case (Move() as move,) if isinstance(value_at(document.data, move.path), Mapping):
                return finding, move
    return None


def _moved(entries: Mapping[KeyPath, _Entry], move: Move) -> dict[KeyPath, _Entry]:
    size = len(move.path)
    return {(*move.to, *path[size:]) if path[:size] == move.path else path: entry for path, entry in entries.items()}


def _with_paths(finding: Finding, other: Callable[[KeyPath], KeyPath]) -> Finding:
    def with_path(edit: Edit) -> Edit:
        match edit:
            case Move(path, to):
                return Move(other(path), other(to))
            case SetValue(path) | Remove(path):
                return replace(edit, path=other(path))
            case ReplaceText():
                return edit

    return replace(
        finding, path=other(finding.path), fix=tuple(map(with_path, finding.fix)), also=tuple(map(other, finding.also))
    )
