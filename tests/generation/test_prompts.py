import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.data.formats import OF_TEXTS
from zerokit.errors import ConfigError, DataError
from zerokit.generation.model import ModelFiles
from zerokit.generation.options import Options
from zerokit.generation.output import failed_record
from zerokit.generation.prompts import Prompt, Prompts, load_prompts, read_template, refuse_all, tokenize

CHAT = [{"role": "user", "content": "Hi"}]


def load(file: Path | str, **options: Any) -> list[Prompt]:
    """The prompts; the error of the first that is none, with its place."""
    given = Options(model="m", prompts=str(file), **options)
    prompts = load_prompts(given)
    refuse_all(prompts, given)
    return prompts.values


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def tokens(model: ModelFiles, *values: Any, cut: int | None = None, room: int = 8) -> list[list[int]]:
    prompts = Prompts([*values], {})
    made = tokenize(prompts, model, max_prompt_tokens=cut, max_new_tokens=room)
    for number, error in prompts.errors.items():
        assert not made[number]
        raise DataError(error.message, where=f"prompt {number}", hint=error.hint)
    return [*map(list, made)]


def test_text_files_have_a_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_bytes(b"a b\r\n\n  c\nd")
    assert load(file) == ["a b", "  c", "d"]


def test_compressed_texts_in_a_folder_are_texts(tmp_path: Path) -> None:
    for name, text in (("a_train", b"a\n\nb\n"), ("b_test", b"c\n \n")):
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(text))
    for source in (tmp_path, f"{tmp_path}/*.gz"):
        assert load(source) == ["a", "b", "c"]


def test_a_folder_is_all_its_files_or_those_of_a_split(tmp_path: Path) -> None:
    write(tmp_path / "a_train.jsonl", {"prompt": "a"})
    write(tmp_path / "b_test.jsonl", {"prompt": "b"})
    assert load(tmp_path) == ["a", "b"]
    assert load(tmp_path, split="test") == ["b"]


@pytest.mark.parametrize("column", ["prompt", "text"])
def test_columns_of_text(tmp_path: Path, column: str) -> None:
    file = write(tmp_path / "p.jsonl", {column: "a", "id": 1}, {column: "b", "id": 2})
    assert load(file) == ["a", "b"]


@pytest.mark.parametrize("column", ["prompt", "messages"])
def test_chats_lose_keys_that_only_others_have(tmp_path: Path, column: str) -> None:
    named = [{"role": "user", "content": "Hi", "name": "Ann"}]
    prompts = load(write(tmp_path / "p.jsonl", {column: CHAT}, {column: named}))
    assert prompts == [CHAT, named]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"promt": "a"}, "has no column 'prompt', 'messages' or 'text', only 'promt'. Rename 'promt'"),
        ({"prompt": 3}, "prompt 0: found 3 in 'prompt', expected text"),
        ({"prompt": {"a": "b" * 100}}, f"found {{'a': '{'b' * 33}... in 'prompt', expected text. Correct that row"),
        ({"prompt": None}, "prompt 0: found nothing in 'prompt', expected text"),
        ({"messages": "Hi"}, "prompt 0: found 'Hi' in 'messages', expected a list of messages"),
        ({"messages": []}, "prompt 0: has no messages"),
        ({"messages": [{"content": "Hi"}]}, "prompt 0: a message is not a mapping with a role"),
        ({"messages": [*CHAT, {"role": "assistant", "content": "a"}]}, "nothing to answer"),
        ({"messages": [{"role": "user", "content": 5}]}, "prompt 0: 'content' of message 1 is a number"),
        ({"messages": [{"role": "user"}]}, "prompt 0: 'content' of message 1 is absent or null"),
        ({"prompt": [{"role": "user", "content": ["a"]}]}, "'content[0]' of message 1 is not a part"),
        ({"text": True}, "prompt 0: found True in 'text', expected text"),
    ],
)
def test_rows_that_are_no_prompts(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        load(write(tmp_path / "p.jsonl", row))
    assert message in str(caught.value)
    if "promt" not in row:
        assert str(caught.value).startswith(f"{tmp_path / 'p.jsonl'}:1, prompt 0: ")


def test_a_row_that_is_no_prompt_stops_no_other(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": 3}, {"prompt": CHAT})
    prompts = load_prompts(Options(model="m", prompts=str(file)))
    assert prompts.values == ["a", 3, CHAT]
    assert [*prompts.errors] == [1]
    assert failed_record(1, prompts, prompts.errors[1])["prompt"] == 3
    chats = load_prompts(Options(model="m", prompts=str(write(tmp_path / "c.jsonl", {"messages": "Hi"}))))
    assert failed_record(0, chats, chats.errors[0])["messages"] == "Hi"
    texts = load_prompts(Options(model="m", prompts=str(write(tmp_path / "t.jsonl", {"text": ["Hi"]}))))
    assert failed_record(0, texts, texts.errors[0])["prompt"] == ["Hi"]
    with pytest.raises(DataError, match=r"q\.jsonl:1, prompt 0: found .*, and no other of 2 prompts can be used"):
        load(write(tmp_path / "q.jsonl", {"prompt": 3}, {"prompt": None}))


def test_a_template_is_filled_with_columns(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"q": "a {b}", "n": 1, "l": None}, {"q": "c", "n": 2.5, "l": "d"})
    assert load(file, template="{q}\\n{{{n}}}") == ["a {b}\n{1}", "c\n{2.5}"]
    prompts = load_prompts(Options(model="m", prompts=str(file), template="{l}"))
    assert (prompts.values, [*prompts.errors]) == ([{"l": None}, "d"], [0])
    (tmp_path / "p.txt").write_text("one\n\ntwo\n")
    assert load(tmp_path / "p.txt", template="Q: {text}") == ["Q: one", "Q: two"]


@pytest.mark.parametrize(
    "template", ["{q.__class__}", "{q[0]}", "{q!r}", "{q:>9}", "{q:{q}}", "{", "}", "q", "{}", "{0}"]
)
def test_a_template_has_only_names_of_columns(template: str) -> None:
    with pytest.raises(ConfigError, match="--template: "):
        read_template(template, ["q"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{ "prompt": "a\\nb"}\n{"prompt": "c"}', ["a\nb", "c"]),
        ('\ufeff{"prompt": "a"}', ["a"]),
        ('\ufeff\n \n{"prompt": "a"}', ["a"]),
        ("{a}\n\n[b]", ["{a}", "[b]"]),
        ("{} in Python: what is it?\n", ["{} in Python: what is it?"]),
        ("\ufeff\n{a}", ["{a}"]),
    ],
)
def test_stdin_has_json_lines_or_text(text: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert load("-") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n\n{"prompt', "--prompts -:3:2: a string that is not closed"),
        ('{}\n{"prompt": 3}', "found nothing in 'prompt', expected text, and no other of 2 prompts can be used"),
        ("", "--prompts -: the file is empty"),
        ("\n", "--prompts: '-' has only blank lines"),
    ],
)
def test_errors_in_stdin_name_it(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with pytest.raises(DataError) as caught:
        load("-")
    assert message in str(caught.value)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet", "txt"])
def test_prompts_that_look_like_something_else_are_text(tmp_path: Path, ending: str) -> None:
    texts = ["2021-05-01", "2021-05-02T00:00:00", "01", "1e5", "NA", "null", "True", "nan"]
    file = tmp_path / f"p.{ending}"
    rows = [{"prompt": text} for text in texts]
    if ending == "txt":
        file.write_text("\n".join(texts), encoding="utf-8")
    else:
        name = {"jsonl": "a.jsonl", "csv": "a.csv", "tsv": "a.tsv", "parquet": "a.parquet"}[ending]
        file.write_bytes(OF_TEXTS[name](rows))
    assert load(file) == texts


def test_blank_lines_only(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="only blank lines"):
        load(tmp_path / "p.txt")


def test_chats_go_through_the_template(model: ModelFiles) -> None:
    (made,) = tokens(model, CHAT)
    assert model.tokenizer.decode(made) == "<|user|>Hi<|end|><|assistant|>"


def test_long_prompts_keep_their_end(model: ModelFiles) -> None:
    (whole,) = tokens(model, "The import statement")
    assert tokens(model, "The import statement", cut=2) == [whole[-2:]]


def test_prompt_and_completion_fit_the_model(model: ModelFiles) -> None:
    (whole,) = tokens(model, "The import statement", room=256 - len(tokens(model, "The import statement")[0]))
    with pytest.raises(DataError, match=r"prompt 1: .* do not fit the model's 256 positions"):
        tokens(model, "x", "The import statement", room=257 - len(whole))
    with pytest.raises(DataError, match="--max-prompt-tokens 56"):
        tokens(model, "Hi " * 200, room=200)
    with pytest.raises(DataError, match=f"Lower --max_new_tokens to {256 - len(whole)}$"):
        tokens(model, "The import statement", room=300)


def test_an_encoder_and_its_decoder_have_their_own_positions(model: ModelFiles) -> None:
    from transformers import BartConfig, LEDConfig

    bart = replace(model, config=BartConfig(vocab_size=320, max_position_embeddings=40))
    (whole,) = tokens(bart, "The import statement " * 4, room=38)
    assert len(whole) > 20
    with pytest.raises(
        DataError, match=r"41 new tokens do not fit the decoder's 40 positions.* --max_new_tokens to 40"
    ):
        tokens(bart, "a", room=41)
    with pytest.raises(DataError, match=r"more than 40 tokens do not fit the encoder's .* --max-prompt-tokens 40"):
        tokens(bart, "The import statement " * 9)
    assert tokens(bart, "The import statement " * 9, cut=40)
    led = LEDConfig(vocab_size=320, max_encoder_position_embeddings=64, max_decoder_position_embeddings=32)
    files = replace(model, config=led)
    assert (files.max_encoder_positions, files.max_positions) == (64, 32)


def test_empty_prompts(model: ModelFiles) -> None:
    with pytest.raises(DataError, match="prompt 1: is empty"):
        tokens(model, "a", "")


def test_a_template_may_refuse(model: ModelFiles) -> None:
    template = model.tokenizer.chat_template
    try:
        model.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
        with pytest.raises(DataError, match="the chat template refuses it: line 1: roles must alternate"):
            tokens(model, CHAT)
        model.tokenizer.chat_template = None
        with pytest.raises(DataError, match="has no chat template"):
            tokens(model, CHAT)
    finally:
        model.tokenizer.chat_template = template
