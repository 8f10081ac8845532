"""What is wrong with a command line of ``zerokit generate`` and its files, before any is read."""

from __future__ import annotations

import gc
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zerokit.distributed import extensions
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.errors import ZerokitError
from zerokit.generation.main import check_options, generate, has_finished
from zerokit.generation.options import Options
from zerokit.generation.output import Completion, Results, record


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimisation": {"stage": 3}}')
    options = Options(
        model=f"{tmp_path}/none",
        prompts=f"{tmp_path}/none.jsonl",
        output=tmp_path / "none" / "out.jsonl",
        ds_config=tmp_path / "ds.json",
        sampling_words=("--max_new_token", "4"),
    )
    with pytest.raises(ZerokitError) as caught:
        check_options(options)
    told = [str(error) for error in (caught.value, *caught.value.others)]
    assert [line.removeprefix(f"{tmp_path}/").partition(":")[0] for line in told] == [
        "--max_new_token",
        "none/out.jsonl",
        "--prompts",
        "--model",
        "ds.json",
    ]
    assert not any("\n" in line for line in told)


def test_results_do_not_replace_their_prompts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file, link = tmp_path / "in/p.txt", tmp_path / "link.jsonl"
    file.write_text("a\n")
    link.symlink_to(file)
    for prompts in (file, tmp_path / "in"):
        for output in (file, link):
            problems = {"force": ": has the prompts, which results would replace", "resume": ":1: is no result"}
            for how, problem in problems.items():
                asked = Options(model="m", prompts=str(prompts), output=output, **{how: True})  # type: ignore[arg-type]
                with pytest.raises(ZerokitError) as caught:
                    check_options(asked, inputs=False)
                lines = [str(error) for error in (caught.value, *caught.value.others)]
                assert any(line.startswith(f"{output}{problem}") for line in lines)
    check_options(Options(model="m", prompts=str(file), output=tmp_path / "out.jsonl"), inputs=False)
    for resume in (True, False):
        with pytest.raises(ZerokitError, match="File name too long"):
            check_options(
                Options(model="m", prompts=str(file), output=tmp_path / ("o" * 300), resume=resume), inputs=False
            )


def test_a_finished_run_is_checked_before_it_is_called_so(model_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    asked: dict[str, Any] = {"model": str(model_folder), "texts": ("a",), "output": out, "resume": True}
    results = Results(out, io.StringIO(), {}, num_prompts=2)
    results.add(record(0, "a", 1, [Completion("b", 1, "stop")]))
    results.add({"index": 1, "prompt": 3, "finish_reason": "error", "error": "expected text"})
    results.finish()
    check_options(Options(**asked))
    with pytest.raises(ZerokitError, match="--max_new_token: unknown option"):
        check_options(Options(**asked, sampling_words=("--max_new_token", "4")))
    for content, line in ((b"", 1), (b'{"prompt": "a"}\n', 1), (out.read_bytes() + b"text", 3)):
        out.write_bytes(content)
        with pytest.raises(ZerokitError, match=rf"out\.jsonl:{line}: is no result of zerokit generate"):
            check_options(Options(**asked))
        assert out.read_bytes() == content


def test_a_run_that_has_decoded_all_only_writes(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--max_new_tokens", "2")
    options = Options(model=str(model_folder), texts=("a", "b"), output=tmp_path / "out.jsonl", sampling_words=few)
    group = RankGroup(read_ranks({**os.environ}))
    with monkeypatch.context() as patch:
        patch.setattr(Results, "finish", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            generate(group, options, io.StringIO())
    gc.collect()  # of a process that ended, the lock is gone
    monkeypatch.setattr(extensions, "compile_extensions", lambda *_, **__: pytest.fail("nothing is left to decode"))
    capsys.readouterr()
    assert generate(group, replace(options, resume=True), io.StringIO()) == 0
    assert capsys.readouterr().err == "zerokit: 2 prompts (2 done before)\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_run_is_finished_that_left_its_output_alone(tmp_path: Path) -> None:
    out, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    asked: dict[str, Any] = {"model": "m", "texts": ("a",), "output": out}
    partial.touch()
    assert not has_finished(Options(**asked, resume=True))
    out.touch()
    assert not has_finished(Options(**asked, resume=True))
    partial.unlink()
    assert not has_finished(Options(**asked))
    assert not has_finished(Options(**asked, resume=True, force=True))
    assert has_finished(Options(**asked, resume=True))
