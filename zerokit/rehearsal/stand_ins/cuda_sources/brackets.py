"""Brackets in words of C++, and what stands between them."""

from __future__ import annotations

from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError

_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def depth_of(words: list[Token]) -> int:
    return sum((one.text in "([{") - (one.text in ")]}") for one in words if one.kind == "sign")


def after(words: list[Token], place: int, sign: str) -> int:
    """The place after the next `sign` that stands in no brackets."""
    while place < len(words) and words[place].text != sign:
        place = closing(words, place) + 1 if words[place].text in _BRACKETS else place + 1
    return place + 1


def closing(words: list[Token], place: int) -> int:
    """Where the bracket that opens at `place` is closed."""
    depth = 0
    for at in range(place, len(words)):
        if words[at].kind == "sign":
            depth += (words[at].text in "([{") - (words[at].text in ")]}")
            if depth == 0:
                return at
    raise UnreadError("a bracket that does not close", words[place])


def closing_angle(words: list[Token], place: int) -> int:
    """Where the angle bracket that opens at `place` is closed."""
    depth = 0
    while place < len(words):
        text = words[place].text
        if text in _BRACKETS:
            place = closing(words, place)
        elif text in ("<", ">"):
            depth += 1 if text == "<" else -1
            if depth == 0:
                return place
        elif text in (";", "<<<", "&&", "||", "?", ")", "]", "}"):
            break
        place += 1
    raise UnreadError("an angle bracket that does not close", words[-1] if words else None)


def split(words: list[Token], sign: str = ",") -> list[list[Token]]:
    """`words` by the `sign`s that stand in no brackets, angle brackets included."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for one in words:
        if one.kind == "sign":
            depth += (one.text in "([{<") - (one.text in ")]}>")
        if one.text == sign and depth == 0:
            parts.append([])
        else:
            parts[-1].append(one)
    return parts if words else []
