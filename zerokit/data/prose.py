"""Plain text split into paragraphs, and paragraphs into clean sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNDERLINE = re.compile(r"[*=~^#-]{3,}$")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(*]?[A-Z0-9\"(*])")
# A full stop after these does not end a sentence.
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|approx|[A-Z])\.|\.\.\.)$")

_EMPHASIS = re.compile(r"(?<![\w*\"'])\*{1,2}(?=\w)([^*\"]+?)(?<=\w)\*{1,2}(?![\w*\"'])")
_FOOTNOTE = re.compile(r"(?:\s+|(?<=[.,)]))\[\d+\](?!\w)")
_ASIDE = re.compile(r"\s*\((?:[Ss]ee|cf\.|described|as described|[Nn]ote)[^()]*\)")
# A sentence that needs what its colon announces; others are whole without the example they announce.
_ANNOUNCES = re.compile(
    r"\b(?:to|with|like|as|is|are|be|example|where|if|than|of|by|form|code|this|these|rules):$"
)
_ASCII = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": "'",
        "\u201d": "'",
        "\u2013": "-",
        "\u2014": "-",
        "\u2026": "...",
    }
)


@dataclass(frozen=True)
class Paragraph:
    """Lines between two blank lines, without their line ends."""

    lines: tuple[str, ...]

    @property
    def indent(self) -> int:
        """Spaces before the first line."""
        return len(self.lines[0]) - len(self.lines[0].lstrip())

    @property
    def is_heading(self) -> bool:
        """A title over a line of asterisks, equals signs or the like."""
        return len(self.lines) == 2 and _UNDERLINE.fullmatch(self.lines[1]) is not None

    @property
    def is_flush(self) -> bool:
        """All lines start at the same column, as those of prose do."""
        return all(len(line) - len(line.lstrip()) == self.indent for line in self.lines)

    @property
    def text(self) -> str:
        """The lines as they were."""
        return "\n".join(self.lines)

    @property
    def key(self) -> str:
        """The words alone, so that a repetition with other indentation is recognised."""
        return " ".join(self.text.split())


def paragraphs(text: str) -> list[Paragraph]:
    """The paragraphs of `text`, in order."""
    found: list[Paragraph] = []
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip():
            lines.append(line.rstrip())
        elif lines:
            found.append(Paragraph(tuple(lines)))
            lines = []
    return found


def plain(text: str) -> str:
    """`text` in one line, with ASCII quotes, and without emphasis, footnote marks and references."""
    line = " ".join(text.translate(_ASCII).split())
    # Hyphens at a line's end belong to compounds ("built-\nin"), as the reference does not hyphenate words.
    line = re.sub(r"(?<=[a-z])- (?!(?:and|or|to)\b)(?=[a-z])", "-", line)
    return _EMPHASIS.sub(r"\1", _FOOTNOTE.sub("", _ASIDE.sub("", line)))


def sentences(text: str) -> list[str]:
    """The sentences of one paragraph of prose, each `plain`."""
    line = plain(text)
    found: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(line):
        head = line[start : end.start()]
        if not _ABBREVIATION.search(head) and _is_balanced(line[start : end.end()].strip()):
            found.append(line[start : end.end()].strip())
            start = end.end()
    last = line[start:].strip()
    if last.endswith(":") and len(last.split()) > 5 and not _ANNOUNCES.search(last):
        last = last[:-1] + "."
    return [*found, last] if last else found


def _is_balanced(text: str) -> bool:
    """Whether `text` ends outside of parentheses and of double quotes, which mark code."""
    return text.count('"') % 2 == 0 and text.count("(") == text.count(")")


# A sentence that leans on what stands around it, or on a page that is not there, says nothing alone.
_LEANS = re.compile(
    r"::=|>>>|https?:|\bPEP \d|\b(?:above|below|following|previous|section|chapter|table|footnote|here)\b"
    r"|\bsee\b|\b(?:added|changed|new) in version\b|^(?:Example|Note|For example|Deprecated|Availability)\b",
    re.IGNORECASE,
)
_LEANS_BACK = re.compile(
    r"(?:It|They|Its|Their|That|Those|He|However|But|And|Or|Also|Otherwise|Thus|Then|Similarly|Likewise|So|Here"
    r"|Therefore|Hence|Instead|Again|Finally|Moreover|Furthermore|There|Consequently|Another|Other|Both|Usually"
    r"|In (?:this|that|both|all|other|addition|particular)|Additionally|The (?:latter|former)|Such|Some"
    r"|If (?:so|it|they)|This (?:is because|means))\b"
)


def is_clean(sentence: str) -> bool:
    """Whether a reader needs nothing but this sentence: whole, without code blocks and references."""
    prose = re.sub(r'"[^"]*"', "", sentence)
    return (
        (sentence[0].isupper() or sentence[0] in "\"'")
        and sentence.endswith((".", '."', ".)"))
        and not sentence.endswith("...")
        and _is_balanced(sentence)
        and not _LEANS.search(sentence)
        and " * " not in prose
        and "**" not in prose
    )


def stands_alone(sentence: str) -> bool:
    """Whether `sentence` can open an answer: clean, and not about something said before it."""
    return is_clean(sentence) and not _LEANS_BACK.match(sentence)


def answer_from(found: list[str], *, most_sentences: int = 3, most_chars: int = 400) -> str | None:
    """The first clean sentences as one answer, or None if the first of them cannot open one."""
    if not found or not stands_alone(found[0]):
        return None
    answer = ""
    for sentence in found[:most_sentences]:
        longer = f"{answer} {sentence}".strip()
        if not is_clean(sentence) or len(longer) > most_chars:
            break
        answer = longer
    return answer if len(answer) >= 25 else None
