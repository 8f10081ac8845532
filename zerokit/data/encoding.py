"""Texts and chats to tokens, within bounds: neither a long line nor a chat template takes the machine.

A tokenizer needs some 200 bytes per character of one text, and cuts only what it has encoded. A chat template
is a program of whoever made the model: transformers keeps it from files and from Python, not from loops.
"""

from __future__ import annotations

import resource
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PIECE = 1 << 18
"""Characters that are encoded at once: more than any context, a second's work and 100 MiB."""

TEMPLATE_SECONDS = 5.0
"""CPU time to render one chat; milliseconds are usual."""
TEMPLATE_BYTES = 512 << 20
"""Memory to render one chat."""


def encode(
    tokenizer: PreTrainedTokenizerBase, text: str, *, most: int | None = None, special_tokens: bool = True
) -> list[int]:
    """The tokens of `text`, with what the tokenizer puts around a text.

    A text of more than 262,144 characters is encoded piece by piece, each up to a space, so that there the
    tokens may be others than those of the whole.

    Args:
        tokenizer: the tokenizer.
        text: what to encode.
        most: leave out what comes after so many tokens, unread; None for all.
        special_tokens: whether it puts anything around it.
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


def encode_whole(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    most: int,
    pair: str | None = None,
    is_target: bool = False,
    **options: Any,
) -> tuple[Any, bool]:
    """A text with what the tokenizer puts around one, also where it is cut, and whether it is.

    Args:
        tokenizer: the tokenizer.
        text: of which the first 262,144 characters are looked at.
        most: tokens, with those around it.
        pair: a second text, which the tokenizer joins to it; the longer one is cut first.
        is_target: whether it is what a model is to say, which some tokenizers encode in another way.
        options: more of the tokenizer's.
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
    """A text in parts that are encoded one by one, each up to a space."""
    start = 0
    while len(text) - start > _PIECE:
        space = text.rfind(" ", start + 1, start + _PIECE)
        end = space if space > 0 else start + _PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def render_chat(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **options: Any) -> str:
    """The text of a chat by the tokenizer's template; :func:`encode` it without special tokens.

    Args:
        tokenizer: the tokenizer.
        messages: the chat.
        options: more of ``apply_chat_template``'s.

    Raises:
        DataError: the template refuses the chat, is wrong, or takes too much time or memory; without a place.
    """
    try:
        with _limited():
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:
        # Templates are programs: they raise jinja's errors, or whatever their author chose.
        line = getattr(error, "lineno", None) or _line_of_template(error)
        place = f"line {line}: " if line else ""
        reason = str(error) or type(error).__name__
        if isinstance(error, MemoryError):
            reason = f"takes more than {TEMPLATE_BYTES >> 20} MiB of memory"
        raise DataError(place + reason) from error


def _line_of_template(error: Exception) -> int | None:
    """jinja puts the lines of a template into the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == "<template>"), None)


@contextmanager
def _limited() -> Iterator[None]:
    """End what the block does after `TEMPLATE_SECONDS`, or where it asks for `TEMPLATE_BYTES` more memory.

    Seconds are counted in the main thread alone: Python hears signals nowhere else.
    """
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
