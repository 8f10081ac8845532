"""Finds the name that a misspelled name stands for."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

from zerokit.errors import nearest

NEAR = 0.7
"""Minimum similarity of two names (`difflib`) at which one may be the other misspelled."""
VERY_NEAR = 0.8
"""From here on it very probably is: the similarity of `thruput` and `throughput`."""


def similar_names(name: str, choices: Iterable[str], least: float = NEAR) -> list[str]:
    """The choices with at least that similarity to a name, the most similar first."""
    words = _folded(name)
    matcher = SequenceMatcher(b=words, autojunk=False)
    found: dict[str, float] = {}
    for choice in choices:
        matcher.set_seq1(_folded(choice))
        if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least or matcher.ratio() < least:
            continue
        if _same_words(words.split("_"), _folded(choice).split("_")):
            found[choice] = matcher.ratio()
    return sorted(found, key=lambda choice: -found[choice])


def mistyped(name: str, choices: Iterable[str]) -> str | None:
    """The choice of which a name is a clear misspelling; None also if only upper and lower case differ."""
    close = nearest(name, choices)
    if close is None or close.lower() == name.lower():
        return None
    return close if SequenceMatcher(None, name.lower(), close.lower()).ratio() >= VERY_NEAR else None


def is_typo(name: str, choice: str, choices: Iterable[str]) -> bool:
    """Whether a name differs from a choice by one or two typos, and more from all other choices."""
    typos = distance(_folded(name), _folded(choice))
    if typos > (2 if len(name) >= 8 else 1) or max(len(name), len(choice)) < 5:
        return typos == 0
    return all(distance(_folded(name), other) > typos for other in choices if other != choice)


def distance(left: str, right: str) -> int:
    """Number of letters to insert, delete, change, or swap with a neighbour (Damerau-Levenshtein)."""
    before: list[int] = []
    last = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        now = [row]
        for column, other in enumerate(right, 1):
            cost = min(last[column] + 1, now[-1] + 1, last[column - 1] + (letter != other))
            swapped = row > 1 and column > 1 and (letter, left[row - 2]) == (right[column - 2], other)
            now.append(min(cost, before[column - 2] + 1) if swapped else cost)
        before, last = last, now
    return last[-1]


def _folded(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def _same_words(words: list[str], others: list[str]) -> bool:
    """Whether no word is replaced by a very different one, such as `model` by `data`."""
    changes = SequenceMatcher(a=words, b=others, autojunk=False).get_opcodes()
    return all(
        SequenceMatcher(a="".join(words[start:end]), b="".join(others[from_:to]), autojunk=False).ratio() >= 0.5
        for change, start, end, from_, to in changes
        if change == "replace"
    )
