"""Topics of ``zerokit explain``: what belongs together under a word that is no key and no rule."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from zerokit.config.descriptions import description
from zerokit.config.key_index import sections
from zerokit.documents import dotted
from zerokit.lint.defects import KNOWN_DEFECTS
from zerokit.lint.run import all_rules
from zerokit.tables import table_of

_GUIDES = "https://github.com/zerokit/zerokit/tree/main/docs"
_MOST = 8
"""Names of each kind on a page."""


@dataclass(frozen=True)
class Topic:
    """A row of topics.json."""

    words: tuple[str, ...]
    """What people call it."""
    text: str
    finds: tuple[str, ...]
    """Words of keys, rules and defects that belong to it."""
    guide: str
    """A page in docs/."""


@cache
def topics() -> dict[str, Topic]:
    """All topics, by title."""
    rows = table_of(__file__)
    return {
        title: Topic(tuple(row["words"]), row["text"], tuple(row["finds"]), row["guide"])
        for title, row in rows.items()
    }


def topic_page(name: str) -> str | None:
    """The page, in Markdown, of the topic that a name means; None if there is none."""
    plain = _plain(name)
    for title, topic in topics().items():
        if plain == _plain(title) or plain in topic.words:
            guide = f"Guide: {_GUIDES}/{topic.guide}"
            return "\n\n".join((f"# {title}", topic.text, *_related(topic.finds), guide)) + "\n"
    return None


def is_title(name: str) -> bool:
    """Whether a name is the title of a topic, not another word for it."""
    return _plain(name) in map(_plain, topics())


def search_page(name: str) -> str | None:
    """The page of a topic that a name mentions, else of all keys, rules and defects whose text has its words.

    None if there is neither.
    """
    mentioned = [
        word
        for topic in topics().values()
        for word in topic.words
        if re.search(rf"\b{re.escape(word)}\b", _plain(name))
    ]
    if mentioned:
        return topic_page(max(mentioned, key=len))
    found = list(_related((_plain(name),)))
    return "\n\n".join((f"# {name}", *found)) + "\n" if found and _plain(name) else None


def _plain(text: str) -> str:
    return " ".join(re.split(r"[-_\s]+", text.lower())).strip()


def _related(phrases: tuple[str, ...]) -> Iterator[str]:
    """Lists of names with a line each: those that have a phrase in their name come first."""
    pattern = re.compile("|".join(rf"\b{re.escape(phrase)}" for phrase in phrases))

    def by_phrase(row: tuple[str, str]) -> tuple[bool, int, int]:
        found = pattern.search(_plain(row[0].rpartition(".")[2]))
        assert found is not None
        return found.start() > 0, phrases.index(found[0]), row[0].count(".")

    kinds = {
        "Keys": [
            (dotted((*path, name)), description(model, name))
            for path, model in sections().items()
            for name in model.model_fields
        ],
        "Rules of `zerokit check`": [(rule.id, rule.title.strip()) for rule in all_rules().values()],
        "Defects of DeepSpeed": [(one.id, one.summary) for one in KNOWN_DEFECTS.values()],
    }
    for title, rows in kinds.items():
        named = [row for row in rows if pattern.search(_plain(row[0].rpartition(".")[2]))]
        named.sort(key=by_phrase)
        told = [row for row in rows if row not in named and pattern.search(_plain(row[1]))]
        chosen = [*named, *told][:_MOST]
        if chosen:
            yield f"{title}:\n\n" + "\n".join(f"- `{one}`: {_first(text)}" for one, text in chosen)


def _first(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=\.)\s", text.strip())[0]
