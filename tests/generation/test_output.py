from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zerokit.errors import ZerokitError
from zerokit.generation.model import ModelFiles
from zerokit.generation.output import Completion, CompletionCutter, Results, check_output, record

DONE = Completion("☃", 2, "stop")
LONG = Completion("x", 3, "length")


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_completion() -> None:
    assert list(record(4, "Hi", 1, [DONE]).items()) == [
        ("index", 4),
        ("prompt", "Hi"),
        ("completion", "☃"),
        ("num_prompt_tokens", 1),
        ("num_completion_tokens", 2),
        ("finish_reason", "stop"),
    ]


def test_several_completions_of_a_chat() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert record(0, messages, 5, [DONE, LONG]) == {
        "index": 0,
        "messages": messages,
        "completions": [
            {"completion": "☃", "num_completion_tokens": 2, "finish_reason": "stop"},
            {"completion": "x", "num_completion_tokens": 3, "finish_reason": "length"},
        ],
        "num_prompt_tokens": 5,
    }


def test_input_order_on_a_stream() -> None:
    stream = io.StringIO()
    results = Results(None, stream)
    results.add([record(2, "c", 1, [DONE]), record(0, "a", 1, [DONE])])
    results.add([record(1, "b", 1, [DONE])])
    assert stream.getvalue() == ""
    results.finish()
    assert [line["prompt"] for line in lines(stream.getvalue())] == ["a", "b", "c"]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    results = Results(out, io.StringIO())
    assert list(tmp_path.iterdir()) == []
    results.add([record(1, "b", 1, [DONE])])
    results.add([record(0, "a", 1, [LONG])])
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.partial"]
    assert [line["index"] for line in lines(Path(f"{out}.partial").read_text(encoding="utf-8"))] == [1, 0]
    results.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert [line["index"] for line in lines(out.read_text(encoding="utf-8"))] == [0, 1]


def test_results_are_not_replaced_unasked(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    check_output(out, force=False)
    check_output(None, force=False)
    Path(f"{out}.partial").touch()
    with pytest.raises(ZerokitError, match=r"out\.jsonl\.partial: the file exists\. Add --force"):
        check_output(out, force=False)
    check_output(out, force=True)
    with pytest.raises(ZerokitError, match="is a folder"):
        check_output(tmp_path, force=True)
    with pytest.raises(ZerokitError, match="its folder does not exist"):
        check_output(tmp_path / "none" / "out.jsonl", force=True)


def test_a_pipe_gets_results_at_the_end_and_nothing_is_kept_beside_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_output(pipe, force=False)
    results = Results(pipe, io.StringIO())
    results.add([record(0, "a", 1, [DONE])])
    assert list(tmp_path.iterdir()) == [pipe]
    results.finish()
    assert json.loads(os.read(reader, 1000))["index"] == 0
    os.close(reader)


def test_results_that_cannot_be_kept_are_one_line(tmp_path: Path) -> None:
    results = Results(tmp_path / "gone" / "out.jsonl", io.StringIO())
    with pytest.raises(ZerokitError, match=r"out\.jsonl\.partial: cannot be written: No such file"):
        results.add([record(0, "a", 1, [DONE])])


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_what_is_kept_until_the_end_takes_the_place_of_a_link(
    plant: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    out, theirs = tmp_path / "out.jsonl", tmp_path / "theirs"
    theirs.write_text("theirs")
    plant(Path(f"{out}.partial"), theirs)
    results = Results(out, io.StringIO())
    results.add([record(0, "a", 1, [DONE])])
    assert not Path(f"{out}.partial").is_symlink()
    results.finish()
    assert theirs.read_text() == "theirs"
    assert [line["index"] for line in lines(out.read_text(encoding="utf-8"))] == [0]


END, PAD = 0, 1


def tokens_of(model: ModelFiles, text: str) -> list[int]:
    return list(model.tokenizer(text)["input_ids"])


@pytest.mark.parametrize("padding", [[], [PAD, PAD], [END]])
def test_ends_at_the_end_token(model: ModelFiles, padding: list[int]) -> None:
    tokens = tokens_of(model, "The sequence")
    finish = CompletionCutter(model.tokenizer, frozenset({END}), ["never"])
    assert finish([*tokens, END, *padding]) == Completion("The sequence", len(tokens) + 1, "stop")
    assert finish(tokens) == Completion("The sequence", len(tokens), "length")
    assert finish([END, *padding]) == Completion("", 1, "stop")


@pytest.mark.parametrize(
    ("text", "kept", "stops"),
    [("One! Two\n", "One!", ["zzz", "\n", "!"]), ("One<|pad|>x", "One<|pad|>", ["<|pad|>"])],
)
def test_ends_before_the_first_stop_string(model: ModelFiles, text: str, kept: str, stops: list[str]) -> None:
    finish = CompletionCutter(model.tokenizer, frozenset({END}), stops)
    assert finish(tokens_of(model, text)) == Completion("One", len(tokens_of(model, kept)), "stop")
