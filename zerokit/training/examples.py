"""Examples become token ids and labels; -100 marks the tokens that the loss leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from zerokit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from zerokit.recipe.model import DataSection, TaskSection

Format = Literal["text", "prompt_completion", "messages"]
Features = dict[str, list[int]]

IGNORED = -100


def detect_format(columns: list[str], data: DataSection, *, where: str) -> Format:
    """What an example is, by the recipe or by its columns.

    Raises:
        DataError: a column that the format needs is not there.
    """
    names = data.columns
    needed: dict[Format, list[str]] = {
        "messages": [names.messages],
        "prompt_completion": [names.prompt, names.completion],
        "text": [names.text],
    }
    if data.format != "auto":
        for name in needed[data.format]:
            if name not in columns:
                raise DataError(
                    f"format '{data.format}' needs a column '{name}'; the columns are {', '.join(columns)}",
                    where=where,
                    hint="Set data.columns to the names in your file, or mend the file",
                )
        return data.format
    for format_, required in needed.items():
        if set(required) <= set(columns):
            return format_
    raise DataError(
        f"cannot tell what an example is from the columns {', '.join(columns)}",
        where=where,
        hint="Use 'text', 'prompt' and 'completion', or 'messages', or set data.columns",
    )


def tokenize(
    examples: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    format_: Format,
    data: DataSection,
    task: TaskSection,
    *,
    where: str,
) -> Dataset:
    """Turn examples into ``input_ids`` and ``labels``, each of at most ``task.seq_len`` tokens.

    Text is packed into full sequences if the task says so; an example of which no token would be
    trained on is left out.

    Raises:
        DataError: a value of the wrong type, a chat that the tokenizer's template cannot render, or no
            token left to train on.
    """
    encode = _Encoder(tokenizer, format_, data, task, where)
    tokenized = examples.map(
        encode, with_indices=True, remove_columns=examples.column_names, desc="Tokenizing"
    )
    if format_ == "text" and task.packing and _enough_to_pack(tokenized):
        tokenized = _pack(tokenized, task.seq_len)
    else:
        tokenized = tokenized.filter(_has_targets, input_columns="labels", desc="Filtering")
    if len(tokenized) == 0:
        raise DataError(
            f"none of its {len(examples)} examples has a token to train on within {task.seq_len} tokens",
            where=where,
            hint="Raise task.seq_len, or check the data",
        )
    return tokenized


class _Encoder:
    """One example to features; a picklable callable, so that `datasets` can cache its results."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        format_: Format,
        data: DataSection,
        task: TaskSection,
        where: str,
    ) -> None:
        self.tokenizer = tokenizer
        self.format = format_
        self.columns = data.columns
        self.seq_len = task.seq_len
        self.packing = task.packing
        self.loss_on_all = task.loss_on == "all"
        self.where = where

    def __call__(self, example: dict[str, Any], index: int) -> Features:
        if self.format == "text":
            input_ids = [*self._ids(example, self.columns.text, index), self.tokenizer.eos_token_id]
            if self.packing:
                return {"input_ids": input_ids, "labels": input_ids}
            trained = [True] * len(input_ids)
        elif self.format == "prompt_completion":
            prompt = self._ids(example, self.columns.prompt, index)
            completion = self._ids(example, self.columns.completion, index, special_tokens=False)
            input_ids = [*prompt, *completion, self.tokenizer.eos_token_id]
            trained = [False] * len(prompt) + [True] * (len(completion) + 1)
        else:
            input_ids, trained = self._chat(example[self.columns.messages], index)
        if self.loss_on_all:
            trained = [True] * len(input_ids)
        labels = [
            token if is_trained else IGNORED for token, is_trained in zip(input_ids, trained, strict=True)
        ]
        return {"input_ids": input_ids[: self.seq_len], "labels": labels[: self.seq_len]}

    def _ids(
        self, example: dict[str, Any], column: str, index: int, *, special_tokens: bool = True
    ) -> list[int]:
        text = example[column]
        if not isinstance(text, str):
            raise DataError(
                f"'{column}' of example {index + 1} is {type(text).__name__}, not text",
                where=self.where,
                hint="Mend or remove that example",
            )
        ids: list[int] = self.tokenizer(text, add_special_tokens=special_tokens)["input_ids"]
        if special_tokens and ids and ids[-1] == self.tokenizer.eos_token_id:
            ids = ids[:-1]  # the end of the example is marked once, by the caller
        return ids

    def _chat(self, messages: Any, index: int) -> tuple[list[int], list[bool]]:
        """Render a conversation; the assistant's turns (and what ends them) are trained on."""
        if not isinstance(messages, list) or not messages:
            self._fail_chat(index, "has no messages")
        if not all(isinstance(turn, dict) for turn in messages):
            self._fail_chat(index, "has a message that is not an object with 'role' and 'content'")
        # datasets fills the keys that some messages lack with None; templates test for presence.
        turns = [{key: value for key, value in turn.items() if value is not None} for turn in messages]
        input_ids: list[int] = []
        trained: list[bool] = []
        for end, turn in enumerate(turns, start=1):
            if turn.get("role") != "assistant":
                continue
            if end == 1:
                self._fail_chat(index, "begins with the assistant, which has nothing to answer")
            prompt = self._render(turns[: end - 1], index, add_generation_prompt=True)
            whole = self._render(turns[:end], index)
            if whole[: len(prompt)] != prompt or prompt[: len(input_ids)] != input_ids:
                self._fail_chat(
                    index, f"cannot be masked: the chat template changes earlier turns at message {end}"
                )
            trained += [False] * (len(prompt) - len(input_ids)) + [True] * (len(whole) - len(prompt))
            input_ids = whole
        if not input_ids:
            self._fail_chat(index, "has no assistant message")
        return input_ids, trained

    def _render(self, turns: list[dict[str, Any]], index: int, **options: Any) -> list[int]:
        try:
            rendered: list[int] = self.tokenizer.apply_chat_template(
                turns, tokenize=True, return_dict=False, **options
            )
        except Exception as error:
            # Templates are programs: they raise jinja's errors, or whatever their author chose.
            self._fail_chat(index, f"cannot be rendered by the tokenizer's chat template: {error}")
        return rendered

    def _fail_chat(self, index: int, what: str) -> NoReturn:
        raise DataError(
            f"the conversation of example {index + 1} {what}",
            where=self.where,
            hint="Mend it, or use a tokenizer with another chat template",
        )


def _has_targets(labels: list[int]) -> bool:
    # The first label has no token before it to be predicted from.
    return any(label != IGNORED for label in labels[1:])


def _enough_to_pack(tokenized: Dataset) -> bool:
    """Whether there are two tokens, of which one is predicted from the other."""
    return len(tokenized) > 1 or len(tokenized[0]["input_ids"]) > 1


def _pack(tokenized: Dataset, seq_len: int) -> Dataset:
    """Join all documents and cut them into sequences of `seq_len` tokens."""
    from datasets import Dataset

    # Keyword arguments are hashed for the cache, so that a second rank finds what the first one wrote.
    return Dataset.from_generator(_blocks, gen_kwargs={"tokenized": tokenized, "seq_len": seq_len})


def _blocks(tokenized: Dataset, seq_len: int) -> Iterator[Features]:
    """Full sequences; the rest that does not fill one is dropped, unless it is all there is."""
    rest: list[int] = []
    full = False
    for ids in tokenized["input_ids"]:
        rest += ids
        while len(rest) >= seq_len:
            full = True
            yield {"input_ids": rest[:seq_len], "labels": rest[:seq_len]}
            rest = rest[seq_len:]
    if not full and len(rest) > 1:
        yield {"input_ids": rest, "labels": rest}
