"""What examples become: token ids, and labels that leave out what is not trained on."""

from __future__ import annotations

import copy
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zerokit
from tests.data import look_alikes
from tests.data.formats import OF_TEXTS
from tests.examples import examples
from tests.tiny import CHAT_TEMPLATE
from zerokit.data.row_dataset import RowDataset
from zerokit.data.sources import load_examples
from zerokit.errors import DataError
from zerokit.recipe.load import load_recipe
from zerokit.recipe.model import Columns, DataSection, Format, TaskSection
from zerokit.training.datasets import load_datasets
from zerokit.training.examples import IGNORED, Encoded, Encoder, Tokenized, describe_left_out, tokenize
from zerokit.training.formats import describe_format, detect_format
from zerokit.training.preview import marked
from zerokit.training.tasks import task_of
from zerokit.training.tasks.causal_lm import CausalLM
from zerokit.training.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GENERATION_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|assistant|>"
    "{% generation %}{{ message.content }}<|end|>{% endgeneration %}"
    "{% else %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Renders what CHAT_TEMPLATE does, and marks the assistant's part for transformers."""

QUESTIONS = Path(zerokit.__file__).parent / "data" / "demo" / "python-questions"


def run(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, format_: Format, **task: Any
) -> list[dict[str, list[int]]]:
    return encoded(rows, tokenizer, format_, **task).dataset.to_list()


def encoded(
    rows: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    format_: Format,
    *,
    columns: dict[str, str] | None = None,
    seq_len: int = 256,
    mixed: str | None = None,
    **task: Any,
) -> Tokenized:
    data = DataSection(train="x", columns=Columns(**(columns or {})))
    section = TaskSection(seq_len=seq_len, **task)
    made = task_of(section) if mixed is None else CausalLM(section, mixed=mixed)
    encoder = made.encoder(tokenizer, format_, data.columns)
    result = tokenize(RowDataset.of_rows(rows), encoder, seq_len=seq_len, where="data.train")
    assert sorted(result.dataset.column_names) == ["input_ids", "labels"]
    return result


def error_of(rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, *args: Any, **task: Any) -> str:
    with pytest.raises(DataError) as caught:
        run(rows, tokenizer, *args, **task)
    assert (caught.value.where or "").startswith(("data.train", "the tokenizer's chat_template"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def trained_text(example: dict[str, list[int]], tokenizer: PreTrainedTokenizerBase) -> str:
    """What is trained on, the parts between that is not as ``_``."""
    parts = [
        tokenizer.decode([token]) if label != IGNORED else "\0"
        for token, label in zip(example["input_ids"], example["labels"], strict=True)
    ]
    text = "".join(parts)
    while "\0\0" in text:
        text = text.replace("\0\0", "\0")
    return text.replace("\0", "_")


@examples(40)
@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=4))
def test_only_the_completion_and_its_end_are_trained_on(
    tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, str]]
) -> None:
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
    expected = []
    for prompt, completion in pairs:
        first = tokenizer(prompt)["input_ids"]
        second = [*tokenizer(completion)["input_ids"], tokenizer.eos_token_id]
        if prompt or completion:  # of a lone end-of-text nothing can be predicted
            expected.append({"input_ids": first + second, "labels": [IGNORED] * len(first) + second})
    if expected:
        assert run(rows, tokenizer, "prompt_completion") == expected
    else:
        reason = f"(no token to train on: {len(rows)}, first"
        assert reason in error_of(rows, tokenizer, "prompt_completion")


def test_prompt_and_completion_meet_at_a_token_boundary(tokenizer: PreTrainedTokenizerBase) -> None:
    # "statement" is one token when it is read whole.
    assert len(tokenizer(" statement")["input_ids"]) < len(tokenizer(" state")["input_ids"]) + len(
        tokenizer("ment")["input_ids"]
    )
    (example,) = run([{"prompt": " state", "completion": "ment"}], tokenizer, "prompt_completion")
    assert trained_text(example, tokenizer) == "_ment<|end|>"


def test_a_prompt_that_ends_the_text_does_not_end_the_example(tokenizer: PreTrainedTokenizerBase) -> None:
    (example,) = run([{"prompt": "a<|end|>", "completion": "b"}], tokenizer, "prompt_completion")
    assert example["input_ids"].count(tokenizer.eos_token_id) == 1


def test_special_tokens_that_begin_a_text_stand_once(tokenizer: PreTrainedTokenizerBase) -> None:
    from tokenizers.processors import TemplateProcessing

    adding = copy.deepcopy(tokenizer)
    adding.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|pad|> $A <|end|>", special_tokens=[("<|pad|>", 1), ("<|end|>", 0)]
    )
    (example,) = run([{"prompt": "a", "completion": "b"}], adding, "prompt_completion")
    (a,), (b,) = tokenizer("a")["input_ids"], tokenizer("b")["input_ids"]
    assert example == {"input_ids": [1, a, b, 0], "labels": [IGNORED, IGNORED, b, 0]}
    (text,) = run([{"text": "a"}], adding, "text", packing=False)
    assert text["input_ids"] == [1, a, 0]


@pytest.mark.parametrize("format_", ["prompt_completion", "messages"])
def test_loss_on_all_trains_on_every_token(format_: Format, tokenizer: PreTrainedTokenizerBase) -> None:
    row = {"prompt": "a", "completion": "b", **chat(("user", "a"), ("assistant", "b"))}
    (example,) = run([row], tokenizer, format_, loss_on="all")
    assert example["labels"] == example["input_ids"]


def test_long_examples_are_cut_and_those_left_without_a_target_dropped(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"prompt": "x" * size, "completion": "y" * answer} for size, answer in ((6, 6), (8, 1), (7, 9))]
    encoder = task_of(TaskSection(seq_len=8)).encoder(tokenizer, "prompt_completion", Columns())
    result = tokenize(RowDataset.of_rows(rows), encoder, seq_len=8, where="here")
    assert (len(result.dataset), result.num_cut, result.num_left_out) == (2, 3, 1)
    examples = result.dataset.to_list()
    (x,), (y,) = tokenizer("x")["input_ids"], tokenizer("y")["input_ids"]
    assert [example["input_ids"] for example in examples] == [[x] * 6 + [y] * 2, [x] * 7 + [y]]
    assert [example["labels"] for example in examples] == [[IGNORED] * 6 + [y] * 2, [IGNORED] * 7 + [y]]


def test_no_example_with_a_target_is_a_data_error(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"prompt": "x" * 8, "completion": "y"}] * 3
    line = error_of(rows, tokenizer, "prompt_completion", seq_len=8)
    assert "8 tokens (no token to train on: 3, first data.train, example 1). Raise task.seq_len, or" in line


def test_only_the_assistant_and_what_ends_its_turn_are_trained_on(tokenizer: PreTrainedTokenizerBase) -> None:
    turns = [("system", "s"), ("user", "u"), ("assistant", "one"), ("user", "v"), ("assistant", "two")]
    (example,) = run([chat(*turns)], tokenizer, "messages")
    assert trained_text(example, tokenizer) == "_one<|end|>_two<|end|>"
    assert tokenizer.decode(example["input_ids"]) == "".join(f"<|{role}|>{content}<|end|>" for role, content in turns)


def test_prompt_and_completion_may_be_messages(tokenizer: PreTrainedTokenizerBase) -> None:
    """As TRL has them: of an earlier answer in the prompt nothing is trained on, also where both have it."""
    turns = [("user", "u"), ("assistant", "one"), ("user", "v"), ("assistant", "two")]
    messages = chat(*turns)["messages"]
    whole = "".join(f"<|{role}|>{content}<|end|>" for role, content in turns)
    for row in (
        {"prompt": messages[:3], "completion": messages[3:]},
        {"prompt": messages[:3], "completion": messages},
    ):
        (example,) = run([row], tokenizer, "prompt_completion")
        assert tokenizer.decode(example["input_ids"]) == whole
        assert trained_text(example, tokenizer) == "_two<|end|>"
    (example,) = run([{"prompt": "u", "completion": messages[1:2]}], tokenizer, "prompt_completion")
    assert trained_text(example, tokenizer) == "_one<|end|>"
    assert "does not end with the assistant" in error_of(
        [{"prompt": messages[:1], "completion": messages[1:3]}], tokenizer, "prompt_completion"
    )


def test_a_prompt_stands_once_and_is_not_lost(tokenizer: PreTrainedTokenizerBase) -> None:
    """Also where `datasets` filled a copy with None; a text that no message says is an instruction."""
    question, answer = chat(("user", "u"), ("assistant", "one"))["messages"]
    rows = [
        {"prompt": [question], "completion": [{**question, "name": None}, answer]},
        {"prompt": "u", "completion": [question, answer]},
        {"prompt": "Human: u\n\nAssistant:", "completion": [question, answer]},
        {"prompt": "be kind", "completion": [question, answer]},
    ]
    texts = [tokenizer.decode(one["input_ids"]) for row in rows for one in run([row], tokenizer, "prompt_completion")]
    once = "<|user|>u<|end|><|assistant|>one<|end|>"
    assert texts == [once, once, once, f"<|system|>be kind<|end|>{once}"]
    instructed = [{"role": "system", "content": "s"}, question, answer]
    assert "the prompt is no message of the conversation" in error_of(
        [{"prompt": "be kind", "completion": instructed}], tokenizer, "prompt_completion"
    )


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "'prompt' is absent or null"),
        (3, "'prompt' is a number, neither text nor a list of messages"),
        ({"role": "user", "content": "u"}, "'prompt' is an object, neither text nor a list of messages"),
    ],
)
def test_a_prompt_that_is_none_is_said(prompt: Any, message: str, tokenizer: PreTrainedTokenizerBase) -> None:
    row = {"prompt": prompt, "completion": [{"role": "assistant", "content": "a"}]}
    assert message in error_of([row], tokenizer, "prompt_completion")


def test_what_follows_the_last_answer_is_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    (example,) = run([chat(("user", "u"), ("assistant", "a"), ("user", "v"))], tokenizer, "messages")
    assert tokenizer.decode(example["input_ids"]) == "<|user|>u<|end|><|assistant|>a<|end|>"


ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="<|>"), max_size=12)
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), ASCII), max_size=5)


@examples(40)
@given(st.lists(TURNS, min_size=1, max_size=4))
def test_masks_are_those_of_a_template_that_marks_generations(
    tokenizer: PreTrainedTokenizerBase, conversations: list[list[tuple[str, str]]]
) -> None:
    marked = copy.deepcopy(tokenizer)
    marked.chat_template = GENERATION_TEMPLATE
    rows = [chat(("user", "start"), *turns, ("assistant", "end")) for turns in conversations]
    ours = run(rows, tokenizer, "messages", seq_len=10_000)
    assert run(rows, marked, "messages", seq_len=10_000) == ours
    for row, example in zip(rows, ours, strict=True):
        theirs = marked.apply_chat_template(
            row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert example["input_ids"] == theirs["input_ids"]
        assert [int(label != IGNORED) for label in example["labels"]] == theirs["assistant_masks"]


def test_keys_that_only_some_messages_have_do_not_reach_the_template_as_none(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = CHAT_TEMPLATE.replace(
        "{{ message.content }}", "{{ message.content }}{{ 'NAME' if 'name' in message }}"
    )
    messages = [{"role": "user", "content": "u", "name": "n"}, {"role": "assistant", "content": "a", "name": None}]
    (example,) = run([{"messages": messages}], strict, "messages")
    assert strict.decode(example["input_ids"]) == "<|user|>uNAME<|end|><|assistant|>a<|end|>"


def test_a_template_that_shortens_earlier_answers_gives_a_sequence_for_each(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    other = copy.deepcopy(tokenizer)
    thought = "{{ 'thought' if message.role == 'assistant' and loop.last }}"
    other.chat_template = CHAT_TEMPLATE.replace("{{ message.content }}", thought + "{{ message.content }}")
    turns = [("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b")]
    (example,) = run([chat(*turns[:2])], other, "messages")
    assert trained_text(example, other) == "_thoughta<|end|>"
    first, second = run([chat(*turns)], other, "messages")
    assert first == example
    assert trained_text(second, other) == "_thoughtb<|end|>"
    whole = other.apply_chat_template(chat(*turns)["messages"], tokenize=True, return_dict=False)
    assert second["input_ids"] == whole
    messages = chat(*turns, ("user", "w"), ("assistant", "c"))["messages"]
    row = {"prompt": messages[:3], "completion": messages[3:]}
    found = [trained_text(one, other) for one in run([row], other, "prompt_completion")]
    assert found == ["_thoughtb<|end|>", "_thoughtc<|end|>"]


def test_pairs_of_the_same_answer_are_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    section = TaskSection(type="dpo", seq_len=8)
    encoder = task_of(section).encoder(tokenizer, "preference", Columns())
    rows = [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "b"},
        {"prompt": "a" * 40, "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "xy" * 20 + "b", "rejected": "xy" * 20 + "c"},  # as far as they are read
    ]
    result = tokenize(RowDataset.of_rows(rows), encoder, seq_len=8, where="here")
    same = "'chosen' and 'rejected' are the same"
    described = (
        f"{same}: 1, first here, example 2; no token to train on: 1, first here, example 3; "
        f"{same} within 8 tokens (task.seq_len): 1, first here, example 4"
    )
    assert (len(result.dataset), describe_left_out(result.left_out)) == (1, described)
    hint = "Check the data"  # no length makes the same answers differ
    for wrong, reason in ((rows[1:2], rf"same: 1, .*\. {hint}"), (rows[1:], r"\. Raise task\.seq_len, or")):
        with pytest.raises(DataError, match=rf"none of its {len(wrong)} examples can .*{reason}"):
            tokenize(RowDataset.of_rows(wrong), encoder, seq_len=8, where="here")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "example 2: the conversation has no messages"),
        ([], "example 2: the conversation has no messages"),
        (
            [{"role": "user", "content": "u"}],
            "example 2: the conversation has no assistant message: the roles in it are 'user'. "
            "Add what the assistant answers, or remove that example",
        ),
        (
            [{"role": "user", "content": "u"}, {"role": "asistant", "content": "a"}],
            "has no assistant message: the roles in it are 'user', 'asistant'. "
            "Did you mean 'assistant' by 'asistant'?",
        ),
        ([{"role": "user", "content": "u"}, {"role": "gpt", "content": "a"}], "'assistant' by 'gpt'?"),
        ([{"content": "u"}], "has no assistant message: there are no roles in it. Add what"),
        ([{"role": "assistant", "content": "a"}], "example 2: the conversation begins with the assistant"),
    ],
)
def test_a_conversation_that_cannot_be_trained_on_is_named_by_its_number(
    messages: Any, message: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [chat(("user", "u"), ("assistant", "a")), {"messages": messages}]
    assert message in error_of(rows, tokenizer, "messages")


def answers_of(file: Path, tokenizer: PreTrainedTokenizerBase, format_: Format) -> list[str]:
    """What is trained on, of each example of a file."""
    encoder = task_of(TaskSection(seq_len=256)).encoder(tokenizer, format_, Columns())
    loaded = load_examples(str(file), where="data.train")
    tokenized = tokenize(loaded, encoder, seq_len=256, where="data.train").dataset
    return [tokenizer.decode([label for label in row["labels"] if label != IGNORED]) for row in tokenized]


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        *((name, "prompt_completion") for name in OF_TEXTS),
        *((name, "messages") for name in ("a.jsonl", "a.json", "a.parquet")),
    ],
)
@given(answers=st.lists(look_alikes.text, min_size=1, max_size=4))
@examples(10)
def test_texts_are_trained_on_as_they_are_written(
    name: str, format_: Format, tokenizer: PreTrainedTokenizerBase, answers: list[str]
) -> None:
    rows = [
        chat(("user", "u"), ("assistant", answer)) if format_ == "messages" else {"prompt": "p", "completion": answer}
        for answer in answers
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(OF_TEXTS[name](rows))
        assert answers_of(file, tokenizer, format_) == [f"{answer}<|end|>" for answer in answers]


TEXT = {"type": "text", "text": "t"}


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"content": 5}, "'content' of message 2 is a number, neither text nor a list of parts"),
        ({"content": True}, "'content' of message 2 is true or false, neither"),
        ({"content": {"text": "t"}}, "'content' of message 2 is an object, neither"),
        ({"content": None}, "'content' of message 2 is absent or null"),
        ({}, "'content' of message 2 is absent or null"),
        ({"content": ["t"]}, "'content[0]' of message 2 is not a part"),
        ({"content": [TEXT, {"type": "text"}]}, "'content[1].text' of message 2 is null, not text"),
        ({"content": [{**TEXT, "text": 1.5}]}, "'content[0].text' of message 2 is a number, not text"),
        ({"content": [TEXT]}, "does not read content that is a list of parts"),
        ({"content": "t", "role": 7}, "'role' of message 2 is a number, not text"),
        ({"content": "t", "role": None}, "'role' of message 2 is absent or null"),
        ({"content": "t", "reasoning_content": 7}, "'reasoning_content' of message 2 is a number, not text"),
    ],
)
def test_contents_that_are_neither_text_nor_parts_are_refused(
    turn: dict[str, Any], said: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """A template would print them as Python does, or as nothing."""
    question = {"role": "user", "content": "u"}
    rows = [{"messages": [question, {"role": "assistant", **turn}, question, {**question, "role": "assistant"}]}]
    line = error_of(rows, tokenizer, "messages")
    assert "example 1: " in line
    assert said in line
    if turn.keys() == {"content"}:
        answer = [{"role": "assistant", **turn}]
        rows = [{"prompt": "p", "chosen": answer, "rejected": [{"role": "assistant", "content": "a"}]}]
        assert said in error_of(rows, tokenizer, "preference", type="dpo")


def test_a_message_may_call_tools_instead_of_saying_something(tokenizer: PreTrainedTokenizerBase) -> None:
    """With the arguments of its own call, whatever keys other calls have."""
    other = copy.deepcopy(tokenizer)
    call = "{% for call in message.tool_calls or [] %}{{ call.arguments | tojson }}{% endfor %}"
    other.chat_template = CHAT_TEMPLATE.replace("{{ message.content }}", "{{ message.content }}" + call)
    rows = []
    for arguments in ({"a": 1}, {"b": None, "a": 2.0}, {"c": {"a": True}}):
        calls = {"role": "assistant", "content": None, "tool_calls": [{"arguments": arguments}]}
        rows.append({"messages": [{"role": "user", "content": "u"}, calls]})
    found = [trained_text(one, other) for one in run(rows, other, "messages")]
    assert found == [f"_{text}<|end|>" for text in ('{"a": 1}', '{"b": null, "a": 2.0}', '{"c": {"a": true}}')]


class Marked(Encoder):
    """The same by name and content, whatever its code does."""

    token = 1

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        return [Encoded({"input_ids": [Marked.token] * 2, "labels": [Marked.token] * 2})]


def test_tokens_are_kept_for_the_same_examples_code_and_tokenizer_alone(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` knows a class by its name: its code, and what it imports, may be another."""

    def found() -> list[int]:
        loaded = load_examples(str(tmp_path / "a.jsonl"), where="w")
        result: list[int] = tokenize(loaded, Marked(), seq_len=8, where="w").dataset[0]["input_ids"]
        return result

    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert found() == [1, 1]
    monkeypatch.setattr(Marked, "token", 2)
    assert found() == [1, 1]
    monkeypatch.setattr("zerokit.training.examples.code_digest", lambda package: "other")
    assert found() == [2, 2]
    rows = [chat(("user", "u"), ("assistant", "a"))]
    first = run(rows, tokenizer, "messages")
    other = copy.deepcopy(tokenizer)
    other.chat_template = "Chat: " + CHAT_TEMPLATE
    assert run(rows, other, "messages") != first


def test_a_tokenizer_without_a_chat_template_is_what_is_wrong(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    with pytest.raises(DataError, match=r"^model\.tokenizer: the tokenizer has no chat template"):
        run([chat(("user", "u"), ("assistant", "a"))], plain, "messages")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages %}{{ 'LAST' if loop.last }}{{ m.content }}<|end|>{% endfor %}",
            "answers cannot be masked: message 2 does not begin with the generation prompt (found at ",
        ),
        (
            "{{ raise_exception('no\nsystem role') }}",
            "the conversation cannot be rendered by the tokenizer's chat template: line 1: no system role",
        ),
        ("{{ messages[0].content.none() }}", "the conversation cannot be rendered by the tokenizer's chat template: "),
        ("{% if %}", "the conversation cannot be rendered by the tokenizer's chat template: "),
    ],
)
def test_a_template_that_cannot_be_used_is_a_data_error(
    template: str, message: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    rows = [chat(("user", "u"), ("assistant", "a"))]
    assert message in error_of(rows, other, "messages")


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "without offsets"])
@pytest.mark.parametrize(
    ("prompt", "written", "answer", "trained", "joins"),
    [
        ("<|assistant|>: ", "<|assistant|>: ", "yes", " yes<|end|>", True),
        ("<|assistant|>:", "<|assistant|>:", ":yes", "::yes<|end|>", True),
        ("<|assistant|>:\n", "<|assistant|>:\n", "\n\nyes", "\n\n\nyes<|end|>", True),
        ("<|assistant|>:", "<|assistant|>:", "yes", "yes<|end|>", False),
        ("<|assistant|>:<|end|>", "<|assistant|>:<|end|>", ":yes", ":yes<|end|>", False),
        # The template leaves out the space before an answer.
        ("<|assistant|>: ", "<|assistant|>:", "yes", "yes<|end|>", True),
    ],
)
def test_a_token_of_the_generation_prompt_and_the_answer_is_trained_on_and_counted(
    prompt: str, written: str, answer: str, trained: str, joins: bool, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What joins them: a word takes the space before it, and signs and line breaks each other.
    joining = train_tokenizer(["a yes::yes\n\n\nyes"] * 9, 400, mask=False)
    joining.chat_template = (
        "{% for m in messages %}{{ '" + written + "' if m.role == 'assistant' else 'user: ' }}"
        "{{ m.content }}<|end|>{% endfor %}{{ '" + prompt + "' if add_generation_prompt }}"
    ).replace("\n", "\\n")
    monkeypatch.setattr(type(joining), "is_fast", is_fast)
    row = chat(("user", "u"), ("assistant", answer), ("user", "v"), ("assistant", answer))
    rows = [row, chat(("user", "u"), ("assistant", answer))]
    tokenized = encoded(rows, joining, "messages")
    assert tokenized.num_joined == (2 if joins else 0)
    for example, times in zip(tokenized.dataset, (2, 1), strict=True):
        labels = [label for label in example["labels"] if label != IGNORED]
        assert joining.decode(labels) == trained * times
    assert not encoded(rows, joining, "messages", loss_on="all").num_joined


def test_columns_may_have_other_names(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"question": "a", "answer": "b", "text": "c"}]
    columns = {"prompt": "question", "completion": "answer"}
    data = DataSection(train="x", columns=Columns(**columns))
    assert detect_format(["question", "answer", "text"], data, CausalLM.formats, where="w") == "prompt_completion"
    (example,) = run(rows, tokenizer, "prompt_completion", columns=columns)
    assert tokenizer.decode(example["input_ids"]) == "ab<|end|>"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["text"], "text"),
        (["id", "prompt", "completion"], "prompt_completion"),
        (["messages", "text"], "messages"),
        (["prompt", "completion", "text"], "prompt_completion"),
        (["prompt", "text"], "text"),
        (["instruction", "input", "output", "text"], "alpaca"),
        (["id", "conversations"], "sharegpt"),
        (["conversations", "messages"], "messages"),
        (["prompt", "completion", "instruction", "output"], "prompt_completion"),
        (["instruction", "input", "text"], "text"),
    ],
)
def test_the_columns_tell_what_an_example_is(columns: list[str], expected: str) -> None:
    assert detect_format(columns, DataSection(train="x"), CausalLM.formats, where="w") == expected


def test_a_format_that_was_asked_for_is_not_guessed() -> None:
    data = DataSection(train="x", format="text")
    assert detect_format(["messages", "text"], data, CausalLM.formats, where="w") == "text"
    with pytest.raises(DataError, match="format 'text' needs a column 'text'; the columns are body") as caught:
        detect_format(["body"], data, CausalLM.formats, where="w")
    assert caught.value.where == "w"
    with pytest.raises(DataError, match="from the columns prompt, answer"):
        detect_format(["prompt", "answer"], DataSection(train="x"), CausalLM.formats, where="w")


@examples(40)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8), st.integers(min_value=8, max_value=40))
def test_texts_of_a_model_that_mixes_them_are_joined_and_cut_into_full_sequences(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], seq_len: int
) -> None:
    stream: list[int] = []
    for text in texts:
        stream += [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    rows = [{"text": text} for text in texts]
    if len(stream) < 2:
        line = error_of(rows, tokenizer, "text", seq_len=seq_len, mixed="a state")
        assert "(no token to train on: " in line
        return
    blocks = run(rows, tokenizer, "text", seq_len=seq_len, mixed="a state")
    assert all(block["labels"] == block["input_ids"] for block in blocks)
    if len(stream) < seq_len:
        assert [block["input_ids"] for block in blocks] == [stream]
        return
    assert {len(block["input_ids"]) for block in blocks} == {seq_len}
    packed = [token for block in blocks for token in block["input_ids"]]
    assert packed == stream[: len(packed)]
    assert len(stream) - len(packed) < seq_len


def test_without_packing_each_text_is_cut_by_itself(tokenizer: PreTrainedTokenizerBase) -> None:
    examples = run([{"text": "x" * 20}, {"text": ""}, {"text": "y"}], tokenizer, "text", seq_len=8, packing=False)
    assert [tokenizer.decode(example["input_ids"]) for example in examples] == ["x" * 8, "y<|end|>"]


USER = {"from": "human", "value": "a"}
CONVERSATION = [{"from": "gpt", "value": "left over"}, USER, {"from": "gpt", "value": "b"}]


def test_alpaca_and_sharegpt_are_the_chats_that_they_tell_of(tokenizer: PreTrainedTokenizerBase) -> None:
    row = {"instruction": "Add", "input": "1 and 2", "output": "3"}
    (example,) = run([row], tokenizer, "alpaca")
    assert [example] == run([chat(("user", "Add\n\n1 and 2"), ("assistant", "3"))], tokenizer, "messages")
    assert trained_text(example, tokenizer) == "_3<|end|>"
    (shared,) = run([{"conversations": CONVERSATION}], tokenizer, "sharegpt")
    assert [shared] == run([chat(("user", "a"), ("assistant", "b"))], tokenizer, "messages")
    named = [chat(("user", "a"), ("assistant", "b"))["messages"]]
    assert run([{"conversations": turns} for turns in named], tokenizer, "sharegpt") == [shared]


def test_what_stands_beside_an_instruction_or_a_conversation_is_used(tokenizer: PreTrainedTokenizerBase) -> None:
    row = {"instruction": "a", "output": "yes", "system": "s", "history": [["q", "r"]]}
    turns = [("system", "s"), ("user", "q"), ("assistant", "r"), ("user", "a"), ("assistant", "yes")]
    (expected,) = run([chat(*turns)], tokenizer, "messages")
    assert run([row], tokenizer, "alpaca") == [expected]
    asked = {
        "system": "s",
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "gpt", "value": "r"},
            {"from": "user", "value": "a"},
            {"from": "gpt", "value": "yes"},
        ],
    }
    assert run([asked], tokenizer, "sharegpt") == [expected]
    columns = ["id", "instruction", "output", "system"]
    assert describe_format("alpaca", Columns(), columns, tokenizer) == (
        "instruction, output, system (alpaca), as chats; not used: id"
    )


def test_an_instruction_is_a_prompt_where_there_is_no_template(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    rows = [{"ask": "Name one", "input": None, "output": "Red"}]
    (example,) = run(rows, plain, "alpaca", columns={"instruction": "ask"})
    pairs = [{"prompt": "Name one\n\n", "completion": "Red"}]
    assert [example] == run(pairs, plain, "prompt_completion")


@pytest.mark.parametrize(
    ("format_", "row", "message"),
    [
        ("alpaca", {"instruction": "a", "input": 3, "output": "b"}, "'input' is a number, not text"),
        ("alpaca", {"instruction": "a", "output": None}, "'output' is absent or null"),
        ("sharegpt", {"conversations": [{"from": "humans", "value": "a"}]}, "Did you mean 'human'"),
        ("sharegpt", {"conversations": CONVERSATION[:1]}, "the conversation has no messages"),
        ("sharegpt", {"conversations": [{"from": ["human"], "value": "a"}]}, "a message from '['human']'"),
        ("alpaca", {"instruction": "a", "output": "b", "history": [["q"]]}, "'history' has something other"),
        ("alpaca", {"instruction": "a", "output": "b", "system": 1}, "'system' is a number, not text"),
        ("sharegpt", {"conversations": [USER, {"from": "gpt", "value": 5}]}, "'value' of message 2 is a numb"),
        ("text", {"text": 5}, "'text' is a number, not text"),
        ("prompt_completion", {"prompt": "a", "completion": 1.5}, "'completion' is a number, not text"),
        ("prompt_completion", {"prompt": ["a"], "completion": "b"}, "'prompt' is a list, not text"),
        ("messages", {"messages": "text"}, "the conversation has no messages"),
        ("messages", {"messages": ["a", "b"]}, "the conversation has a message that is not an object"),
    ],
)
def test_what_is_no_such_example_is_named(
    format_: Format, row: dict[str, Any], message: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    line = error_of([row], tokenizer, format_)
    assert "example 1: " in line
    assert message in line


def test_a_preview_marks_what_is_trained_on(tokenizer: PreTrainedTokenizerBase) -> None:
    turns = [("user", "one\n\x1b[31mtwo"), ("assistant", "three")]
    (example,) = run([chat(*turns)], tokenizer, "messages")
    lines = list(marked(example["input_ids"], example["labels"], tokenizer))
    assert ["".join(text for text, _ in line) for line in lines] == [
        "<|user|>one",
        "\\x1b[31mtwo<|end|><|assistant|>⟦three<|end|>⟧",
    ]
    assert [text for text, style in lines[1] if style] == ["⟦three<|end|>⟧"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("data", "shared"),
    [
        ({"train": "data"}, None),
        ({"train": "data", "eval_split": "test"}, None),
        ({"train": "data", "eval": "data/test.jsonl"}, None),
        ({"train": "data", "eval": "data/train.jsonl"}, "data/train.jsonl"),
        ({"train": "data", "eval": "other/../data/more.jsonl"}, "other/../data/more.jsonl"),
        ({"train": ["data/more.jsonl", "data/train.jsonl"], "eval": "data/*.jsonl"}, "data/more.jsonl and others"),
        ({"train": "data", "eval_split": "train"}, "data/more.jsonl and others"),
        ({"train": "builtin:python-questions", "eval_split": "train"}, f"{QUESTIONS}/train.jsonl"),
        ({"train": "other", "eval": "data"}, None),
        ({"train": "data", "eval": "builtin:python-questions"}, None),
        ({"train": "builtin:python-questions", "eval": "data"}, None),
    ],
)
def test_no_file_is_trained_on_and_held_out(
    data: dict[str, Any], shared: str | None, streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("data/train", "data/more", "data/test", "other/a")
    for name in names:
        file = tmp_path / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"prompt": name, "completion": "x"}) + "\n")
    recipe = tmp_path / "recipe.json"
    steps = {"max_steps": 1}
    recipe.write_text(json.dumps({"model": "org/name", "data": {**data, "streaming": streaming}, "training": steps}))
    monkeypatch.chdir(tmp_path)
    if shared is None:
        train, held_out = load_datasets(load_recipe(recipe), seed=0)
        assert data["train"] != "data" or train.left_out == (
            "not trained on, as by their names not of split 'train': test.jsonl (data.eval can name them)"
        )
        if held_out is not None and held_out.source in ("data", "data/test.jsonl") and held_out.rows is None:
            assert list(held_out.loaded.column("prompt")) == ["data/test"]
        return
    with pytest.raises(DataError, match=f": {re.escape(shared)} would be trained on, too"):
        load_datasets(load_recipe(recipe), seed=0)


@pytest.mark.parametrize("train", ["few.jsonl", ["few.jsonl", "more.jsonl"]])
def test_a_file_that_both_keys_name_is_held_out_with_a_warning(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("few", "more"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name, "completion": "x"}) + "\n")
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"model": "org/name", "data": {"train": train, "eval": "./few.jsonl"}}))
    monkeypatch.chdir(tmp_path)
    _, held_out = load_datasets(load_recipe(recipe), seed=0)
    assert held_out is not None
    assert held_out.overlap is not None
    assert "warning: few.jsonl: held out and trained on" in held_out.overlap
