"""Prompts: read, turned into tokens, and checked to fit the model."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from zerokit.data.encoding import check_chat, encode, render_chat, value_kind
from zerokit.data.files import common_format, find_files
from zerokit.data.sources import load_examples, place_of
from zerokit.documents import shortened
from zerokit.errors import ConfigError, DataError, did_you_mean
from zerokit.files import new_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zerokit.generation.model import ModelFiles
    from zerokit.generation.options import Options

COLUMNS = ("prompt", "messages", "text")
"""Columns with prompts; the first that exists is used."""

STDIN = "-"

Message = dict[str, Any]

Prompt = str | list[Message]
"""Text, or the messages of a chat, as the user gave it."""


@dataclass
class Prompts:
    """The prompts of the input, and which of them cannot be used."""

    values: list[Any]
    """A :data:`Prompt` each or, if it is none, what the input has in its place."""
    errors: dict[int, DataError]
    """Index of a prompt -> why it cannot be used, without a place."""
    column: str | None = "prompt"
    """Where the values come from; None: from several, by a template."""


def load_prompts(options: Options) -> Prompts:
    """All prompts, in the order of the input, without blank lines of texts. Reads stdin for ``-``.

    Raises:
        DataError: the input is missing, malformed, empty, or without a usable column.
        ConfigError: the template is malformed, or names a column that does not exist.
    """
    if options.prompts == STDIN:
        with tempfile.TemporaryDirectory() as folder:
            file = str(_keep_stdin(Path(folder)))
            try:
                return _load_source(options, file)
            except DataError as error:
                where = (error.where or "").replace(file, f"--prompts {STDIN}")
                raise DataError(error.message.replace(file, STDIN), where=where, hint=error.hint) from None
    if options.prompts is not None:
        return _load_source(options, options.prompts)
    return _read_rows(options, ["prompt"], lambda _: iter(options.texts))


def _keep_stdin(folder: Path) -> Path:
    """Write stdin to a file in a folder: JSON lines if it begins with an object, else text."""
    if sys.stdin is None or sys.stdin.isatty():
        raise DataError(
            "stdin is closed or a terminal", where="--prompts", hint="Pipe the prompts into zerokit, or name a file"
        )
    start, line = b"", sys.stdin.buffer.readline()
    while line and not line.removeprefix(BOM_UTF8).strip():
        start, line = start + line, sys.stdin.buffer.readline()
    is_object = re.match(rb'\s*\{\s*("|\}\s*$)', line.removeprefix(BOM_UTF8))
    path = folder / ("stdin.jsonl" if is_object else "stdin.txt")
    with new_file(path) as file:
        file.write(start + line)
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def _load_source(options: Options, source: str) -> Prompts:
    examples = load_examples(source, where="--prompts", subset=options.subset, split=options.split, text_unit="line")
    files = find_files(source, "--prompts", options.split)
    if files and common_format(files, "--prompts").kind == "text":
        lines = [line.rstrip("\r") for line in examples.column("text") if line.strip()]
        if not lines:
            raise DataError(f"'{source}' has only blank lines", where="--prompts", hint="Write a prompt")
        return _read_rows(options, ["text"], lambda _: iter(lines))
    return _read_rows(options, examples.columns, examples.column)


def _read_rows(options: Options, columns: list[str], values_of: Callable[[str], Iterator[Any]]) -> Prompts:
    """The prompts of a table's rows, from one column or by the template."""
    column = None
    if options.template is not None:
        parts = read_template(options.template, columns)
        fields = [field for _, field in parts if field is not None]
        rows: Iterator[Any] = (
            dict(zip(fields, row, strict=True)) for row in zip(*map(values_of, fields), strict=True)
        )
        read: Callable[[Any], Prompt] = partial(_fill, parts)
    else:
        column = next((name for name in COLUMNS if name in columns), None)
        if column is None:
            found = ", ".join(f"'{name}'" for name in columns)
            near = [name for name in columns if did_you_mean(name, COLUMNS).startswith("Did")]
            raise DataError(
                f"'{options.prompts}' has no column 'prompt', 'messages' or 'text', only {found}",
                where="--prompts",
                hint=f"Rename '{near[0]}'" if near else "Rename the column, or write a --template",
            )
        rows, read = values_of(column), partial(_from_row, column=column)
    prompts = Prompts([], {}, column)
    for number, row in enumerate(rows):
        value = row
        try:
            value = read(row)
        except DataError as error:
            prompts.errors[number] = error
        prompts.values.append(value)
    return prompts


def read_template(text: str, columns: Sequence[str]) -> list[tuple[str, str | None]]:
    """Parts of a template: text, and the column whose value follows. Only names of columns stand in braces.

    Raises:
        ConfigError: it is malformed, names no column, or one that does not exist.
    """
    where = "--template"
    try:
        found = list(Formatter().parse(text.replace("\\n", "\n").replace("\\t", "\t")))
    except ValueError as error:
        raise ConfigError(f"{error}", where=where, hint="Write {{ and }} for braces") from None
    for _, field, spec, conversion in found:
        if spec or conversion:
            what = f"'{field}' has a conversion or a format"
            raise ConfigError(what, where=where, hint="Write only the column's name in braces")
        if field is not None and field not in columns:
            raise ConfigError(f"no column '{field}'", where=where, hint=did_you_mean(field, columns))
    if all(field is None for _, field, _, _ in found):
        raise ConfigError("names no column", where=where, hint=f"Write one of them in braces: {', '.join(columns)}")
    return [(literal, field) for literal, field, _, _ in found]


def _fill(parts: Sequence[tuple[str, str | None]], row: Mapping[str, Any]) -> str:
    for field, value in row.items():
        if not isinstance(value, str | int | float):
            raise DataError(f"'{field}' is {value_kind(value)}", hint="Write text or a number there")
    return "".join(literal + ("" if field is None else str(row[field])) for literal, field in parts)


def tokenize(
    prompts: Prompts, model: ModelFiles, *, max_prompt_tokens: int | None, max_new_tokens: int
) -> list[Sequence[int]]:
    """The tokens of each prompt, with those that the tokenizer or its chat template adds.

    Adds to the errors a prompt that is empty, too long, refused by the chat template, or with a token that
    the model lacks; its tokens are empty.

    Args:
        max_prompt_tokens: keep the last tokens only; None keeps all.
    """
    result: list[Sequence[int]] = []
    positions = model.max_encoder_positions if model.config.is_encoder_decoder else model.max_positions
    # Of one that is too long, no more than shows it; but the last ones are known only with all others.
    most = positions + 1 if max_prompt_tokens is None and positions is not None else None
    for number, prompt in enumerate(prompts.values):
        tokens: list[int] = []
        if number not in prompts.errors:
            try:
                tokens = _tokens_of(prompt, model.tokenizer, most)[-(max_prompt_tokens or 0) :]
                _check_tokens(tokens, model, max_new_tokens)
            except DataError as error:
                prompts.errors[number], tokens = error, []
        result.append(array("i", tokens))
    return result


def refuse_all(prompts: Prompts, options: Options) -> None:
    """Raise a DataError if no prompt can be used, with the place of the first."""
    if len(prompts.errors) < len(prompts.values):
        return
    first = prompts.errors[0]
    where = "prompt 0"
    if options.prompts not in (None, STDIN):
        files = find_files(options.prompts or (), "--prompts", options.split)
        row = place_of(options.prompts or (), 0, where="--prompts", split=options.split) if files else options.prompts
        where = f"{row}, {where}"
    count = len(prompts.values)
    message = f"{first.message}, and no other of {count} prompts can be used" if count > 1 else first.message
    raise DataError(message, where=where, hint=first.hint)


def _from_row(value: Any, column: str) -> Prompt:
    """The prompt of a row; DataError, without a place, if it is none."""
    if isinstance(value, str) and column != "messages":
        return value
    if not isinstance(value, list) or column == "text":
        expected = "a list of messages" if column == "messages" else "text"
        found = "nothing" if value is None else shortened(repr(value))
        raise DataError(f"found {found} in '{column}', expected {expected}", hint="Correct that row")
    return _messages(value)


def _messages(value: list[Any]) -> list[Message]:
    if not value:
        raise DataError("has no messages", hint="Write at least one")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError("a message is not a mapping with a role", hint='Write {"role": "user", "content": "..."}')
    check_chat(value)
    # Templates test for the presence of keys.
    messages = [{key: item for key, item in message.items() if item is not None} for message in value]
    if messages[-1]["role"] == "assistant":
        raise DataError(
            "the last message is the assistant's, so there is nothing to answer", hint="Remove that message"
        )
    return messages


def _tokens_of(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, most: int | None) -> list[int]:
    text = prompt if isinstance(prompt, str) else _render(tokenizer, prompt)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # from the command line, or from Python
        raise DataError("is not UTF-8", hint="Set the terminal to UTF-8, or correct the text") from None
    return encode(tokenizer, text, most=most, special_tokens=isinstance(prompt, str))


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
    if tokenizer.chat_template is None:
        raise DataError(
            "is a chat, but the tokenizer has no chat template",
            hint="Use a chat model, or a column 'prompt' with text",
        )
    try:
        return render_chat(tokenizer, messages, add_generation_prompt=True)
    except DataError as error:
        message = f"the chat template refuses it: {error.message}"
        raise DataError(message, hint="Correct the messages") from error


def _check_tokens(tokens: Sequence[int], model: ModelFiles, max_new_tokens: int) -> None:
    if not tokens:
        raise DataError("is empty", hint="Write something in it, or remove it")
    if max(tokens) >= model.vocab_size:
        raise DataError(
            f"has token {max(tokens)}, but the model has only {model.vocab_size} embeddings",
            hint="Use the tokenizer that belongs to the model",
        )
    if model.config.is_encoder_decoder:
        _check_halves(tokens, model, max_new_tokens)
        return
    positions = model.max_positions
    if positions is None or len(tokens) + max_new_tokens <= positions:
        return
    found = f"{len(tokens)}" if len(tokens) <= positions else f"more than {positions}"
    room = positions - max_new_tokens
    if room > 0:
        hint = f"Shorten it, pass --max-prompt-tokens {room}, or lower --max_new_tokens"
    elif len(tokens) < positions:
        hint = f"Lower --max_new_tokens to {positions - len(tokens)}"
    else:
        hint = f"Shorten it to fewer than {positions} tokens, and lower --max_new_tokens"
    raise DataError(
        f"{found} tokens and {max_new_tokens} new ones do not fit the model's {positions} positions", hint=hint
    )


def _check_halves(tokens: Sequence[int], model: ModelFiles, max_new_tokens: int) -> None:
    """Compare the prompt with the encoder's positions, and the completion with the decoder's."""
    most, most_new = model.max_encoder_positions, model.max_positions
    if most is not None and len(tokens) > most:
        hint = f"Shorten it, or pass --max-prompt-tokens {most}"
        raise DataError(f"more than {most} tokens do not fit the encoder's positions", hint=hint)
    if most_new is not None and max_new_tokens > most_new:
        hint = f"Lower --max_new_tokens to {most_new}"
        raise DataError(f"{max_new_tokens} new tokens do not fit the decoder's {most_new} positions", hint=hint)
