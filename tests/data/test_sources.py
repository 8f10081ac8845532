"""Examples from files, folders, the Hub and built-in text, and what is said when they are not there."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from zerokit.data.sources import load_examples, place_of
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError

pytestmark = pytest.mark.torch

ROWS = [{"text": "a\u2028b"}, {"text": "c"}]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write(folder: Path, name: str, content: str | bytes) -> str:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def error_of(source: str | list[str], split: str = "train") -> DataError:
    with pytest.raises(DataError) as caught:
        load_examples(source, where="data.train", split=split)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL),
        ("a.JSONL", JSONL),
        ("a.json", json.dumps(ROWS)),
        ("a.csv", "text\na\u2028b\nc\n"),
        ("a.jsonl", b"\xef\xbb\xbf" + JSONL.encode()),
    ],
)
def test_files_are_read_by_their_ending(name: str, content: str | bytes, tmp_path: Path) -> None:
    assert list(load_examples(write(tmp_path, name, content), where="w")) == ROWS


@pytest.mark.parametrize(("ending", "module"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_compressed_texts_are_read_and_have_their_lines(ending: str, module: Any, tmp_path: Path) -> None:
    file = write(tmp_path, f"a.jsonl{ending}", module.compress(f"\n{JSONL}".encode()))
    assert list(load_examples(file, where="w")) == ROWS
    assert place_of(file, 1, where="w") == f"{file}:3"
    broken = write(tmp_path, f"b.jsonl{ending}", module.compress((JSONL + "{]").encode()))
    assert error_of(broken).where == f"{broken}:3:2"
    listed = write(tmp_path, f"c.json{ending}", module.compress(json.dumps(ROWS).encode()))
    assert list(load_examples(listed, where="w")) == ROWS


@pytest.mark.parametrize("harm", ["cut", "changed", "other"])
@pytest.mark.parametrize(("ending", "module"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_a_compressed_file_that_is_damaged_is_named(ending: str, module: Any, harm: str, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": random.Random(row).randbytes(40).hex()}) + "\n" for row in range(500))
    whole = module.compress(rows.encode())
    half = len(whole) // 2
    content = {"cut": whole[:half], "changed": whole[:half] + bytes(99) + whole[half + 99 :], "other": b"x"}
    file = write(tmp_path, f"a.jsonl{ending}", content[harm])
    with pytest.raises(DataError) as streamed:
        list(ExampleStream(file, where="data.train").read())
    for error in (error_of(file), streamed.value):
        assert error.where == file
        assert error.message.startswith("the file is damaged or cut off: ")


def test_zst_asks_for_the_package_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerokit.data.files.find_spec", lambda name: None)
    error = error_of(write(tmp_path, "a.jsonl.zst", b"x"))
    assert error.hint == "Run pip install zstandard"


def test_tables_of_tabs_are_read_and_have_their_lines(tmp_path: Path) -> None:
    file = write(tmp_path, "a.tsv", 'text\tlabel\n"a, b"\t1\n\nc\t2\n')
    assert list(load_examples(file, where="w")) == [{"text": "a, b", "label": "1"}, {"text": "c", "label": "2"}]
    assert place_of(file, 1, where="w") == f"{file}:4"


def test_a_table_without_rows_still_has_its_columns(tmp_path: Path) -> None:
    empty, full = (write(tmp_path, *one) for one in (("a.csv", "text,label\n"), ("b.csv", "a,text\n1,b\n")))
    rows = load_examples([empty, full], where="w")
    assert list(rows) == [{"text": "b", "label": None, "a": "1"}]
    assert list(rows[0]) == ["text", "label", "a"]


def test_what_datasets_has_saved_is_read_by_split(tmp_path: Path) -> None:
    """And not the JSON that it puts beside its files."""
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    assert list(load_examples(str(tmp_path / "one"), where="w")) == ROWS
    assert place_of(str(tmp_path / "one"), 1, where="w").endswith("data-00000-of-00001.arrow, row 2")
    datasets.load_from_disk(tmp_path / "one").map(lambda row: {"text": row["text"] * 2})
    assert list((tmp_path / "one").glob("cache-*.arrow"))
    assert list(load_examples(str(tmp_path / "one"), where="w")) == ROWS
    other = datasets.Dataset.from_list([{"text": "held out"}])
    datasets.DatasetDict(train=rows, test=other).save_to_disk(tmp_path / "both")
    assert list(load_examples(str(tmp_path / "both"), where="w")) == ROWS
    held_out = load_examples(str(tmp_path / "both"), where="w", split="validation")
    assert list(held_out.column("text")) == ["held out"]


@pytest.mark.parametrize(
    ("names", "split", "read"),
    [
        (["train.jsonl", "test.jsonl"], "train", ["train"]),
        (["train.jsonl", "test.jsonl"], "test", ["test"]),
        (["train.jsonl", "test.jsonl"], "validation", ["test"]),
        (["train.jsonl", "dev.jsonl", "test.jsonl"], "validation", ["dev"]),
        (["my_training_data.jsonl", "my-val.jsonl"], "train", ["my_training_data"]),
        (["train-0-of-2.jsonl", "train-1-of-2.jsonl", "test-0-of-1.jsonl"], "train", ["train-0-of-2", "train-1-of-2"]),
        (["train_sft.jsonl", "train_gen.jsonl"], "train_sft", ["train_sft"]),
        (["train.jsonl", "more.jsonl", "test.jsonl"], "train", ["more", "train"]),
        (["test.jsonl", "contest.jsonl"], "train", ["contest"]),
        (["train.jsonl", "more.jsonl", "test.jsonl"], "test", ["test"]),
        (["train2017.jsonl", "val2017.jsonl"], "train", ["train2017"]),
        (["part1.jsonl", "part10.jsonl"], "part1", ["part1"]),
        (["data/train.jsonl", "README.txt", "LICENSE-MIT.txt"], "train", ["data/train"]),
        (["train.jsonl", "test.jsonl"], None, ["test", "train"]),
        (["data/train/a.jsonl", "data/test/a.jsonl", "README.md"], "train", ["data/train/a"]),
    ],
)
def test_of_a_folder_with_several_splits_one_is_read(
    names: list[str], split: str | None, read: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "training data"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder, name, json.dumps({"text": name.partition(".")[0]}) + "\n")
    assert list(load_examples(str(folder), where="w", split=split).column("text")) == read
    assert place_of(str(folder), 0, where="w", split=split) == f"{folder / read[0]}.jsonl:1"


@pytest.mark.parametrize(
    ("names", "split", "hint"),
    [
        (["train.jsonl", "test.jsonl"], "trian", "Did you mean 'train'?"),
        (["train.jsonl", "test.jsonl"], "default", "Choose one of: train, test"),
        (["train_sft.jsonl", "test_sft.jsonl"], "train_gen", "Did you mean 'train'?"),
        (["test.jsonl", "validation.jsonl"], "train", "Choose one of: validation, test"),
        (["train.jsonl", "more.jsonl"], "validation", "Choose one of: train"),
        (["a.jsonl"], "default", "Choose one of: train"),
    ],
)
def test_a_split_that_no_file_bears_is_refused(names: list[str], split: str, hint: str, tmp_path: Path) -> None:
    for name in names:
        write(tmp_path, name, JSONL)
    error = error_of(str(tmp_path), split=split)
    assert error.message == f"no file in '{tmp_path}' is by its name of split '{split}'"
    assert error.hint == hint


@pytest.mark.parametrize("split", ["train[:50%]", "train+test"])
@pytest.mark.parametrize("name", ["", "train.jsonl", "*.jsonl"])
def test_parts_of_splits_are_the_hubs(name: str, split: str, tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", JSONL)
    write(tmp_path, "test.jsonl", JSONL)
    error = error_of(str(tmp_path / name), split=split)
    assert error.message == f"split '{split}' is of parts, which only data sets of the Hub have"


def test_data_beside_folders_with_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    write(tmp_path, "train.jsonl", JSONL)
    write(tmp_path / "train", "extra.jsonl", JSONL)
    error = error_of(str(tmp_path))
    assert error.message.endswith("beside its folders and in them: train.jsonl, train/extra.jsonl")
    assert len(load_examples(f"{tmp_path}/**/*.jsonl", where="w")) == 4


def test_folders_that_links_lead_to_are_read_once(tmp_path: Path) -> None:
    for name in ("own", ".store"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name, "a.jsonl", JSONL)
    (tmp_path / "linked").symlink_to(".store")
    (tmp_path / ".store/back").symlink_to(tmp_path)
    assert len(load_examples(str(tmp_path), where="w")) == 4


@pytest.mark.parametrize("name", ["b.jsonl", "deep"])
def test_a_link_out_of_a_folder_of_data_is_followed(name: str, tmp_path: Path) -> None:
    for folder in ("data", "elsewhere"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "a.jsonl", JSONL)
    target = tmp_path / "elsewhere"
    (tmp_path / "data" / name).symlink_to(target if name == "deep" else target / "a.jsonl")
    (tmp_path / "data/a.jsonl").rename(tmp_path / "data" / ("deep/b.jsonl" if name == "deep" else "c.jsonl"))
    assert len(load_examples(str(tmp_path / "data"), where="w")) == 4


def test_a_link_to_a_missing_file_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "a.jsonl", JSONL)
    link = tmp_path / "data/b.jsonl"
    link.symlink_to(".git/annex/objects/b.jsonl")
    for source in (str(tmp_path / "data"), f"{tmp_path}/data/*.jsonl"):
        assert error_of(source).message == f"'{link}' is a link to a missing file"
    assert error_of(str(link)).message == f"no such file: '{link}'"


def test_a_file_that_the_kernel_makes_up_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("/proc/self/environ")
    for source in (str(tmp_path / "a.txt"), str(tmp_path), f"{tmp_path}/*.txt"):
        assert error_of(source).message.endswith("a.txt' is made up by the kernel, not a regular file")


def test_a_pattern_is_the_files_that_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name in ("data/b.jsonl", "data/a.jsonl", "data/deep/c.jsonl"):
        write(tmp_path, name, json.dumps({"text": name}) + "\n")
    monkeypatch.chdir(tmp_path)
    assert list(load_examples("data/*.jsonl", where="w").column("text")) == ["data/a.jsonl", "data/b.jsonl"]
    assert len(load_examples(f"{tmp_path}/**/*.jsonl", where="w")) == 3
    assert error_of("data/*.csv").message == "no file is called like 'data/*.csv'"


def test_parquet_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(file)
    assert list(load_examples(str(file), where="w")) == ROWS


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_arrow_of_either_kind_is_read_and_has_its_rows(kind: str, tmp_path: Path) -> None:
    """Files as polars and feather write them, and streams, as `datasets` does."""
    table = pa.table({"text": [row["text"] for row in ROWS]})
    file = str(tmp_path / "a.arrow")
    with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    assert list(load_examples(file, where="w")) == ROWS
    assert place_of(file, 1, where="w") == f"{file}, row 2"
    assert place_of([file, file], 3, where="w") == f"{file}, row 2"


def test_text_is_read_by_paragraph_or_by_line(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", "a\r\nb\r\n\r\nc")
    assert list(load_examples(file, where="w").column("text")) == ["a\nb", "c"]
    lines = list(load_examples(file, where="w", text_unit="line").column("text"))
    assert [line for line in lines if line] == ["a", "b", "c"]


def test_a_folder_is_all_its_data_files_in_order_of_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *asked: sorted(listed(*asked), reverse=True))
    folder = tmp_path / "data"
    (folder / "deeper.jsonl").mkdir(parents=True)
    for name in "351624":
        write(folder, f"{name}.jsonl", f'{{"text": "{name}"}}\n')
    write(folder, "notes.md", "not data")
    assert list(load_examples(str(folder), where="w").column("text")) == list("123456")


def test_a_list_of_files_is_read_in_its_order(tmp_path: Path) -> None:
    files = [write(tmp_path, f"{name}.jsonl", f'{{"text": "{name}"}}\n') for name in ("b", "a")]
    assert list(load_examples(files, where="w").column("text")) == ["b", "a"]


def test_a_list_does_not_lose_a_name_that_is_no_file(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", JSONL)
    error = error_of([file, "org/name"])
    assert error.message == "no such file: 'org/name'"


def test_builtin_data_has_training_and_held_out_parts() -> None:
    train = load_examples("builtin:python-questions", where="w")
    held_out = load_examples("builtin:python-questions", where="w", split="validation")
    assert train.columns == ["prompt", "completion"]
    assert not set(train.column("prompt")) & set(held_out.column("prompt"))
    assert load_examples("builtin:python-reference", where="w").columns == ["text"]
    assert error_of("builtin:python-referense").hint == "Did you mean 'python-reference'?"


@pytest.mark.parametrize("name", ["none.jsonl", "./none", "/none/at/all", "~/none-at-all", "org/name/data.csv"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the Hub"))
    error = error_of(name)
    assert error.message == f"no such file: '{name}'"
    assert error.where == "data.train"


def test_what_is_neither_a_file_nor_a_hub_id_is_refused() -> None:
    assert "neither a file nor a Hub data set" in error_of("my data").message


def test_an_unknown_ending_is_named_with_the_known_ones(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, "a.xlsx", "a"))
    assert "ends in '.xlsx'" in error.message
    assert ".jsonl, .json, .csv, .tsv, .parquet, .arrow, .txt" in (error.hint or "")


def test_files_of_different_formats_are_refused(tmp_path: Path) -> None:
    files = [write(tmp_path, "a.jsonl", JSONL), write(tmp_path, "a.txt", "a")]
    assert error_of(files).message == "files of different formats: a.jsonl, a.txt"
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
    files = [write(tmp_path, "train/a.jsonl", JSONL), write(tmp_path, "test/a.txt", "a")]
    assert error_of(files).message == "files of different formats: train/a.jsonl, test/a.txt"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", ""),
        ("a.jsonl", "\n \n"),
        ("a.json", "[]"),
        ("a.csv", ""),
        ("a.csv", "text\n"),
        ("a.txt", ""),
        ("a.parquet", ""),
    ],
)
def test_a_file_without_examples_is_named(name: str, content: str, tmp_path: Path) -> None:
    file = write(tmp_path, name, content)
    line = str(error_of(file))
    assert file in line
    assert "at least one example" in line
    with pytest.raises(DataError) as caught:
        ExampleStream(file, where="data.train")
    assert str(caught.value) == line


def test_an_empty_folder_is_named_with_the_endings_it_could_have(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = error_of(str(tmp_path / "empty"))
    assert error.message == f"the folder '{tmp_path / 'empty'}' has no data files"


@pytest.mark.parametrize(
    ("name", "content", "place", "message"),
    [
        ("a.jsonl", JSONL + '{"text": x}\n', ":3:10", "'x' is not a value of JSON"),
        ("a.jsonl", JSONL + "\n" + '{"text": "x\n', ":4:10", "a string that is not closed"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": \n',
            ":2:10",
            "the line ends, but the '{' of line 2, column 1 is not closed",
        ),
        ("a.jsonl", '{"text": \n{"text": "a"}\n', ":1:10", "the line ends, but the '{' of line 1, column 1"),
        ("a.json", '[\n{"text": "a"}', ":2:14", "the file ends, but the '[' of line 1, column 1"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', ":2", "not a JSON object"),
        ("a.json", '[\n{"text": "a"},\n{"text": b}]', ":3:10", "'b' is not a value of JSON"),
    ],
)
def test_malformed_json_is_named_with_file_and_line(
    name: str, content: str, place: str, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path, name, content)
    error = error_of(file)
    assert error.where == f"{file}{place}"
    assert message in error.message


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", b'{"text": "\xe9"}\n'), ("a.txt", b"\xe9\xff"), ("a.csv", b"text\n\xe9\xff\n")]
)
def test_what_is_not_utf8_is_refused_at_once(name: str, content: bytes, tmp_path: Path) -> None:
    file = write(tmp_path, name, content)
    line = str(error_of(file))
    assert file in line
    assert "utf-8" in line.lower()


def test_malformed_csv_is_a_data_error(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", 'text,b\n1,2\n1,2,3,4\n"a\n')
    assert error_of(file).where == f"{file}:3"


@pytest.mark.parametrize(
    "error", [ConnectionError("no network\nfor you"), ValueError('Unknown split "trian"'), RuntimeError()]
)
def test_a_hub_that_does_not_answer_is_a_data_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = error_of("org/name")
    reason = (str(error) or "RuntimeError").splitlines()[0]
    assert found.message == f"'org/name' is no file here, and the Hub did not give it: {reason}"


def test_a_hub_id_is_loaded_with_its_subset_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> datasets.Dataset:
        asked.append((args, options))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(load_examples("org/name", where="w", subset="en", split="test")) == 2
    assert asked == [(("org/name", "en"), {"split": "test"})]


PAIRS = [("a", "one"), ("b", "two\nlines"), ("c", "three")]


def written(folder: Path, kind: str) -> Path:
    """The rows as a person may write them: with blank lines, over several lines, quoted."""
    file = folder / f"rows.{kind}"
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS]
    if kind == "jsonl":
        file.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    elif kind == "json":
        file.write_text(json.dumps(rows, indent=1))
    elif kind == "csv":
        file.write_text('prompt,completion\na,one\n\nb,"two\nlines"\nc,three\n')
    else:
        datasets.Dataset.from_list(rows).to_parquet(file)
    return file


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("jsonl", [":1", ":3", ":5"]),
        ("json", [":2", ":6", ":10"]),
        ("csv", [":2", ":4", ":6"]),
        ("parquet", [", row 1", ", row 2", ", row 3"]),
    ],
)
def test_each_example_has_its_place(kind: str, places: list[str], tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    files = [str(written(tmp_path / folder, kind)) for folder in ("first", "second")]
    assert list(load_examples(files, where="w").column("completion")) == [completion for _, completion in PAIRS] * 2
    expected = [f"{file}{place}" for file in files for place in places]
    assert [place_of(files, row, where="w") for row in range(6)] == expected
