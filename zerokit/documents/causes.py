"""Messages and hints for usual mistakes in JSON."""

import json
import re
from collections.abc import Mapping

from zerokit.tables import table_of

CLOSER = {"{": "}", "[": "]"}
DOUBLE_QUOTES = 'JSON needs double quotes (")'

_MERGE_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?: |\r?$)", re.MULTILINE)
_MARKUP = re.compile(r"\s*<(?:!doctype|!--|\?xml|html|head|body|[a-z]+[ >])", re.IGNORECASE)
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[^\s,\]}:\"']+")
_PLACEHOLDER = re.compile(r"\$|\{\{|<.*>|[A-Z](?:[A-Z0-9_]|(?<=[0-9])(?:st|nd|rd|th)){2,}$|@.*@|%")
_TAGS = r"\{\{-?\s*[A-Za-z_].*?\}\}|\{%.*?%\}"
_TAG = re.compile(_TAGS, re.DOTALL)
_MARKED = re.compile(rf"\$\{{[^}}]*\}}|{_TAGS}", re.DOTALL)
_NAMED = re.compile(r"\$\w+|[A-Z]+(?:_(?:[A-Z0-9]+|[0-9]+(?:st|nd|rd|th)))+")
_QUOTES = "“”„‟«»‘’‚‛`"  # noqa: RUF001 - quotation marks to find

FIX_SYNTAX = "Fix the syntax there"
_TABLE = table_of(__file__)
NOT_JSON_WORDS: Mapping[str, str] = _TABLE["not_json_words"]
"""JSON's spelling of words of other languages."""


def departure(kind: str, word: str) -> tuple[str, str]:
    """Message and hint for text that is not JSON, but that DeepSpeed reads.

    Args:
        kind: see :attr:`zerokit.documents.Departure.kind`.
        word: the text.
    """
    if kind == "bare value":
        return _bare_value(word)
    if kind == "bare key":
        return f"expected a key in double quotes, found {word}", _quoted(word)
    message, hint = _TABLE["departures"][kind]
    return message, hint


def _quoted(word: str) -> str:
    return DOUBLE_QUOTES if word[:1] in _QUOTES else f'Write "{word}"'


def _bare_value(word: str) -> tuple[str, str]:
    if word in NOT_JSON_WORDS:
        return (f"'{word}' is not a value of JSON", f"Write {NOT_JSON_WORDS[word]}: JSON has true, false and null")
    if word.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        return f"'{word}' is not a value of JSON", "Write a finite number, or remove the key"
    if is_scalar(word):
        return f"a comma is missing after {word}", "Add it, or remove what follows"
    if is_bare_placeholder(word):
        return f"'{word}' is a placeholder, not a value", "Fill the template in first"
    if word[0] in _QUOTES:
        return f"the quotation mark {word[0]} is not one of JSON's", DOUBLE_QUOTES
    if word[0].isdigit() or word[0] in "+-.":
        return f"'{word}' is not a number of JSON", "Write it in plain digits, such as 0.5, 1000 or 5e8"
    return f"'{word}' is not a value of JSON", "Put a text in double quotes"


def is_bare_placeholder(text: str) -> bool:
    """Whether a text begins with a placeholder without quotes."""
    word = word_at(text, 0)
    return word not in NOT_JSON_WORDS and _PLACEHOLDER.match(word) is not None


def is_placeholder(text: str, *, named: bool = False) -> bool:
    """Whether a text has a placeholder, such as ``${SCRATCH}`` or ``{{ scratch }}``.

    Args:
        text: a value.
        named: whether a name in capitals, such as ``ZERO_STAGE`` or ``$STAGE``, is a placeholder too.
    """
    return _MARKED.search(text) is not None or (named and _NAMED.fullmatch(text) is not None)


def has_tags(text: str) -> bool:
    """Whether a text has tags of a template engine, such as ``{{ stage }}`` or ``{% if fp16 %}``."""
    return _TAG.search(text) is not None


def is_scalar(word: str) -> bool:
    """Whether a word is a JSON number, true, false or null."""
    return _SCALAR.fullmatch(word) is not None


def word_at(text: str, start: int) -> str:
    """The word that begins at `start`, or one character."""
    match = _WORD.match(text, start)
    word = match[0] if match is not None else text[start : start + 1]
    return word if len(word) <= 40 else f"{word[:36]}..."


def hint_for_missing_key(found: str) -> str:
    """Hint for a character in the place of a key."""
    if found == ",":
        return "Remove one of them"
    if found in _QUOTES:
        return DOUBLE_QUOTES
    return "Write a key in front of it, or remove the bracket" if found in "{[" else FIX_SYNTAX


def text_after_the_end(text: str, at: int) -> tuple[str, str]:
    """Message and hint for text after the JSON value."""
    char = text[at]
    if char in "}]":
        return f"one '{char}' too many", "Remove it"
    if char in "{[":
        return "a second JSON value after the first", "Put each into a file of its own"
    markdown = ": ``` is Markdown, not JSON" if text.startswith("```", at) else ""
    return "text after the end of the JSON value", f"Remove it{markdown}"


def malformed_string(error: json.JSONDecodeError, text: str, start: int) -> tuple[str, str, int]:
    """Message, hint and offset of a mistake in the string that begins at `start`."""
    at = error.pos
    if error.msg.startswith("Unterminated") or text[at : at + 1] in ("\n", "\r"):
        return "a string that is not closed on its line", 'Add the double quote (")', start
    if error.msg.startswith("Invalid control"):
        return "a tab or another control character in a string", "Write it as an escape, such as \\t", at
    return "a backslash that begins no escape of JSON", "Write \\\\ for a backslash", at


def not_json_at_all(text: str) -> tuple[str, str, int] | None:
    """Message, hint and offset for a web page, a Git LFS pointer, or a merge conflict."""
    conflict = _MERGE_CONFLICT.search(text)
    if conflict is not None:
        return "an unresolved merge conflict", "Keep one of the two sides", conflict.start()
    if _MARKUP.match(text):
        return "is a web page, not JSON", "Download the raw file, not the page that shows it", 0
    if text.startswith("version https://git-lfs.github.com/"):
        return "is a pointer of Git LFS, not the file", "Fetch the file: git lfs pull", 0
    return None
