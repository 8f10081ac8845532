"""Python's own language reference, which every Python carries, as a corpus and as questions and answers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from zerokit.data.definitions import Definition, definitions, grammar_symbols
from zerokit.data.prose import Paragraph, paragraphs, sentences

_SEED = 20_191_016
_HELD_OUT = 0.05
_DOCUMENT_CHARS = 1500
_SHORTEST_DOCUMENT_CHARS = 200
_CONNECTIVE_CHARS = 40

Pair = dict[str, str]
"""``{"prompt": "Question: ...\\nAnswer:", "completion": " ..."}``."""


@dataclass(frozen=True)
class Corpus:
    """Documents of the reference, each of a few paragraphs; `held_out` is about one in twenty."""

    train: list[str]
    held_out: list[str]


@dataclass(frozen=True)
class Questions:
    """Prompts and completions; no term and no answer of `held_out` is in `train`."""

    train: list[Pair]
    held_out: list[Pair]


def corpus() -> Corpus:
    """The reference as documents of about 1,500 characters, the same for a given version of Python.

    Topics repeat each other, some of them whole, so a paragraph is kept only where it is met first; the
    longest topics come first, as they are the ones that contain others. Returns new lists at every call.
    """
    documents = list(_documents())
    chosen = set(random.Random(_SEED).sample(range(len(documents)), round(_HELD_OUT * len(documents))))  # noqa: S311
    return Corpus(
        train=[document for index, document in enumerate(documents) if index not in chosen],
        held_out=[document for index, document in enumerate(documents) if index in chosen],
    )


def questions() -> Questions:
    """Questions on what a term of the language means, with answers of one to three sentences.

    The same for a given version of Python. A term is asked for in two phrasings; both, and all other terms
    whose answers share a sentence, are on the same side of the split. Returns new lists at every call.
    """
    shuffle = random.Random(_SEED)  # noqa: S311
    groups = _related(_all_definitions())
    shuffle.shuffle(groups)
    wanted = _HELD_OUT * sum(map(len, groups))
    train: list[Pair] = []
    held_out: list[Pair] = []
    taken = 0
    for group in groups:
        side = held_out if taken < wanted else train
        taken += len(group)
        side.extend(pair for definition in group for pair in _pairs(definition))
    shuffle.shuffle(train)
    return Questions(train=train, held_out=held_out)


def _documents() -> Iterator[str]:
    seen: set[str] = set()
    for _, text in sorted(_topics().items(), key=lambda item: (-len(item[1]), item[0])):
        yield from _grouped(_unseen(paragraphs(text), seen))


def _unseen(found: list[Paragraph], seen: set[str]) -> Iterator[Paragraph]:
    """Paragraphs that are new; "For example:" and its like are told apart by what follows them."""
    for index, paragraph in enumerate(found):
        key = paragraph.key
        if len(key) < _CONNECTIVE_CHARS and index + 1 < len(found):
            key += " " + found[index + 1].key
        if key not in seen:
            seen.add(key)
            yield paragraph


def _grouped(kept: Iterable[Paragraph]) -> Iterator[str]:
    """Documents that start with a heading or with prose, rarely with the code that an example announces.

    What is left of a topic that others repeat may be a line or two, which is no document.
    """
    group: list[Paragraph] = []
    size = 0
    for paragraph in kept:
        complete = size >= _DOCUMENT_CHARS or (paragraph.is_heading and size >= _DOCUMENT_CHARS // 2)
        if complete and (paragraph.indent == 0 or size >= 2 * _DOCUMENT_CHARS) and not group[-1].is_heading:
            yield "\n\n".join(member.text for member in group)
            group, size = [], 0
        group.append(paragraph)
        size += len(paragraph.text)
    if size >= _SHORTEST_DOCUMENT_CHARS:
        yield "\n\n".join(member.text for member in group)


def _all_definitions() -> list[Definition]:
    """One definition of each term, the first found."""
    grammar = grammar_symbols("\n".join(_topics().values()))
    found: dict[str, Definition] = {}
    for topic, text in sorted(_topics().items()):
        for definition in definitions(topic, text, grammar):
            found.setdefault(_term_key(definition), definition)
    methods = {definition.term.rpartition(".")[2] for definition in found.values() if "." in definition.term}
    return [
        definition
        for definition in found.values()
        # "sort()" alone, where "list.sort" is defined, is a sentence out of that definition.
        if not (definition.term.endswith("()") and definition.term.removesuffix("()") in methods)
    ]


def _related(found: list[Definition]) -> list[list[Definition]]:
    """Groups of definitions such that no sentence of an answer occurs in two groups."""
    group_of: dict[str, list[Definition]] = {}
    for definition in found:
        said = sentences(definition.answer)
        joined = {id(group_of[sentence]): group_of[sentence] for sentence in said if sentence in group_of}
        group = [*(member for group in joined.values() for member in group), definition]
        for member in group:
            group_of.update(dict.fromkeys(sentences(member.answer), group))
    return list({id(group): group for group in group_of.values()}.values())


def _term_key(definition: Definition) -> str:
    """Terms that differ in case or in a plural s alone are one: "Slicings" and "slicing"."""
    kind = "command " if definition.kind == "command" else ""
    term = definition.term.removesuffix("()")
    is_word = term.replace(" ", "").isalpha()
    return kind + (term.lower().removesuffix("s") if is_word and len(term) > 3 else term)


def _pairs(definition: Definition) -> Iterator[Pair]:
    term = f'"{definition.term}"'
    if definition.kind == "command":
        asked = (f"What does the debugger command {term} mean?", f"What does the debugger command {term} do?")
    elif definition.kind == "callable":
        asked = (f"What does {term} mean?", f"What does {term} do?")
    else:
        asked = (f"What does {term} mean?", f"What is {term} in Python?")
    for question in asked:
        yield {"prompt": f"Question: {question}\nAnswer:", "completion": f" {definition.answer}"}


@cache
def _topics() -> dict[str, str]:
    # Imported late: its half megabyte is of no use to whoever only names this module.
    from pydoc_data.topics import topics

    return dict(topics)
