"""What is read is what is written: texts that look like something else, in every format."""

from __future__ import annotations

import datetime
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.formats import OF_TEXTS, Rows, json_list, jsonl, unescaped_jsonl
from tests.data.look_alikes import text
from tests.examples import examples
from zerokit.data.row_dataset import RowDataset
from zerokit.data.sources import load_examples, place_of
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError

pytestmark = pytest.mark.torch

numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=8,
)


@contextmanager
def written(name: str, content: bytes) -> Iterator[str]:
    """A file in a folder with a cache of its own."""
    cache = datasets.config.HF_DATASETS_CACHE
    with tempfile.TemporaryDirectory() as folder:
        datasets.config.HF_DATASETS_CACHE = Path(folder) / "cache"
        try:
            file = Path(folder) / name
            file.write_bytes(content)
            yield str(file)
        finally:
            datasets.config.HF_DATASETS_CACHE = cache


def both_ways(file: str) -> Iterator[Rows]:
    yield list(load_examples(file, where="data.train"))
    yield list(ExampleStream(file, where="data.train").read())


@pytest.mark.parametrize("name", OF_TEXTS)
@given(st.lists(st.fixed_dictionaries({"text": text, "other": text}), min_size=1, max_size=5))
@examples(25)
def test_texts_are_read_as_they_are_written(name: str, rows: Rows) -> None:
    with written(name, OF_TEXTS[name](rows)) as file:
        assert [*both_ways(file)] == [rows, rows]


@pytest.mark.parametrize("unit", ["line", "paragraph"])
@given(st.lists(text.filter(lambda one: one and not {"\r", "\n"} & {*one}), max_size=5))
@examples(25)
def test_lines_and_paragraphs_are_read_as_they_are_written(unit: str, texts: list[str]) -> None:
    texts = ["the first", *texts]  # a mark before it would be of the file
    with written("a.txt", {"line": "\n", "paragraph": "\n\n"}[unit].join(texts).encode()) as file:
        assert [*load_examples(file, where="data.train", text_unit=unit).column("text")] == texts
        if unit == "paragraph":
            assert [row["text"] for row in ExampleStream(file, where="data.train").read()] == texts


@pytest.mark.parametrize("write", [jsonl, unescaped_jsonl, json_list])
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", ""]), values), min_size=1, max_size=5))
@examples(40)
def test_values_of_json_keep_their_types_keys_and_digits(write: Callable[[Rows], bytes], rows: Rows) -> None:
    with written("a.json", write(rows)) as file:
        if not any(rows):
            return
        for found in both_ways(file):
            kept = [{key: row[key] for key in wanted} for row, wanted in zip(found, rows, strict=True)]
            assert json.dumps(kept) == json.dumps(rows)  # in which 1, 1.0 and true differ
            assert all(
                row[key] is None for row, wanted in zip(found, rows, strict=True) for key in row.keys() - wanted
            )


def test_rows_of_a_large_file_keep_values_that_arrow_would_change(tmp_path: Path) -> None:
    number = 2**53 + 1
    rows: Rows = [{"id": index, "text": "x" * 100_000} for index in range(100)]  # more than a chunk
    rows += [{"text": 3.5, "tools": {"a": 1}}, {"text": "NaN", "tools": {"b": [None]}}, {"id": number * number}]
    rows += [{"text": "2021-05-01", "id": str(index)} for index in range(100)]
    with written("a.jsonl", jsonl(rows)) as file:
        for found in both_ways(file):
            assert [{key: value for key, value in row.items() if value is not None} for row in found] == rows


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_other_encodings_are_one_clear_error(name: str, encoding: str) -> None:
    content = OF_TEXTS.get(name, lambda rows: b"text: the text")([{"text": "the text"}]).decode()
    with written(name, content.encode(encoding)) as file, pytest.raises(DataError) as caught:
        load_examples(file, where="data.train")
    assert str(caught.value) == f"{file}: the file is not UTF-8 but UTF-16 or UTF-32. Save it as UTF-8"


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": Inf}\n', "2:10"),
        ("a.jsonl", '{"text": "a"}\n{"text": 1e999}\n', "2:10"),
        ("a.jsonl", '{"text": "\\ud83d"}\n', "1:10"),
        ("a.jsonl", '{"messages": [{"role": "a", "role": "b"}]}\n', "1:29"),
        ("a.jsonl", '{"text": "a"} {"text": "b"}\n{"text": \n"c"}\n', "1:15"),
        ("a.jsonl", '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "1:209"),
        ("a.json", '[{"text": "a"},\n {"text": "b", "text": "c"}]', "2:16"),
        ("a.json", '[{"text": "a"}]\n[]', "2:1"),
        ("a.csv", 'text,label\na,b\n"a" b,c\n', "3"),
        ("a.csv", 'text,label\na,b\n"a,c\n\n', "3"),
        ("a.csv", "text,label\na,b\n\na,b,c\n", "4"),
        ("a.csv", "text,text\na,b\n", "1"),
        ("a.tsv", 'text\tlabel\n"quoted" text\tb\n', "2"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused_with_its_place(name: str, content: str, line: str) -> None:
    with written(name, content.encode()) as file:
        for read in (
            lambda: load_examples(file, where="data.train"),
            lambda: list(ExampleStream(file, where="data.train").read()),
        ):
            with pytest.raises(DataError) as caught:
                read()
            assert caught.value.where == f"{file}:{line}"
            assert "\n" not in str(caught.value)


def test_what_python_writes_for_numbers_that_are_none_is_a_number() -> None:
    """As in a column that nobody uses."""
    with written("a.jsonl", b'{"text": "a", "score": NaN}\n{"text": "NaN", "score": -Infinity}\n') as file:
        for first, second in both_ways(file):
            assert (first["text"], second) == ("a", {"text": "NaN", "score": -math.inf})
            assert math.isnan(first["score"])


def test_objects_of_typed_files_have_the_keys_that_are_not_null(tmp_path: Path) -> None:
    rows = [{"call": {"name": "f", "arguments": {"a": 1}}}, {"call": {"name": "g", "arguments": {"b": [2]}}}]
    for name in ("a.parquet", "a.arrow"):
        with written(name, OF_TEXTS[name](rows)) as file:
            assert [*both_ways(file)] == [rows, rows]


def test_rows_in_memory_may_have_values_that_json_does_not_have() -> None:
    (row,) = RowDataset.of_rows([{"text": "a", "made": datetime.date(2021, 5, 1)}])
    assert row == {"text": "a", "made": {"date": "2021-05-01"}}


@pytest.mark.parametrize("has_features", [True, False])
def test_objects_of_the_hub_have_the_keys_that_are_not_null(
    has_features: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"call": {"name": "f", "arguments": {"a": 1}}}, {"call": {"name": "g", "arguments": {"b": [2]}}}]

    def load_dataset(*_: Any, streaming: bool = False, **options: Any) -> Any:
        dataset = datasets.Dataset.from_list(rows)
        if not streaming:
            return dataset
        if has_features:
            return dataset.to_iterable_dataset()
        return datasets.IterableDataset.from_generator(lambda: iter(dataset.to_list()))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [*both_ways("owner/name")] == [rows, rows]


def test_typed_files_with_other_types_are_refused_and_other_columns_are_not(tmp_path: Path) -> None:
    files = {name: str(tmp_path / f"{name}.parquet") for name in ("one", "more", "text", "named", "renamed")}
    pa.parquet.write_table(pa.table({"text": ["a"], "label": [1]}), files["one"])
    pa.parquet.write_table(pa.table({"text": ["b"], "id": [7]}), files["more"])
    pa.parquet.write_table(pa.table({"text": ["c"], "label": ["01"]}), files["text"])
    for name in ("named", "renamed"):
        names = ["no", "yes"] if name == "named" else ["yes", "no"]
        features = datasets.Features({"label": datasets.ClassLabel(names=names)})
        datasets.Dataset.from_dict({"label": [0]}, features=features).to_parquet(files[name])
    assert list(load_examples([files["one"], files["more"]], where="data.train")) == [
        {"text": "a", "label": 1, "id": None},
        {"text": "b", "label": None, "id": 7},
    ]
    for pair in (("one", "text"), ("named", "renamed")):
        with pytest.raises(DataError, match="have columns of different types") as caught:
            load_examples([files[name] for name in pair], where="data.train")
        assert all(files[name] in str(caught.value) for name in pair)


def test_the_lines_of_texts_are_known(tmp_path: Path) -> None:
    with written("a.txt", b"one\n\n\ntwo\nlines\n\nthree\n") as file:
        texts = ["one", "\ntwo\nlines", "three\n"]
        assert list(load_examples(file, where="data.train").column("text")) == texts
        assert [place_of(file, row, where="data.train") for row in range(3)] == [
            f"{file}:{line}" for line in (1, 4, 7)
        ]
