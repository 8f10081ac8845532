"""Prompts: read, turned into tokens, and checked to fit the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.content import FileContent, digest_files
from zerokit.data.encoding import check_chat, encode, render_chat
from zerokit.data.files import common_format, find_files
from zerokit.data.sources import load_examples, place_of
from zerokit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zerokit.generation.model import ModelFiles
    from zerokit.generation.options import Options

COLUMNS = ("prompt", "messages", "text")
"""Columns with prompts; the first that exists is used."""

Message = dict[str, Any]


Prompt = str | list[Message]
"""Text, or the messages of a chat, as the user gave it."""


def digest_prompts(options: Options) -> dict[Path, FileContent]:
    """The content of the files with prompts. DataError if files are missing or cannot be read."""
    return digest_files(find_files(options.prompts or (), "--prompts", options.split))


def load_prompts(options: Options, contents: Mapping[Path, FileContent] | None = None) -> list[Prompt]:
    """All prompts, in the order of the input, without blank lines of texts.

    Args:
        contents: from :func:`digest_prompts`; None computes them.

    Raises:
        DataError: missing, malformed or empty, without a usable column, or with a row that is not a prompt.
    """
    if options.prompts is None:
        return [_from_words(text, number) for number, text in enumerate(options.texts)]
    examples = load_examples(
        options.prompts,
        where="--prompts",
        subset=options.subset,
        split=options.split,
        text_unit="line",
        contents=contents,
    )
    column = next((name for name in COLUMNS if name in examples.columns), None)
    if column is None:
        found = ", ".join(f"'{name}'" for name in examples.columns)
        near = [name for name in examples.columns if did_you_mean(name, COLUMNS).startswith("Did")]
        rename = f"Rename '{near[0]}'" if near else "Rename the column"
        raise DataError(
            f"'{options.prompts}' has no column 'prompt', 'messages' or 'text', only {found}",
            where="--prompts",
            hint=rename,
        )
    values = list(examples.column(column))
    files = find_files(options.prompts, "--prompts", options.split)
    if files and common_format(files, "--prompts").kind == "text":
        values = [line.rstrip("\r") for line in values if line.strip()]
        if not values:
            raise DataError(
                f"'{options.prompts}' has only blank lines", where="--prompts", hint="Write a prompt"
            )
    prompts = []
    for number, value in enumerate(values):
        try:
            prompts.append(_from_row(value, column))
        except DataError as error:
            row = place_of(options.prompts, number, where="--prompts", split=options.split)
            where = f"{row}, {_place(number)}" if files else f"{options.prompts}, {_place(number)}"
            raise DataError(error.message, where=where, hint=error.hint) from None
    return prompts


def tokenize(
    prompts: Sequence[Prompt], model: ModelFiles, *, max_prompt_tokens: int | None, max_new_tokens: int
) -> list[list[int]]:
    """The tokens of each prompt, with those that the tokenizer or its chat template adds.

    Args:
        max_prompt_tokens: keep the last tokens only; None keeps all.

    Raises:
        DataError: a prompt is empty, too long, refused by the chat template, or has a token that the model
            lacks.
    """
    result = []
    # Of one that is too long, no more than shows it; but the last ones are known only with all others.
    most = model.max_positions + 1 if max_prompt_tokens is None and model.max_positions is not None else None
    for number, prompt in enumerate(prompts):
        tokens = _tokens_of(prompt, number, model.tokenizer, most)
        if not tokens:
            raise DataError("is empty", where=_place(number), hint="Write something in it, or remove it")
        if max_prompt_tokens is not None:
            tokens = tokens[-max_prompt_tokens:]
        _check_length(len(tokens), number, model.max_positions, max_new_tokens)
        if max(tokens) >= model.vocab_size:
            raise DataError(
                f"has token {max(tokens)}, but the model has only {model.vocab_size} embeddings",
                where=_place(number),
                hint="Use the tokenizer that belongs to the model",
            )
        result.append(tokens)
    return result


def _from_words(text: str, number: int) -> Prompt:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError("is not UTF-8", where=_place(number), hint="Set the terminal to UTF-8") from None
    return text


def _from_row(value: Any, column: str) -> Prompt:
    """The prompt of a row; DataError, without a place, if it is none."""
    if isinstance(value, str) and column != "messages":
        return value
    if not isinstance(value, list) or column == "text":
        expected = "a list of messages" if column == "messages" else "text"
        found = "nothing" if value is None else f"{value!r}"
        raise DataError(f"expected {expected} in '{column}', found {found}", hint="Correct that row")
    return _messages(value)


def _messages(value: list[Any]) -> list[Message]:
    if not value:
        raise DataError("has no messages", hint="Write at least one")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(
                "a message is not a mapping with a role", hint='Write {"role": "user", "content": "..."}'
            )
    check_chat(value)
    # Templates test for the presence of keys.
    messages = [{key: item for key, item in message.items() if item is not None} for message in value]
    if messages[-1]["role"] == "assistant":
        raise DataError(
            "the last message is the assistant's, so there is nothing to answer", hint="Remove that message"
        )
    return messages


def _tokens_of(
    prompt: Prompt, number: int, tokenizer: PreTrainedTokenizerBase, most: int | None
) -> list[int]:
    if isinstance(prompt, str):
        return encode(tokenizer, prompt, most=most)
    if tokenizer.chat_template is None:
        raise DataError(
            "is a chat, but the tokenizer has no chat template",
            where=_place(number),
            hint="Use a chat model, or a column 'prompt' with text",
        )
    try:
        text = render_chat(tokenizer, prompt, add_generation_prompt=True)
    except DataError as error:
        raise DataError(
            f"the chat template refuses it: {error.message}",
            where=_place(number),
            hint="Correct the messages",
        ) from error
    return encode(tokenizer, text, most=most, special_tokens=False)


def _check_length(length: int, number: int, max_positions: int | None, max_new_tokens: int) -> None:
    if max_positions is None or length + max_new_tokens <= max_positions:
        return
    found = f"{length}" if length <= max_positions else f"more than {max_positions}"
    room = max_positions - max_new_tokens
    if room > 0:
        hint = f"Shorten it, pass --max-prompt-tokens {room}, or lower --max_new_tokens"
    else:
        hint = f"Lower --max_new_tokens below {max_positions}"
    raise DataError(
        f"{found} tokens and {max_new_tokens} new ones do not fit the model's {max_positions} positions",
        where=_place(number),
        hint=hint,
    )


def _place(number: int) -> str:
    return f"prompt {number}"
