"""Examples that are read one by one: those that are loaded, from any place on, with faults named."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pytest

from zerokit.data.sources import load_examples
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError

pytestmark = pytest.mark.torch

ROWS = [{"text": f"row {number} " + "x" * (number % 7)} for number in range(40)]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write(folder: Path, ending: str, rows: list[dict[str, Any]], name: str = "a") -> Path:
    file = folder / f"{name}.{ending}"
    match ending:
        case "parquet":
            # In groups of rows, each of which is a table when it is read.
            datasets.Dataset.from_list(rows).to_parquet(file, batch_size=9)
        case "txt":
            file.write_text("\n\n".join(row["text"] for row in rows) + "\n")
        case "csv":
            file.write_text("text\n" + "".join(f"{row['text']}\n" for row in rows))
        case _:
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "txt"])
def test_a_stream_has_the_examples_that_are_loaded_and_goes_on_where_it_was(ending: str, tmp_path: Path) -> None:
    """Of two files, from every place: also from the end of one, and from the end of all."""
    for name, rows in (("a", ROWS[:23]), ("b", ROWS[23:])):
        write(tmp_path, ending, rows, name)
    files = [str(tmp_path / f"{name}.{ending}") for name in "ab"]
    loaded = list(load_examples(files, where="w"))
    stream = ExampleStream(files, where="w")
    assert stream.columns == ["text"]
    assert list(stream.read()) == loaded
    for place in (1, 8, 9, 10, 22, 23, 24, len(loaded)):
        stream = ExampleStream(files, where="w")
        assert list(islice(stream.read(), place)) == loaded[:place]
        assert stream.state() is None
        again = ExampleStream(files, where="w")
        assert list(again.read(place)) == loaded[place:]
        assert list(again.read()) == loaded


def test_a_fault_far_in_is_named_with_its_line_when_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "x" * 60_000}) for _ in range(400)]
    lines[380] = '{"text": "x"'
    file.write_text("\n".join(lines))
    reading = ExampleStream(str(file), where="data.train").read()
    assert len(list(islice(reading, 100))) == 100
    with pytest.raises(DataError) as caught:
        list(reading)
    assert f"{file}:381" in str(caught.value)
    assert "\n" not in str(caught.value)
