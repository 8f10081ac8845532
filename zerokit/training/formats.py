"""Detects the format of examples by their columns.

Alpaca's ``instruction``, ``input`` and ``output`` and ShareGPT's ``conversations`` become chats; without a
chat template an instruction becomes the prompt of a completion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.data.encoding import check_content
from zerokit.errors import DataError, did_you_mean
from zerokit.tables import table_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zerokit.recipe.model import Columns, DataSection, Format

_TABLE = table_of(__file__)
ROLES: Mapping[str, str] = _TABLE["roles"]
"""Speaker in ShareGPT's files -> role of a message."""


_NEEDED: Mapping[str, Sequence[str]] = _TABLE["columns"]
"""Format -> keys of `data.columns` that name the columns of an example."""
_OPTIONAL: Mapping[str, Sequence[str]] = _TABLE["optional_columns"]
_PAIRS: Sequence[tuple[str, str]] = [tuple(pair) for pair in _TABLE["pairs"]]
"""Names of the two texts of a pair in GLUE, SuperGLUE and similar data."""


def pair_of(names: Columns, columns: Collection[str]) -> tuple[str, str]:
    """The columns of a pair of texts: those that the recipe names, else the usual ones."""
    own = (names.text, names.text_pair)
    usual = () if names.text in columns else _PAIRS
    return next((pair for pair in (own, *usual) if set(pair) <= set(columns)), own)


def needed_columns(format_: Format, names: Columns, columns: Collection[str]) -> list[str]:
    """The columns that an example of a format must have."""
    named = dict(names)
    if format_ == "text_pair_label":
        named["text"], named["text_pair"] = pair_of(names, columns)
    return [named[key] for key in _NEEDED[format_]]


def detect_format(columns: Sequence[str], data: DataSection, formats: Sequence[Format], *, where: str) -> Format:
    """The format of examples, from the recipe or from their columns.

    Raises:
        DataError: a column is missing, or the task has no such format.
    """
    if data.format != "auto":
        if data.format not in formats:
            raise DataError(
                f"format '{data.format}' is none of this task, which has {', '.join(formats)}",
                where=where,
                hint="Set task.type to the task that the data are for, or data.format to 'auto'",
            )
        for name in needed_columns(data.format, data.columns, columns):
            if name not in columns:
                raise DataError(
                    f"format '{data.format}' needs a column '{name}'; the columns are {', '.join(columns)}",
                    where=where,
                    hint="Set data.columns to the names in your file, or fix the file",
                )
        return data.format
    for format_ in formats:
        if set(needed_columns(format_, data.columns, columns)) <= set(columns):
            return format_
    needed = [needed_columns(each, data.columns, columns) for each in formats]
    wanted = [" and ".join(f"'{name}'" for name in each) for each in needed]
    raise DataError(
        f"cannot tell what an example is from the columns {', '.join(columns)}",
        where=where,
        hint=f"Use {', '.join(wanted[:-1])}{' or ' if wanted[1:] else ''}{wanted[-1]}, or set data.columns",
    )


def used_columns(format_: Format, names: Columns, columns: Sequence[str]) -> list[str]:
    """All existing columns that are part of an example."""
    may_be = [getattr(names, key) for key in _OPTIONAL.get(format_, ())]
    return [name for name in (*needed_columns(format_, names, columns), *may_be) if name in columns]


def text_columns(format_: Format, names: Columns, columns: Sequence[str]) -> list[str] | None:
    """The columns with text; None if examples are lists."""
    if format_ in ("messages", "sharegpt", "tokens_tags"):
        return None
    no_text = (names.history, names.label)
    return [name for name in used_columns(format_, names, columns) if name not in no_text]


def describe_format(
    format_: Format, names: Columns, columns: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> str:
    """A message about the detected format, its conversion, and the columns that are not read."""
    used = used_columns(format_, names, columns)
    unused = [name for name in columns if name not in used]
    becomes = {"alpaca": " (alpaca), as chats", "sharegpt": " (sharegpt), as chats"}.get(format_, "")
    if format_ == "alpaca" and not tokenizer.chat_template:
        becomes = " (alpaca), as prompts and completions: there is no chat template"
    left = f"; not used: {', '.join(unused)}" if unused else ""
    return f"{', '.join(used)}{becomes}{left}"


def messages_of(conversation: Any) -> Any:
    """A ShareGPT conversation as messages, from its first question on; DataError without a place."""
    if not isinstance(conversation, list) or not all(isinstance(turn, dict) for turn in conversation):
        return conversation
    messages = []
    for number, turn in enumerate(conversation, start=1):
        speaker = turn.get("from")
        if speaker is None:
            messages.append(turn)
        elif not isinstance(speaker, str) or speaker not in ROLES:
            raise DataError(
                f"the conversation has a message from '{speaker}'", hint=did_you_mean(str(speaker), list(ROLES))
            )
        else:
            check_content(turn.get("value"), "value", number)
            messages.append({"role": ROLES[speaker], "content": turn["value"]})
    roles = [message.get("role") for message in messages]
    # Files of shared links often begin in the middle, with an answer whose question is elsewhere.
    while roles and roles[0] == "assistant":
        del roles[0], messages[0]
    return messages
