"""Encodes texts and chats within limits of time and memory.

A tokenizer needs some 200 bytes per character of a text, and truncates only after encoding. A chat template
is a program by the model's author: transformers keeps it from files and from Python, not from endless loops.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PIECE = 1 << 18
"""Characters to encode at once: longer than any context, one second of work and 100 MiB."""

TEMPLATE_SECONDS = 5.0
"""CPU time to render one chat; milliseconds are usual."""
TEMPLATE_BYTES = 512 << 20
"""Memory to render one chat."""


def encode(
    tokenizer: PreTrainedTokenizerBase, text: str, *, most: int | None = None, special_tokens: bool = True
) -> list[int]:
    """The tokens of `text`. A text of more than 262,144 characters is encoded in pieces that end at spaces.

    Args:
        most: stop after this many tokens; None for all.
    """
    tokens: list[int] = []
    for number, piece in enumerate(pieces(text)):
        begins = special_tokens and number == 0
        tokens += tokenizer(piece, add_special_tokens=begins)["input_ids"]
        if begins and len(piece) < len(text) and tokens[-1:] == [tokenizer.eos_token_id]:
            tokens.pop()  # the text goes on
        if most is not None and len(tokens) >= most:
            return tokens[:most]
    return tokens


def count_tokens(tokenizer: PreTrainedTokenizerBase, text: str, end: int) -> int:
    """How many tokens of `text`, without special ones, have only characters before number `end`.

    A tokenizer without offsets counts the tokens that `text` and its first `end` characters share.
    """
    if not tokenizer.is_fast:
        whole, first = (encode(tokenizer, each, special_tokens=False) for each in (text, text[:end]))
        return count_shared(whole, first)
    count = start = 0
    for piece in pieces(text):
        encoded = tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True)
        for _, of_token in encoded["offset_mapping"]:
            if start + of_token > end:
                return count
            count += 1
        start += len(piece)
    return count


def count_shared(left: Sequence[Any], right: Sequence[Any]) -> int:
    """With how many equal items two sequences begin."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(left), len(right)))


def encode_whole(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    most: int,
    pair: str | None = None,
    is_target: bool = False,
    **options: Any,
) -> tuple[Any, bool]:
    """A text with the tokenizer's special tokens, also if it is truncated, and whether it was.

    Args:
        text: only its first 262,144 characters are read.
        most: limit of tokens, special ones included.
        pair: a second text for the tokenizer to join; the longer one is truncated first.
    """
    piece = next(pieces(text))
    given = {"text_target" if is_target else "text": piece}
    is_cut = len(piece) < len(text)
    if pair is not None:
        given["text_pair"] = next(pieces(pair))
        is_cut = is_cut or len(given["text_pair"]) < len(pair)
    encoded = tokenizer(**given, **options)
    is_cut = is_cut or len(encoded["input_ids"]) > most
    if len(encoded["input_ids"]) > most:
        encoded = tokenizer(**given, truncation=True, max_length=most, **options)
    return encoded, is_cut


def pieces(text: str) -> Iterator[str]:
    """Parts of a text to encode one by one, each up to a space."""
    start = 0
    while len(text) - start > _PIECE:
        space = text.rfind(" ", start + 1, start + _PIECE)
        end = space if space > 0 else start + _PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def value_kind(value: Any) -> str:
    """The type of a value, in the words of JSON."""
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    kinds |= {str: "text", type(None): "null"}
    return kinds.get(type(value), f"of type {type(value).__name__}")


_CONTENT, _THOUGHTS = "content", ("reasoning_content", "thinking")
_NEED_CONTENT = ("user", "system")
"""Roles of messages that must have content."""


def check_chat(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse messages whose role or content is not text; content may also be a list of parts.

    A template would print another value as Python does: ``None``, ``True``. The DataError has no place.
    """
    has_roles = any(message.get("role") is not None for message in messages)
    for number, message in enumerate(messages, start=1):
        role, content = message.get("role"), message.get(_CONTENT)
        for key in ("role", *_THOUGHTS):
            if not isinstance(message.get(key), str | None):
                raise _not_text(key, number, f"{value_kind(message[key])}, not text")
        if role is None and has_roles:
            raise _not_text("role", number, "absent or null")
        others = message.keys() - {"role", _CONTENT, "name"}
        can_be_empty = role not in _NEED_CONTENT and any(message[key] is not None for key in others)
        if content is not None or not can_be_empty:
            check_content(content, _CONTENT, number)


def check_content(content: Any, key: str, number: int) -> None:
    """Refuse content of message `number` that is not text or a list of parts; DataError without place."""
    if content is None:
        raise _not_text(key, number, "absent or null")
    if not isinstance(content, str | list):
        raise _not_text(key, number, f"{value_kind(content)}, neither text nor a list of parts")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            what = 'not a part, such as {"type": "text", "text": "..."}'
            raise _not_text(f"{key}[{index}]", number, what)
        text = part.get("text")
        if not isinstance(text, str) and (part["type"] == "text" or text is not None):
            raise _not_text(f"{key}[{index}].text", number, f"{value_kind(text)}, not text")


def _not_text(key: str, number: int, what: str) -> DataError:
    return DataError(f"'{key}' of message {number} is {what}", hint="Write text, or remove that example")


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **options: Any) -> str:
    """The text of a chat by the tokenizer's template; :func:`encode` it without special tokens.

    Raises:
        DataError: the template refuses the chat, fails, or takes too much time or memory; without a place.
    """
    try:
        with _limited():
            text = str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:
        # Templates are programs: they raise jinja's errors, or whatever their author chose.
        line = getattr(error, "lineno", None) or _line_of_template(error)
        place = f"line {line}: " if line else ""
        reason = str(error) or type(error).__name__
        if isinstance(error, MemoryError):
            reason = f"takes more than {TEMPLATE_BYTES >> 20} MiB of memory"
        raise DataError(place + reason) from error
    for message in messages:
        content = message.get(_CONTENT)
        if isinstance(content, list) and content and str(content) in text:
            raise DataError("it does not read content that is a list of parts, and prints the list")
    return text


def _line_of_template(error: Exception) -> int | None:
    """The line of the template that failed: jinja puts its lines into the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == "<template>"), None)


@contextmanager
def _limited() -> Iterator[None]:
    """Limit the CPU time (in the main thread, which gets signals) and the additional memory."""
    import resource  # which Windows lacks

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + TEMPLATE_BYTES
    if resource.RLIM_INFINITY not in (soft, hard):
        most = min(most, soft)
    timed = threading.current_thread() is threading.main_thread()
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    if timed:
        handler = signal.signal(signal.SIGVTALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_VIRTUAL, TEMPLATE_SECONDS, 1.0)
    try:
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"takes more than {TEMPLATE_SECONDS:.0f} seconds")
