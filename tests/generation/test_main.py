"""What is wrong with a command line of ``zerokit generate`` and its files, before any is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import ZerokitError
from zerokit.generation.main import check_options, note_if_finished
from zerokit.generation.options import Options


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


def test_a_run_is_finished_that_left_its_output_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    asked: dict[str, Any] = {"model": "m", "texts": ("a",), "output": out}
    partial.touch()
    assert not note_if_finished(Options(**asked, resume=True))
    out.touch()
    assert not note_if_finished(Options(**asked, resume=True))
    partial.unlink()
    assert not note_if_finished(Options(**asked))
    assert not note_if_finished(Options(**asked, resume=True, force=True))
    assert capsys.readouterr().err == ""
    assert note_if_finished(Options(**asked, resume=True))
    assert "is finished: nothing to resume. --force generates again" in capsys.readouterr().err
