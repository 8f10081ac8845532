"""Examples become token ids and labels; -100 marks the tokens that the loss leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from zerokit.data.encoding import encode, render_chat
from zerokit.errors import DataError
from zerokit.training.shapes import Format, messages_of

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from zerokit.recipe.model import DataSection, TaskSection

Features = dict[str, list[int]]

IGNORED = -100


@dataclass(frozen=True)
class Tokenized:
    """Examples as ``input_ids`` and ``labels``, and what became of those that did not fit."""

    dataset: Dataset
    num_left_out: int
    """Examples of which no token would be trained on."""
    num_cut: int
    """Examples cut to the longest sequence."""


def tokenize(
    examples: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    format_: Format,
    data: DataSection,
    task: TaskSection,
    *,
    where: str,
    place: Callable[[int], str] | None = None,
) -> Tokenized:
    """Turn examples into ``input_ids`` and ``labels``, each of at most ``task.seq_len`` tokens.

    Text is packed into full sequences if the task says so.

    Args:
        examples: as loaded.
        tokenizer: the model's.
        format_: what an example is.
        data: names of the columns.
        task: the longest sequence, and what is trained on.
        where: the place of the data in the recipe, for errors.
        place: of one example, by its number from 0; by default its number from 1.

    Raises:
        DataError: a value of the wrong type, a chat that the tokenizer's template cannot render, or no
            token left to train on.
    """
    encode = _Encoder(tokenizer, format_, data, task)
    try:
        tokenized = examples.map(
            encode, batched=True, with_indices=True, remove_columns=examples.column_names, desc="Tokenizing"
        )
    except _UnusableError as error:
        there = place(error.index) if place is not None else f"{where}, example {error.index + 1}"
        raise DataError(error.message, where=there, hint=error.hint) from error
    num_cut = sum(tokenized["is_cut"])
    tokenized = tokenized.remove_columns("is_cut")
    num_left_out = 0
    if format_ == "text" and task.packing and _enough_to_pack(tokenized):
        tokenized = _pack(tokenized, task.seq_len)
    else:
        num_left_out = len(tokenized)
        tokenized = tokenized.filter(_has_targets, input_columns="labels", desc="Filtering")
        num_left_out -= len(tokenized)
    if len(tokenized) == 0:
        raise DataError(
            f"none of its {len(examples)} examples has a token to train on within {task.seq_len} tokens",
            where=where,
            hint="Raise task.seq_len, or check the data",
        )
    return Tokenized(tokenized, num_left_out, num_cut)


class _UnusableError(DataError):
    """An example that cannot be trained on, of which nobody has said yet where it stands."""

    index = 0
    """Its number in the data set, from 0."""


class _Encoder:
    """A batch of examples to features; a picklable callable, so that `datasets` can cache its results."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        format_: Format,
        data: DataSection,
        task: TaskSection,
    ) -> None:
        self.tokenizer = tokenizer
        self.format = format_
        self.columns = data.columns
        self.seq_len = task.seq_len
        self.packing = task.packing
        self.loss_on_all = task.loss_on == "all"
        self.most = None if format_ == "text" and task.packing else task.seq_len + 1
        """Tokens of a text that are looked at: one more than are kept shows that it was cut."""

    def __call__(self, batch: dict[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        features: dict[str, list[Any]] = {"input_ids": [], "labels": [], "is_cut": []}
        for at, index in enumerate(indices):
            example = {column: values[at] for column, values in batch.items()}
            try:
                sequences = self._encode(example)
            except _UnusableError as error:
                error.index = index
                raise
            for input_ids, trained in sequences:
                is_packed = self.format == "text" and self.packing
                end = len(input_ids) if is_packed else self.seq_len
                labels = [
                    token if is_trained or self.loss_on_all else IGNORED
                    for token, is_trained in zip(input_ids, trained, strict=True)
                ]
                features["input_ids"].append(input_ids[:end])
                features["labels"].append(labels[:end])
                features["is_cut"].append(len(input_ids) > end)
        return features

    def _encode(self, example: dict[str, Any]) -> list[tuple[list[int], list[bool]]]:
        """The sequences of an example, with whether each token is an answer."""
        names = self.columns
        match self.format:
            case "messages":
                return self._chat(example[names.messages])
            case "sharegpt":
                try:
                    messages = messages_of(example[names.conversations])
                except DataError as error:
                    raise _UnusableError(error.message, hint=error.hint) from error
                system = _text_or_none(example, names.system)
                return self._chat([_turn("system", system), *messages] if system and messages else messages)
            case "alpaca":
                return self._instruction(example)
            case "text":
                input_ids = [*self._ids(_text(example, names.text)), self.tokenizer.eos_token_id]
                return [(input_ids, [True] * len(input_ids))]
        return self._completion(_text(example, names.prompt), _text(example, names.completion))

    def _instruction(self, example: dict[str, Any]) -> list[tuple[list[int], list[bool]]]:
        names = self.columns
        question, answer = _text(example, names.instruction), _text(example, names.output)
        if given := _text_or_none(example, names.input):
            question = f"{question}\n\n{given}"
        system = _text_or_none(example, names.system)
        said = [_turn("system", system)] if system else []
        for pair in example.get(names.history) or []:
            if (
                not isinstance(pair, list)
                or len(pair) != 2
                or not all(isinstance(text, str) for text in pair)
            ):
                raise _UnusableError(
                    f"'{names.history}' has something other than pairs of a question and its answer",
                    hint="Mend or remove that example",
                )
            said += [_turn("user", pair[0]), _turn("assistant", pair[1])]
        said.append(_turn("user", question))
        if self.tokenizer.chat_template:
            return self._chat([*said, _turn("assistant", answer)])
        return self._completion("".join(f"{turn['content']}\n\n" for turn in said), answer)

    def _completion(self, prompt: str, completion: str) -> list[tuple[list[int], list[bool]]]:
        before = self._ids(prompt)
        after = [*self._ids(completion, special_tokens=False), self.tokenizer.eos_token_id]
        return [([*before, *after], [False] * len(before) + [True] * len(after))]

    def _ids(self, text: str, *, special_tokens: bool = True) -> list[int]:
        ids = encode(self.tokenizer, text, most=self.most, special_tokens=special_tokens)
        if special_tokens and ids and ids[-1] == self.tokenizer.eos_token_id:
            ids = ids[:-1]  # the end of the example is marked once, by the caller
        return ids

    def _chat(self, messages: Any) -> list[tuple[list[int], list[bool]]]:
        """Render a conversation; the assistant's turns (and what ends them) are trained on.

        One sequence, unless the template changes earlier turns when later ones come (some drop the
        reasoning in them): then another one begins at each change, so that the model is trained on every
        turn as it will see it.
        """
        if not self.tokenizer.chat_template:
            raise DataError(
                "the tokenizer has no chat template, which conversations need",
                where="model.tokenizer",
                hint="Name one that has, or put a chat_template.jinja into the tokenizer's folder",
            )
        if not isinstance(messages, list) or not messages:
            self._fail_chat("has no messages")
        if not all(isinstance(turn, dict) for turn in messages):
            self._fail_chat("has a message that is not an object with 'role' and 'content'")
        # datasets fills the keys that some messages lack with None; templates test for presence.
        turns = [{key: value for key, value in turn.items() if value is not None} for turn in messages]
        sequences: list[tuple[list[int], list[bool]]] = []
        for end, turn in enumerate(turns, start=1):
            if turn.get("role") != "assistant":
                continue
            if end == 1:
                self._fail_chat("begins with the assistant, which has nothing to answer")
            prompt = self._render(turns[: end - 1], add_generation_prompt=True)
            whole = self._render(turns[:end])
            if whole[: len(prompt)] != prompt:
                self._fail_chat(f"cannot be masked: message {end} does not begin with the generation prompt")
            before: list[bool] = []
            if sequences and prompt[: len(sequences[-1][0])] == sequences[-1][0]:
                before = sequences.pop()[1]
            trained = before + [False] * (len(prompt) - len(before)) + [True] * (len(whole) - len(prompt))
            sequences.append((whole, trained))
        if not sequences:
            self._fail_chat("has no assistant message")
        return sequences

    def _render(self, turns: list[dict[str, Any]], **options: Any) -> list[int]:
        try:
            rendered = render_chat(self.tokenizer, turns, **options)
        except DataError as error:
            self._fail_chat(f"cannot be rendered by the tokenizer's chat template: {error.message}")
        return encode(self.tokenizer, rendered, most=self.most, special_tokens=False)

    def _fail_chat(self, what: str) -> NoReturn:
        raise _UnusableError(
            f"the conversation {what}", hint="Mend it, or use a tokenizer with another chat template"
        )


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _text_or_none(example: dict[str, Any], column: str) -> str | None:
    """Of a column that there may be."""
    return None if example.get(column) is None else _text(example, column)


def _text(example: dict[str, Any], column: str) -> str:
    value = example[column]
    if value is None:  # datasets fills in what an example lacks
        raise _UnusableError(f"'{column}' is absent or null", hint="Mend or remove that example")
    if not isinstance(value, str):
        raise _UnusableError(
            f"'{column}' is {_described(value)}, not text", hint="Mend or remove that example"
        )
    return value


def _described(value: Any) -> str:
    """What a value is, in the words of JSON."""
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), f"of type {type(value).__name__}")


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
