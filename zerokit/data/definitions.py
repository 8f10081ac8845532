"""Definitions found in reference text by its layout: a name, and one to three sentences about it."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from keyword import iskeyword
from typing import Literal

from zerokit.data.prose import Paragraph, answer_from, paragraphs, plain, sentences

Kind = Literal["callable", "command", "thing"]


@dataclass(frozen=True)
class Definition:
    """A term and its meaning."""

    term: str
    answer: str
    kind: Kind


_MOST_NAMES = 4
"""Of a stack of signatures, those that share its description; what holds for thirteen says little of each."""

_SIGNATURE = re.compile(
    r"(?:(?:class|exception|classmethod|staticmethod|async|abstractmethod) )*"
    r"(?P<name>[A-Za-z_][\w.]*)(?P<call>\(.*\))?"
)
_COMMAND = re.compile(r"(?!class )(?P<name>[a-z][a-z()]*)(?: .*)?")
_LIST_TERM = re.compile(r"\"?(?P<name>[A-Z][\w.]*(?:[ -][\w.]+){0,4})\"?(?: \(\"[\w.]+\"\))?")
_ROW = re.compile(r"\|\s*(?P<name>[^|]*?)\s*\|\s*(?P<meaning>[^|]*?)\s*\|")
_TABLE_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+(?:\(.*\))?")

_NOUN = (
    r"(?:statement|operator|keyword|clause|method|attribute|function|type|option|module|modifier|expression"
    r"|sequence|specifier|class|exception|object|built-in|field|argument|value|form|parameter|command)"
    r"(?:\(s\)|s)?"
)
# What a definition does with its subject: it says what that is or does, not what one should do with it.
_VERB = r"(?:are|specify|(?!has\b|was\b|does\b)[a-z]+s)\b"
_OPENINGS = (
    # The "assert" statement is ..., The unary "-" (minus) operator yields ...
    re.compile(
        rf'(?:The|A|An) (?:[a-z-]+ ){{0,2}}"(?P<name>[^"]{{1,30}})" (?:\([a-z -]+\) )?{_NOUN} {_VERB}'
    ),
    # The operators "in" and "not in" test for ...
    re.compile(r'The operators (?P<names>"[^"]+"(?:,? (?:and )?"[^"]+")+) [a-z]+'),
    # The expression "x and y" first evaluates ..., The operator "not in" returns ...
    re.compile(
        r'The (?:[a-z-]+ )?(?:operator|expression|statement|keyword) "(?P<name>[^":]{1,30})" '
        rf"(?:first )?{_VERB}"
    ),
    # "co_name" gives ..., "None" is ...
    re.compile(
        r'"(?P<name>[\w.]{2,30}(?:\(\))?)" '
        r"(?:(?:is|are)(?! raised\b)|gives|returns|specifies|denotes|contains|holds|stores)\b"
    ),
)
_IS = r"(?:is|are) (?:an?|the|used|one|any|defined)\b"
_GLOSSARY = (
    # A block is a piece of program text ..., A function definition defines ...
    re.compile(rf"An? (?P<name>[a-z-]+(?: [a-z-]+){{0,2}}) (?:{_IS}|consists of|denotes|defines)"),
    # The match statement is used ...
    re.compile(rf"The (?P<name>[a-z-]+ (?:statement|clause|operator|keyword)) {_IS}"),
    # Objects are ..., Function objects are created by ...
    re.compile(rf"(?P<name>[A-Z][a-z-]+(?: [a-z-]+){{0,2}}) (?:{_IS}|are (?:objects|created|evaluated))"),
)
_NOT_A_TERM = re.compile(
    r"(?:The|An?|This|These|That|Those|There|Each|All|Every|Any|Some|Such|Note|It|They|What|When|If|In|On|For|By|Most"
    r"|Both|Only|No|Not|One|Two|Other|Another|As|At|Here|Where|Which|Its|Their|Since|Because|While|Unless)\b"
    r"|(?:only|same|first|second|third|last|next|resulting|optional|default|latter|former|other|main|current"
    r"|result|value|reason|difference|effect|purpose|return value|rest|name|order|intention)"
    r"|.*\b(?:of|that|which|to|in|for|with|may|must|can|will|is|are|not|when|if|and|or|by|as|from|the|it|also"
    r"|usually|typically|always|never|each|all|then|normally|often|generally)\b",
)


def grammar_symbols(text: str) -> frozenset[str]:
    """The names that the grammar in `text` defines; prose quotes them like code, but they are no terms."""
    return frozenset(re.findall(r"(\w+)\s*::=", text))


def definitions(topic: str, text: str, grammar: frozenset[str]) -> Iterator[Definition]:
    """All definitions in the text of one topic, the surest kinds first.

    A definition is a signature over an indented description, a debugger command likewise, a row of a table
    of attributes, an entry of a definition list, a heading over prose, or a sentence that opens by naming
    its subject ("A block is ...", but not of a symbol of the grammar).
    """
    found = paragraphs(text)
    yield from _signatures(found, commands=topic == "debugger")
    for paragraph in found:
        yield from _rows(paragraph)
        yield from _list_entry(paragraph)
    yield from _headings(found)
    for openings in (_OPENINGS, _GLOSSARY):
        for paragraph in found:
            if paragraph.is_flush and not paragraph.is_heading:
                yield from _opening_sentences(paragraph, openings, grammar)


def _signatures(found: list[Paragraph], *, commands: bool) -> Iterator[Definition]:
    enclosing = ""
    for paragraph, body in pairwise(found):
        if paragraph.indent == 0:
            first = _SIGNATURE.fullmatch(paragraph.lines[0])
            is_class = first is not None and paragraph.lines[0].startswith("class ")
            enclosing = first["name"] if first is not None and is_class else ""
        if not paragraph.is_flush or body.indent <= paragraph.indent or not body.is_flush:
            continue
        answer = answer_from(sentences(body.text))
        if answer is None:
            continue
        for line in paragraph.lines[:_MOST_NAMES]:
            command = _COMMAND.fullmatch(line) if commands else None
            if command is None:
                yield from _signature(line.strip(), enclosing if paragraph.indent else "", answer)
            elif line[-1] not in ".:,;":
                yield Definition(re.sub(r"[()]", "", command["name"]), answer, "command")


def _signature(line: str, enclosing: str, answer: str) -> Iterator[Definition]:
    """`clear()` beneath `class dict` is `dict.clear`; `len(d)` is only one use of `len`."""
    match = _SIGNATURE.fullmatch(line)
    if match is None or not (match["call"] or "." in match["name"]):
        return
    name = match["name"]
    if enclosing:
        if not hasattr(getattr(builtins, enclosing, None), name):
            return
        name = f"{enclosing}.{name}"
    elif hasattr(builtins, name) and not line.startswith("class "):
        return
    yield Definition(_short_name(name), answer, "callable" if match["call"] else "thing")


def _rows(paragraph: Paragraph) -> Iterator[Definition]:
    """Rows of a drawn table whose first column is a dotted name and whose second is prose."""
    if not paragraph.lines[0].lstrip().startswith("+-"):
        return
    name, meaning = "", ""
    for line in paragraph.lines:
        row = _ROW.fullmatch(line.strip())
        if row is not None:
            name, meaning = f"{name} {row['name']}".strip(), f"{meaning} {row['meaning']}"
            continue
        answer = answer_from(sentences(meaning))
        if answer is not None and _TABLE_NAME.fullmatch(name):
            yield Definition(_short_name(name.partition("(")[0]), answer, "thing")
        name, meaning = "", ""


def _list_entry(paragraph: Paragraph) -> Iterator[Definition]:
    """A term on a line of its own, and its description indented beneath."""
    term, *rest = paragraph.lines
    if not rest or paragraph.is_heading:
        return
    body = Paragraph(tuple(rest))
    match = _LIST_TERM.fullmatch(term.strip())
    if match is not None and body.indent > paragraph.indent and body.is_flush:
        answer = answer_from(sentences(body.text))
        if answer is not None:
            yield Definition(match["name"], answer, "thing")


def _headings(found: list[Paragraph]) -> Iterator[Definition]:
    for index, paragraph in enumerate(found):
        if not paragraph.is_heading:
            continue
        title = re.sub(r" \([^()]*\)$", "", plain(paragraph.lines[0]))
        quoted = re.search(r'"([^"]+)"', title)
        answer = _prose_after(found[index + 1 :], title, quoted[1] if quoted else None)
        if answer is None or len(title.split()) > 5:
            continue
        name = quoted[1] if quoted else re.sub(r"^(?:The|A) ", "", title)
        about_it = _shares_a_word(name, answer) or answer.startswith(("This ", "These "))
        if quoted or (about_it and not _NOT_A_TERM.match(name)):
            singular = name.lower().removesuffix("s")
            yield Definition(singular if iskeyword(singular) else name, answer, "thing")


def _prose_after(found: list[Paragraph], title: str, code: str | None) -> str | None:
    """An answer from what follows a heading.

    The section of a statement often says first where it may stand, and then what it does: "It terminates
    ..." or '"return" leaves ...'. Where "It" opens the paragraph, the heading's title takes its place.
    """
    prose: list[Paragraph] = []
    for paragraph in found[:6]:
        if paragraph.is_heading:
            break
        if _is_prose(paragraph):
            prose.append(paragraph)
        elif not prose and "::=" not in paragraph.text:
            return None
    if not prose:
        return None
    chosen = prose[0]
    if code is not None:
        does = re.compile(rf'(?:It|(?:The )?"{re.escape(code)}"(?: {_NOUN})?) {_VERB}')
        chosen = next((paragraph for paragraph in prose if does.match(paragraph.key)), chosen)
    first, *rest = sentences(chosen.text)
    return answer_from([re.sub(r"^It\b", title, first) if code else first, *rest])


def _is_prose(paragraph: Paragraph) -> bool:
    """Whether a paragraph at the margin is running text."""
    return paragraph.indent == 0 and paragraph.is_flush and not paragraph.is_heading


def _opening_sentences(
    paragraph: Paragraph, openings: tuple[re.Pattern[str], ...], grammar: frozenset[str]
) -> Iterator[Definition]:
    found = sentences(paragraph.text)
    for index, sentence in enumerate(found):
        for opening in openings:
            match = opening.match(sentence)
            answer = answer_from(found[index:]) if match else None
            if match is None or answer is None:
                continue
            groups = match.groupdict()
            names = re.findall(r'"([^"]+)"', groups["names"]) if "names" in groups else [groups["name"]]
            for name in names:
                is_term = openings is _OPENINGS or not _NOT_A_TERM.match(name)
                if is_term and name not in grammar:
                    yield Definition(_lower_first(name), answer, "thing")


def _short_name(name: str) -> str:
    """`object.__add__` is asked for as `__add__`, `str.join` as it is."""
    last = name.rpartition(".")[2]
    return last if last.startswith("__") and last.endswith("__") else name


def _lower_first(name: str) -> str:
    is_word = name[:1].isupper() and name[1:2].islower() and name not in ("None", "True", "False", "Ellipsis")
    return name[0].lower() + name[1:] if is_word and "." not in name and not name[1:].isalnum() else name


def _shares_a_word(term: str, answer: str) -> bool:
    """Whether the answer speaks of the term: one of its longer words, give or take an ending."""
    return any(word[:5].lower() in answer.lower() for word in re.findall(r"[A-Za-z]{4,}", term))
