"""Encodes texts, completions and chats for models that predict the next token; answers are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from zerokit.data.encoding import check_chat, count_shared, count_tokens, encode, render_chat, value_kind
from zerokit.errors import DataError, nearest
from zerokit.recipe.model import Columns, Format, TaskSection
from zerokit.training.examples import IGNORED, Encoded, Encoder, UnusableError, text_of, text_or_none
from zerokit.training.formats import ROLES, messages_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OTHER_TEMPLATE = "Fix it, or use a tokenizer with another chat template"
_MOST_ROLES = 4
_LONGEST_ROLE = 40
"""Characters of a role to print; a file may have its texts there."""


class _Labelled(NamedTuple):
    input_ids: list[int]
    trained: list[bool]
    """Whether each token is one of an answer."""
    joins_prompt: bool = False
    """See :class:`Encoded`."""


class AnswerEncoder(Encoder):
    """Encodes texts, prompts with completions, and chats as ``input_ids`` and ``labels``.

    Args:
        apart: whether the model keeps documents in one sequence apart.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        format_: Format,
        columns: Columns,
        task: TaskSection,
        *,
        apart: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.format = format_
        self.columns = columns
        self.seq_len = task.seq_len
        is_packed = format_ == "text" if task.packing is None else task.packing
        self.packed_len = task.seq_len if is_packed else None
        self.apart = apart
        self.loss_on_all = task.loss_on == "all"
        self.is_whole = is_packed and format_ == "text"
        """Whether long texts continue in the next sequence instead of being cut."""
        self.most = None if self.is_whole else task.seq_len + 1
        """Tokens of a text that are looked at: one more than are kept shows that it was cut."""

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        pairs = self._encode(example)
        if self.is_whole and self.apart:
            pairs = [part for pair in pairs for part in self._parts(pair.input_ids, pair.trained)]
        return [self._encoded(*pair) for pair in pairs]

    def _parts(self, input_ids: list[int], trained: list[bool]) -> Iterator[_Labelled]:
        """A text in sequences that are short enough; a single last token would have no prediction."""
        for start in range(0, max(len(input_ids) - 1, 1), self.seq_len):
            end = start + self.seq_len
            yield _Labelled(input_ids[start:end], trained[start:end])

    def _encoded(self, input_ids: list[int], trained: list[bool], joins_prompt: bool = False) -> Encoded:
        end = len(input_ids) if self.is_whole else self.seq_len
        labels = [
            token if is_trained or self.loss_on_all else IGNORED
            for token, is_trained in zip(input_ids, trained, strict=True)
        ][:end]
        # The first label has no token before it to be predicted from.
        has_targets = any(label != IGNORED for label in labels[1:])
        features = {"input_ids": input_ids[:end], "labels": labels}
        return Encoded(features, len(input_ids) > end, has_targets, joins_prompt=joins_prompt and not self.loss_on_all)

    def completion(self, prompt: str, completion: str) -> Encoded:
        """A prompt and its completion, which is trained on."""
        return self._encoded(*self._completion(prompt, completion)[0])

    def last_turn(self, messages: list[Any]) -> Encoded:
        """A chat with its last turn as the answer; UnusableError if that is not the assistant's."""
        return self._encoded(*self._answered(messages, len(messages) - 1)[-1])

    def _answered(self, messages: list[Any], given: int) -> list[_Labelled]:
        """A chat with the assistant's messages after the first `given` ones as answers."""
        sequences = self._chat(messages, given)
        if messages[-1].get("role") != "assistant":
            self._fail_chat("does not end with the assistant")
        return sequences

    def _encode(self, example: dict[str, Any]) -> list[_Labelled]:
        """The sequences of an example, with whether each token is an answer."""
        names = self.columns
        match self.format:
            case "messages":
                return self._chat(example[names.messages])
            case "sharegpt":
                try:
                    messages = messages_of(example[names.conversations])
                except DataError as error:
                    raise UnusableError(error.message, hint=error.hint) from error
                system = text_or_none(example, names.system)
                return self._chat([_turn("system", system), *messages] if system and messages else messages)
            case "alpaca":
                return self._instruction(example)
            case "text":
                input_ids = [*self._ids(text_of(example, names.text)), self.tokenizer.eos_token_id]
                return [_Labelled(input_ids, [True] * len(input_ids))]
        prompt, completion = example[names.prompt], example[names.completion]
        if isinstance(completion, list):
            return self._answered(*joined(prompt, completion, names.prompt))
        return self._completion(text_of(example, names.prompt), text_of(example, names.completion))

    def _instruction(self, example: dict[str, Any]) -> list[_Labelled]:
        names = self.columns
        question, answer = text_of(example, names.instruction), text_of(example, names.output)
        if given := text_or_none(example, names.input):
            question = f"{question}\n\n{given}"
        system = text_or_none(example, names.system)
        said = [_turn("system", system)] if system else []
        history = example.get(names.history)
        if not isinstance(history, list | None):
            raise UnusableError(f"'{names.history}' is {value_kind(history)}, not a list")
        for pair in history or []:
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
                raise UnusableError(f"'{names.history}' has something other than pairs of a question and its answer")
            said += [_turn("user", pair[0]), _turn("assistant", pair[1])]
        said.append(_turn("user", question))
        if self.tokenizer.chat_template:
            return self._chat([*said, _turn("assistant", answer)])
        return self._completion("".join(f"{turn['content']}\n\n" for turn in said), answer)

    def _completion(self, prompt: str, completion: str) -> list[_Labelled]:
        before = self._ids(prompt)
        after = [*self._ids(completion, special_tokens=False), self.tokenizer.eos_token_id]
        return [_Labelled([*before, *after], [False] * len(before) + [True] * len(after))]

    def _ids(self, text: str, *, special_tokens: bool = True) -> list[int]:
        ids = encode(self.tokenizer, text, most=self.most, special_tokens=special_tokens)
        if special_tokens and ids and ids[-1] == self.tokenizer.eos_token_id:
            ids = ids[:-1]  # the end of the example is marked once, by the caller
        return ids

    def _chat(self, messages: Any, given: int = 0) -> list[_Labelled]:
        """Render a conversation; the assistant's turns after the first `given` ones are trained on.

        One sequence, unless the template changes earlier turns when later ones follow (some drop the
        reasoning): then another one begins at each change, so that the model is trained on every turn as it
        will see it.
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
        try:
            check_chat(messages)
        except DataError as error:
            raise UnusableError(error.message, hint=error.hint) from error
        turns = [_without_none(turn) for turn in messages]
        sequences: list[_Labelled] = []
        for end, turn in enumerate(turns, start=1):
            if turn.get("role") != "assistant":
                continue
            if end == 1:
                self._fail_chat("begins with the assistant, which has nothing to answer")
            texts = self._render(turns[: end - 1], add_generation_prompt=True), self._render(turns[:end])
            prompt, whole = (encode(self.tokenizer, text, most=self.most, special_tokens=False) for text in texts)
            joins = whole[: len(prompt)] != prompt
            if joins:
                prompt = whole[: self._count_prompt_tokens(*texts, end)]
            before: list[bool] = []
            if sequences and prompt[: len(sequences[-1][0])] == sequences[-1][0]:
                joins = joins or sequences[-1].joins_prompt
                before = sequences.pop().trained
            trained = before + [False] * (len(prompt) - len(before)) + [end > given] * (len(whole) - len(prompt))
            sequences.append(_Labelled(whole, trained, joins))
        if not sequences:
            self._fail_chat(*_no_answer(turns))
        if given:  # an answer among them may have a sequence of its own
            return [sequence for sequence in sequences if any(sequence.trained)] or sequences[-1:]
        return sequences

    def _count_prompt_tokens(self, prompt: str, whole: str, number: int) -> int:
        """The tokens of a chat before the one in which its answer begins.

        Raises:
            UnusableError: the chat does not begin with the prompt, apart from white space at its end.
        """
        shared = count_shared(prompt, whole)
        if prompt[shared:].strip():
            what = f"answers cannot be masked: message {number} does not begin with the generation prompt"
            raise UnusableError(what, where="the tokenizer's chat_template", hint=_OTHER_TEMPLATE)
        return count_tokens(self.tokenizer, whole, shared)

    def _render(self, turns: list[dict[str, Any]], **options: Any) -> str:
        try:
            return render_chat(self.tokenizer, turns, **options)
        except DataError as error:
            what = f"cannot be rendered by the tokenizer's chat template: {error.message}"
            self._fail_chat(what, _OTHER_TEMPLATE)

    def _fail_chat(self, what: str, hint: str = "Fix or remove that example") -> NoReturn:
        raise UnusableError(f"the conversation {what}", hint=hint)


def _no_answer(turns: list[dict[str, Any]]) -> tuple[str, str]:
    """The roles in a chat without an assistant, and a hint."""
    roles = list(dict.fromkeys(str(turn["role"])[:_LONGEST_ROLE] for turn in turns if "role" in turn))
    shown = ", ".join(f"'{role}'" for role in roles[:_MOST_ROLES])
    more = ", ..." if roles[_MOST_ROLES:] else ""
    found = f"the roles in it are {shown}{more}" if roles else "there are no roles in it"
    what = f"has no assistant message: {found}"
    for role in roles:
        if ROLES.get(role) == "assistant" or nearest(role, ["assistant"]):
            return what, f"Did you mean 'assistant' by '{role}'?"
    return what, "Add what the assistant answers, or remove that example"


def joined(prompt: Any, answer: list[Any], name: str) -> tuple[list[Any], int]:
    """The messages of a prompt and its answer, and how many of them belong to the prompt.

    A prompt is a string or messages; None for no prompt. A whole chat already contains its prompt, which data
    sets often repeat in a column. A string is the system message unless it is one of the messages, or
    contains all messages before the answer. UnusableError if the chat has another system message, or an
    answer has no prompt.
    """
    begins = answer[0].get("role") if answer and isinstance(answer[0], dict) else None
    if prompt is None:
        if begins != "assistant":
            return answer, 0
        raise UnusableError(f"'{name}' is absent or null")
    if isinstance(prompt, str):
        if begins == "assistant":
            return [_turn("user", prompt), *answer], 1
        said = [str(turn.get("content")).strip() for turn in answer if isinstance(turn, dict)]
        is_rendered = len(said) > 1 and all(message in prompt for message in said[:-1])
        if not prompt.strip() or prompt.strip() in said or is_rendered:
            return answer, 0
        if begins == "system":
            raise UnusableError(
                "the prompt is no message of the conversation", hint="Remove it, or give a list of messages"
            )
        return [_turn("system", prompt), *answer], 0
    if not isinstance(prompt, list):
        raise UnusableError(f"'{name}' is {value_kind(prompt)}, neither text nor a list of messages")
    first = answer[: len(prompt)]
    is_whole = bool(prompt) and list(map(_without_none, first)) == list(map(_without_none, prompt))
    return (answer if is_whole else [*prompt, *answer]), len(prompt)


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _without_none(turn: Any) -> Any:
    """A message without keys that are null: templates test for presence."""
    if not isinstance(turn, dict):
        return turn
    return {key: value for key, value in turn.items() if value is not None}
