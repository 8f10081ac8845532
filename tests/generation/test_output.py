from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig, WatermarkingConfig

from zerokit.errors import ZerokitError
from zerokit.generation.model import ModelFiles
from zerokit.generation.output import (
    Completion,
    CompletionCutter,
    Results,
    check_output,
    claim_stdout,
    record,
    write_results,
)

DONE = Completion("☃", 2, "stop")
LONG = Completion("x", 3, "length")
JOB = {
    "--seed": 0,
    "model": "digest",
    "--stop_strings": ("a", "b"),
    "--watermarking_config": WatermarkingConfig(bias=1.0),
}


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
    results = Results(None, stream, JOB, num_prompts=6)
    results.add(record(2, "c", 1, [DONE]))
    results.add(record(0, "a", 1, [DONE]))
    results.add(record(1, "b", 1, [DONE]))
    assert stream.getvalue() == ""
    results.finish()
    assert [line["prompt"] for line in lines(stream.getvalue())] == ["a", "b", "c"]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    results = Results(out, io.StringIO(), JOB, num_prompts=6)
    assert list(tmp_path.iterdir()) == []
    results.add(record(1, "b", 1, [DONE]))
    results.add(record(0, "a", 1, [LONG]))
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.partial"]
    assert [line.get("index") for line in lines(Path(f"{out}.partial").read_text(encoding="utf-8"))] == [None, 1, 0]
    results.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert [line["index"] for line in lines(out.read_text(encoding="utf-8"))] == [0, 1]


def test_results_are_not_replaced_unasked(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    check_output(out, force=False)
    check_output(None, force=False)
    Path(f"{out}.partial").touch()
    with pytest.raises(ZerokitError, match=r"out\.jsonl\.partial: a run .* has left it\. Add --resume .* or --force"):
        check_output(out, force=False)
    check_output(out, force=True)
    check_output(out, force=False, resume=True)
    Path(f"{out}.partial").unlink()
    out.touch()
    with pytest.raises(ZerokitError, match="the file exists"):
        check_output(out, force=False)
    with pytest.raises(ZerokitError, match="is a folder"):
        check_output(tmp_path, force=True)
    with pytest.raises(ZerokitError, match="its folder does not exist"):
        check_output(tmp_path / "none" / "out.jsonl", force=True)


def test_a_pipe_gets_results_at_the_end_and_nothing_is_kept_beside_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_output(pipe, force=False)
    results = Results(pipe, io.StringIO(), JOB, num_prompts=6)
    results.add(record(0, "a", 1, [DONE]))
    assert list(tmp_path.iterdir()) == [pipe]
    results.finish()
    assert json.loads(os.read(reader, 1000))["index"] == 0
    os.close(reader)


def test_results_that_cannot_be_kept_are_one_line(tmp_path: Path) -> None:
    results = Results(tmp_path / "gone" / "out.jsonl", io.StringIO(), JOB, num_prompts=6)
    with pytest.raises(ZerokitError, match=r"out\.jsonl\.partial: cannot be written: No such file"):
        results.add(record(0, "a", 1, [DONE]))


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_what_is_kept_until_the_end_takes_the_place_of_a_link(
    plant: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    out, theirs = tmp_path / "out.jsonl", tmp_path / "theirs"
    theirs.write_text("theirs")
    plant(Path(f"{out}.partial"), theirs)
    results = Results(out, io.StringIO(), JOB, num_prompts=6)
    results.add(record(0, "a", 1, [DONE]))
    assert not Path(f"{out}.partial").is_symlink()
    results.finish()
    assert theirs.read_text() == "theirs"
    assert [line["index"] for line in lines(out.read_text(encoding="utf-8"))] == [0]


@given(st.data())
def test_a_run_that_was_killed_continues(data: st.DataObject) -> None:
    """Killed at any byte, several times: each record is there once, in order."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.jsonl")
        partial = Path(f"{out}.partial")
        for _ in range(3):
            results = Results(out, io.StringIO(), JOB, num_prompts=6, resume=True)
            left = data.draw(st.permutations([index for index in range(6) if index not in results.places]))
            for index in left[: data.draw(st.integers(0, len(left)))]:
                results.add(record(index, f"☃{index}", 1, [DONE]))
            del results
            if partial.exists():
                content = partial.read_bytes()
                partial.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
        results = Results(out, io.StringIO(), JOB, num_prompts=6, resume=True)
        for index in {*range(6)} - results.places.keys():
            results.add(record(index, f"☃{index}", 1, [DONE]))
        results.finish()
        assert [line["prompt"] for line in lines(out.read_text(encoding="utf-8"))] == [f"☃{n}" for n in range(6)]
        assert not partial.exists()


def changed(**values: Any) -> str:
    return json.dumps({**record(0, "a", 1, [DONE]), **values}) + "\n"


@pytest.mark.parametrize(
    ("job", "tail", "message"),
    [
        ({**JOB, "--seed": 1}, "", r"other --seed \(0 there, 1 here\)\. Repeat the options"),
        ({**JOB, "model": "another"}, "", "is of a run with other model"),
        ({**JOB, "--top_k": 5}, "", r"other --top_k \(not given there, 5 here\)"),
        ({"--seed": 0, "model": "digest"}, "", "other --stop_strings"),
        (JOB, "5\n", r"out\.jsonl\.partial:3: is no record"),
        (JOB, '{"index": [}\n', "3: is no record"),
        (JOB, '{"index": 1}\n', "3: is no record"),
        (JOB, '{"index": 1, "completion": "a"}\n', "3: is no record"),
        (JOB, changed(index=0), "3: is no record"),
        (JOB, changed(index=-1), "3: is no record"),
        (JOB, changed(index=6), "3: is no record"),
        (JOB, changed(index=True), "3: is no record"),
        (JOB, changed(index=1) + changed(index=1), "4: is no record"),
    ],
)
def test_what_another_run_left_is_not_continued(job: dict[str, Any], tail: str, message: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    Results(out, io.StringIO(), JOB, num_prompts=6).add(record(0, "a", 1, [DONE]))
    partial = Path(f"{out}.partial")
    partial.write_bytes(before := partial.read_bytes() + tail.encode())
    with pytest.raises(ZerokitError, match=message):
        Results(out, io.StringIO(), job, num_prompts=6, resume=True)
    assert partial.read_bytes() == before


@pytest.mark.parametrize("content", [b"mine", b'{"job": {"--seed": 1', b'{"index": 0}\n'])
def test_a_file_that_is_no_beginning_of_this_run_stays(content: bytes, tmp_path: Path) -> None:
    partial = tmp_path / "out.jsonl.partial"
    partial.write_bytes(content)
    with pytest.raises(ZerokitError, match=r"out\.jsonl\.partial:1: is no record of zerokit generate"):
        Results(tmp_path / "out.jsonl", io.StringIO(), JOB, num_prompts=6, resume=True)
    assert partial.read_bytes() == content


@pytest.mark.parametrize("resume", [True, False])
def test_two_runs_do_not_write_one_file(resume: bool, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    results = Results(out, io.StringIO(), JOB, num_prompts=6)
    results.add(record(0, "a", 1, [DONE]))
    with pytest.raises(ZerokitError, match="another run is writing it"):
        Results(out, io.StringIO(), JOB, num_prompts=6, resume=resume)
    results.finish()
    assert [line["index"] for line in lines(out.read_text(encoding="utf-8"))] == [0]


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    ("state", "message", "left"),
    [
        ("running", r"out\.jsonl\.partial: another run is writing it", ["out.jsonl.partial"]),
        ("killed", r"out\.jsonl: another run has written it meanwhile\. Name another", ["out.jsonl.partial"]),
        ("finished", r"out\.jsonl: another run has written it meanwhile\. Name another", ["out.jsonl"]),
    ],
)
def test_of_two_runs_that_start_together_one_writes(
    state: str, message: str, left: list[str], resume: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    first, second = (
        Results(out, io.StringIO(), JOB, num_prompts=2, resume=resume, force=False) for _ in ("first", "second")
    )
    first.add(record(0, "first", 1, [DONE]))
    if state == "finished":
        first.finish()
    if state == "killed":
        del first
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    with pytest.raises(ZerokitError, match=message) as refused:
        second.add(record(0, "second", 1, [DONE]))
    assert refused.value.exit_code == 2
    assert [one.name for one in tmp_path.iterdir()] == left
    assert file.read_bytes() == before
    if state == "finished":
        with pytest.raises(ZerokitError, match="the file exists"):
            Results(out, io.StringIO(), JOB, num_prompts=2, force=False)


def test_a_run_that_starts_over_keeps_the_earlier_records_until_its_first(tmp_path: Path) -> None:
    out, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    Results(out, io.StringIO(), JOB, num_prompts=6).add(record(0, "a", 1, [DONE]))
    before = partial.read_bytes()
    results = Results(out, io.StringIO(), JOB, num_prompts=6)
    assert partial.read_bytes() == before
    results.add(record(1, "b", 1, [DONE]))
    assert [line.get("index") for line in lines(partial.read_text(encoding="utf-8"))] == [None, 1]


def test_a_run_removes_no_file_of_another(tmp_path: Path) -> None:
    results = Results(tmp_path / "out.jsonl", io.StringIO(), JOB, num_prompts=6)
    results.add(record(0, "a", 1, [DONE]))
    partial = tmp_path / "out.jsonl.partial"
    partial.unlink()
    partial.write_text("another's")
    results.finish()
    assert partial.read_text() == "another's"


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_reader_that_has_ended_ends_the_run_last(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout, Path(os.devnull).open("w") as stderr, ExitStack() as claimed:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        results = Results(None, claimed.enter_context(claim_stdout()), JOB, num_prompts=6)
        results.add(record(0, "a" * size, 1, [DONE]))
        results.finish()
        with pytest.raises(BrokenPipeError):
            claimed.close()


def test_stdout_that_takes_no_results_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as stdout, Path(os.devnull).open("w") as stderr:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        full = r"stdout: cannot be written: No space left on device\. Make room"
        with pytest.raises(ZerokitError, match=full), claim_stdout() as stream:
            write_results(stream, ["a\n"])
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # as `main` does for one that the shell has closed
    with pytest.raises(ZerokitError, match="stdout: is closed"), claim_stdout():
        pass


END, PAD = 0, 1


def tokens_of(model: ModelFiles, text: str) -> list[int]:
    return list(model.tokenizer(text)["input_ids"])


@pytest.mark.parametrize("padding", [[], [PAD, PAD], [END]])
def test_ends_at_the_end_token(model: ModelFiles, padding: list[int]) -> None:
    tokens = tokens_of(model, "The sequence")
    finish = CompletionCutter(model.tokenizer, GenerationConfig(eos_token_id=END, stop_strings="never"))
    assert finish([*tokens, END, *padding]) == Completion("The sequence", len(tokens) + 1, "stop")
    assert finish(tokens) == Completion("The sequence", len(tokens), "length")
    assert finish([END, *padding]) == Completion("", 1, "stop")


@pytest.mark.parametrize(
    ("text", "kept", "stops"), [("One! Two\n", "One!", ["zzz", "\n", "!"]), ("One<|pad|>x", "One<|pad|>", ["<|pad|>"])]
)
def test_ends_before_the_first_stop_string(model: ModelFiles, text: str, kept: str, stops: list[str]) -> None:
    finish = CompletionCutter(model.tokenizer, GenerationConfig(eos_token_id=END, stop_strings=stops))
    assert finish(tokens_of(model, text)) == Completion("One", len(tokens_of(model, kept)), "stop")


@pytest.mark.parametrize(
    ("prompt", "text", "stop", "count"),
    [
        ("so", "me", "om", 1),
        ("so", "meme", "omem", 3),
        ("some", "x", "om", None),  # the prompt has it all
        ("so", "xom", "om", None),  # the completion has
        ("so<|pad|>", "me", "om", None),
        ("", "me", "om", None),
        ("so", "me", "m", None),
    ],
)
def test_a_stop_string_may_begin_in_the_prompt(
    model: ModelFiles, prompt: str, text: str, stop: str, count: int | None
) -> None:
    finish = CompletionCutter(model.tokenizer, GenerationConfig(eos_token_id=END, stop_strings=[stop, "never"]))
    letters = [token for letter in text for token in tokens_of(model, letter)]
    before = tokens_of(model, prompt)
    expected = finish(letters) if count is None else Completion("", count, "stop")
    assert finish(letters, before) == expected
    if count is not None:
        assert finish([*letters[:count], PAD, PAD], before) == expected
