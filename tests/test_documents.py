import json
import math
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import processes, work
from tests.examples import examples
from tests.tiny import REPOSITORY
from zerokit.documents import (
    MAX_BYTES,
    Document,
    first_unreadable,
    parse_json,
    parse_scalar,
    parse_yaml,
    read_bytes,
    read_document,
    reading,
    unreadable_reason,
)
from zerokit.documents.json_reader import MAX_DEPTH
from zerokit.errors import DocumentError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_json_is_read_as_the_standard_library_reads_it(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    read = parse_json(text).data
    assert read == json.loads(text)
    assert json.dumps(read) == json.dumps(json.loads(text))  # tells 1 from 1.0 and true


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \n\\u/', max_size=20))
def test_json_is_refused_where_the_standard_library_refuses_it(text: str) -> None:
    valid, expected = True, None
    try:
        expected = json.loads(text, parse_constant=_no_constants)
    except (ValueError, RecursionError):
        valid = False
    refusal = None
    try:
        read = parse_json(text).data
    except DocumentError as error:
        refusal = error
    if refusal is None:
        assert valid
        assert read == expected
    else:
        # Stricter in two ways only: duplicate keys and numbers beyond a float.
        assert "\n" not in str(refusal)
        assert not valid or any(reason in refusal.message for reason in ("appears twice", "does not fit"))


def _no_constants(name: str) -> None:
    raise ValueError(name)


@given(st.integers(0, 20), st.integers(1, 20))
def test_a_duplicate_key_is_refused_with_both_lines(before: int, between: int) -> None:
    lines = ["{", *[f'"k{i}": {i},' for i in range(before)], '"twice": 1,']
    lines += [f'"l{i}": {i},' for i in range(between)] + ['  "twice": 2', "}"]
    with pytest.raises(DocumentError) as caught:
        parse_json("\n".join(lines), "f.json")
    first = before + 2
    assert f"first on line {first}" in caught.value.message
    assert caught.value.where == f"f.json:{first + between + 1}:3"
    with pytest.raises(DocumentError, match="first on line 1"):
        parse_yaml("a: 1\nb: 2\na: 3\n", "f.yaml")


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(), min_size=1, max_size=8))
def test_positions_are_those_of_the_keys(data: dict[str, int]) -> None:
    text = json.dumps(data, indent=2)
    document = parse_json(text)
    for key in data:
        line, column = document.positions[(key,)]
        assert text.split("\n")[line - 1][column - 1 :].startswith(json.dumps(key))


def test_places_fall_back_to_the_nearest_parent() -> None:
    document = parse_json('{\n "a": {\n  "b": [1,\n   2]}}', "f.json")
    assert document.where(("a", "b", 1)) == "f.json:4 (a.b[1])"
    assert document.line(("a", "absent")) == 2
    assert document.line(("absent",)) is None
    assert document.where(()) == "f.json"
    assert Document({}, "x").where(("a",)) == "x (a)"
    document = parse_json('\n  {"a": 1}', "f.json")
    assert document.position(()) == (2, 3)
    assert document.position(("absent", "b")) == (2, 3)
    assert document.position(("a", "b")) == (2, 4)
    assert Document({}, "x").position(("a",)) is None


@given(VALUES, st.sampled_from([None, 0, 2]))
def test_spans_are_where_the_values_stand(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    document = parse_json(text)
    assert document.text == text
    for path, span in document.spans.items():
        part = document.data
        for key in path:
            part = part[key]
        assert json.dumps(json.loads(text[span.value : span.end])) == json.dumps(part)
        if path and isinstance(path[-1], str):
            assert text.startswith(json.dumps(path[-1]), span.start)


MISTAKES = [
    # text, place, and what message and hint must name
    ('{"a": 1,}', "1:8", "a comma after the last entry", "Remove it"),
    ("[1, 2, ]", "1:6", "a comma after the last entry", "Remove it"),
    ("{'a': 1}", "1:2", "single quotes", "double quotes"),
    ('{"a": True}', "1:7", "'True' is not a value of JSON", "Write true"),
    ('{"a": None}', "1:7", "'None' is not a value of JSON", "Write null"),
    ('{"a": NaN}', "1:7", "'NaN' is not a value of JSON", "finite"),
    ('{"a": -Infinity}', "1:7", "'-Infinity' is not a value of JSON", "finite"),
    ('{"a": 1 "b": 2}', "1:8", "a comma is missing", "Add it"),
    ('{"a": "x" "b": 2}', "1:10", "a comma is missing", "Add it"),
    ('{"a": 1\n "b": 2}', "1:8", "a comma is missing", "Add it"),
    ('{"a": 1,, "b": 2}', "1:9", "two commas", "Remove one"),
    ('{"a": ,}', "1:7", "expected a value, found ','", "Remove the comma"),
    ('{"a": }', "1:7", "expected a value, found '}'", "Write the value"),
    ('{"a" 1}', "1:6", "expected ':' after the key 'a'", "Add it"),
    ('{"a" = 1}', "1:6", "expected ':' after the key 'a'", "':' for '='"),
    ('{\n// no\n"a": 1}', "2:1", "a comment", "_comment"),
    ('{"a": 1} # no', "1:10", "a comment", "_comment"),
    ('{"a": /* no */ 1}', "1:7", "a comment", "_comment"),
    ("{/* no", "1:2", "a comment that is never closed", "*/"),
    ("{a: 1}", "1:2", "a key in double quotes, found a", 'Write "a"'),
    ("{“a”: 1}", "1:2", "a key in double quotes", "double quotes"),
    ('{"a": cpu}', "1:7", "'cpu' is not a value", "double quotes"),
    ('{"a": .5}', "1:7", "'.5' is not a number", "0.5"),
    ('{"a": 01}', "1:7", "'01' is not a number", "plain digits"),
    ('{"a": 1_000}', "1:7", "'1_000' is not a number", "plain digits"),
    ('{"a": STAGE_NUMBER}', "1:7", "'STAGE_NUMBER' is a placeholder", "template"),
    ('{"a": ${STAGE}}', "1:7", "is a placeholder", "template"),
    ('{"a": CL_1st_MAX}', "1:7", "'CL_1st_MAX' is a placeholder", "template"),
    ('{"a": 1', "1:8", "the '{' of line 1, column 1 is not closed", "Add '}'"),
    ('{"a": {\n"b": [1, 2}', "2:11", "expected ']' for the '[' of line 2, column 6", "Close the '['"),
    ("[1, {]", "1:6", "expected '}' for the '{' of line 1, column 5", "Close the '{'"),
    ('{"a": 1}}', "1:9", "one '}' too many", "Remove it"),
    ('{"a": 1}\n{"b": 2}', "2:1", "a second JSON value", "file of its own"),
    ('{"a": 1}\n```', "2:1", "text after the end", "Markdown"),
    ('{"a": 1} x', "1:10", "text after the end", "Remove it"),
    ('{"a": "x\n}', "1:7", "a string that is not closed on its line", "double quote"),
    ('{"a": "x\ty"}', "1:9", "a tab", "\\t"),
    ('{"a": "C:\\x"}', "1:10", "a backslash", "\\\\"),
    ('{"a": "\\ud800"}', "1:7", "half of a character", "both"),
    ('{"a": 1e999}', "1:7", "does not fit a float", "smaller"),
    ("", "1:1", "is empty", "{ ... }"),
    ("  \n", "2:1", "is empty", "{ ... }"),
    ("<!DOCTYPE html>\n<html>", "1:1", "a web page", "raw file"),
    ("version https://git-lfs.github.com/spec/v1\noid sha256:0", "1:1", "Git LFS", "git lfs pull"),
    ('{\n<<<<<<< HEAD\n"a": 1\n=======\n"a": 2\n>>>>>>> x\n}', "2:1", "an unresolved merge conflict", "two sides"),
]


@pytest.mark.parametrize(("text", "place", "message", "hint"), MISTAKES, ids=range(len(MISTAKES)))
def test_syntax_errors_name_the_usual_cause(text: str, place: str, message: str, hint: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_json(text, "f")
    assert caught.value.where == f"f:{place}"
    assert message in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "data", "kinds"),
    [
        ('{"a": 1}', {"a": 1}, []),
        ('// top\n{"a": 1, # one\n"b": [2, 3,], /* two */}', {"a": 1, "b": [2, 3]}, None),
        ('{"a": 1,}', {"a": 1}, ["trailing comma"]),
        ("{'a': 'it\\'s \"x\"'}", {"a": 'it\'s "x"'}, ["single quotes"] * 2),
        ('{"a": 1\n"b": 2}', {"a": 1, "b": 2}, ["missing comma"]),
        ("{a: 1}", {"a": 1}, ["bare key"]),
        ('{"a": cpu\n}', {"a": "cpu"}, ["bare value"]),
        ('{"a": True,\n"b": 1}', {"a": "True,", "b": 1}, ["bare value"]),
        ('{"a": 1.0 off\n}', {"a": "1.0 off"}, ["bare value"]),
        ('a: 1\nb: "x"\n', {"a": 1, "b": "x"}, None),
        ('\ufeff{"a": 1}', {"a": 1}, ["byte-order mark"]),
    ],
)
def test_a_lenient_reader_reads_what_deepspeed_reads(text: str, data: Any, kinds: list[str] | None) -> None:
    hjson = pytest.importorskip("hjson")
    document = parse_json(text, lenient=True)
    assert document.data == data == hjson.loads(text)
    if kinds is not None:
        assert [departure.kind for departure in document.departures] == kinds
    for departure in document.departures:
        assert departure.line == text.count("\n", 0, departure.start) + 1


PIECES = st.sampled_from(
    [
        *"{}[],:\"'\n #",
        *("//", "/*", "*/", "true", "null", "True", "1", "-2.5", "5e8", "0x1", "a", '"b"', "'c'", "\\", "e f"),
        *('"k": ', "k: ", "{", "}", '{"a": ', ",\n"),
    ]
)


@examples(1500)
@given(st.lists(PIECES, max_size=14).map("".join), st.sampled_from(["{}", "[]"]))
def test_what_a_lenient_reader_reads_is_what_hjson_reads(inner: str, brackets: str) -> None:
    text = f"{brackets[0]}{inner}{brackets[1]}"
    hjson = pytest.importorskip("hjson")
    try:
        read = parse_json(text, lenient=True).data
    except DocumentError:
        return
    # hjson knows a text in three single quotes, which may begin where another ends.
    if "'''" not in text:
        assert read == hjson.loads(text)


@given(VALUES, st.sampled_from([None, 2]))
def test_plain_json_is_read_alike_by_both_readers(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    strict, lenient = parse_json(text), parse_json(text, lenient=True)
    assert lenient.data == strict.data
    assert lenient.departures == ()
    assert lenient.spans == strict.spans


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("text", ["[" * 10_000_000, '{"a":' * 2_000_000, "[[],[" * 1_000_000, "{" * 1_000_000])
def test_millions_of_brackets_are_little_work(text: str, lenient: bool) -> None:
    errors = []

    def parse() -> None:
        with pytest.raises(DocumentError, match=r"deeply|double quotes") as caught:
            parse_json(text, "f.json", lenient=lenient)
        errors.append(str(caught.value))

    assert work.calls_in(parse) < 100 * MAX_DEPTH
    assert len(errors[0]) < 200


def test_files_are_told_apart_by_their_ending(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}')
    (tmp_path / "a.yaml").write_text("a: 1e-5\n")
    assert read_document(tmp_path / "a.json").data == {"a": 1}
    assert read_document(tmp_path / "a.yaml").data == {"a": 1e-5}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"{}", "cannot tell the format"),
        ("a.json", b"{\n\xff}", "a.json:2: is not UTF-8"),
        ("a.json", "{}".encode("utf-16"), "UTF-16"),
        ("a.json", b"PK\0\0", "binary"),
        ("absent.json", None, "no such file"),
        ("zero\0byte.json", None, "cannot be read"),
        ("a.json", b"[1, 2, 3]", "is larger than 0 MiB"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError, match=message) as caught:
        read_document(tmp_path / name, max_bytes=8)
    assert caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "most"), [("json", 52_428), ("yaml", 10_485)])
def test_a_file_of_data_is_not_read_to_its_end(ending: str, most: int, tmp_path: Path) -> None:
    file = tmp_path / f"data.{ending}"
    file.write_text("\n".join(["{", *(f'"k{number}": 1,' for number in range(most)), '"last": 1}']))
    with pytest.raises(DocumentError, match=f"has more than {most:,} entries"):
        read_document(file)
    file.write_text(json.dumps({f"k{number}": 1 for number in range(most)}))
    assert len(read_document(file).data) == most


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_large_file_is_read_up_to_the_bound(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"large.{ending}"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    assert len(read_bytes(file)) == MAX_BYTES + 1
    with pytest.raises(DocumentError, match=f"is larger than {MAX_BYTES >> 20} MiB"):
        read_document(file)


def _refusal(text: str, ending: str, tmp_path: Path) -> DocumentError | None:
    """Return why a file is refused, or None if it is read."""
    file = tmp_path / f"a.{ending}"
    file.write_text(text)
    try:
        read_document(file, lenient=True)
    except DocumentError as error:
        return error
    return None


@pytest.mark.parametrize(
    "number",
    [
        *("1:" * 25_000 + "1", "!!int '" + "1:" * 25_000 + "1'", "1:" * 180 + "1"),
        *("0x" + "f" * 90_000, "0b" + "1" * 90_000, "0" + "7" * 90_000),
        *("9" * 90_000, "9_" * 40_000, "-" + "9" * 400),
    ],
    ids=lambda number: number[:10],
)
def test_a_number_that_nothing_can_be_computed_with_is_refused(number: str, tmp_path: Path) -> None:
    refusal = _refusal(f"a: 1\nb: {number}\n", "yaml", tmp_path)
    assert refusal is not None
    assert "does not fit a float" in refusal.message
    assert refusal.where == f"{tmp_path}/a.yaml:2:4"
    assert len(str(refusal)) < 400
    if number.strip("-9") == "":
        refusal = _refusal(f'{{"a": {number}}}', "json", tmp_path)
        assert refusal is not None
        assert any(reason in refusal.message for reason in ("does not fit a float", "too many digits"))


def test_numbers_of_all_bases_are_read() -> None:
    read = parse_yaml("[0x1F, 0b11, 017, 1_000, 1:30, -9223372036854775808, 1e5, 190:20:30.15]").data
    assert read == [31, 3, 15, 1000, 90, -(2**63), 1e5, 685230.15]


@pytest.mark.parametrize("kind", ["{key}: 0", "? !!int '{key}'\n: 0", "{key:#x}: 0"])
def test_keys_of_one_hash_are_refused(kind: str, tmp_path: Path) -> None:
    keys = (number * (2**61 - 1) for number in range(1, 2500))
    refusal = _refusal("\n".join(kind.format(key=key) for key in keys), "yaml", tmp_path)
    assert refusal is not None
    assert "as a key. Use a word" in str(refusal)
    assert parse_yaml("{0: a, 123456789: b}").data == {0: "a", 123456789: "b"}


@pytest.mark.parametrize("tag", ["!!timestamp x", "!!bool x", "!!int ''", "!!float ''", "!!binary é"])
def test_a_value_that_is_not_of_its_tag_is_refused(tag: str) -> None:
    with pytest.raises(DocumentError, match=r"is not YAML: .*(of the type that its tag names|ascii)"):
        parse_yaml(f"a: {tag}")


@pytest.mark.parametrize(
    ("text", "ending"),
    [("#\n" * 200_000 + "{}", "jsonc"), ("/**/" * 200_000 + "{}", "json"), ("a: >\n" + "  x\n" * 300_000, "yaml")],
    ids=["lines", "comments", "yaml"],
)
def test_a_file_with_little_but_text_takes_no_longer(text: str, ending: str, tmp_path: Path) -> None:
    refusal = _refusal(text, ending, tmp_path)
    assert refusal is not None
    assert any(reason in refusal.message for reason in ("in more than 52,428 places", "is larger than 1 MiB"))


def test_a_pipe_is_read_but_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PIPE_PATIENCE", 0.0)
    pipe = tmp_path / "a.json"
    os.mkfifo(pipe)
    with pytest.raises(DocumentError, match="is a pipe that nobody writes to"):
        read_document(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    slow = threading.Timer(0.0, lambda: (os.write(writer, b'{"a": 1}'), os.close(writer)))
    slow.start()
    assert read_document(pipe).data == {"a": 1}
    slow.join()
    os.close(reader)


def test_a_folder_and_deep_nesting_are_errors_not_crashes(tmp_path: Path) -> None:
    (tmp_path / "d.json").mkdir()
    for folder in (tmp_path, tmp_path / "d.json"):
        with pytest.raises(DocumentError, match="folder"):
            read_document(folder)
    with pytest.raises(DocumentError, match="deeply"):
        parse_json("[" * 100_000)
    nested = parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH).data
    assert nested


def test_yaml_errors_say_where() -> None:
    with pytest.raises(DocumentError, match=r"f\.yaml:2:1") as caught:
        parse_yaml("a:\n\tb: 1\n", "f.yaml")
    assert "tabs" in str(caught.value)


def test_scalars() -> None:
    assert math.isclose(parse_scalar("1e-5"), 1e-5)
    assert parse_scalar("[1, 2]") == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a {x: *a}\n", "an alias that refers to itself"),
        ("a0: &a0 [1, 2]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 31)), "too large"),
    ],
)
def test_aliases_that_would_never_end_are_one_line(text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        parse_yaml(text, "a.yaml")


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/kmsg", "/sys/kernel/notes", "/dev/zero"])
def test_what_the_kernel_makes_up_is_not_read(path: str, tmp_path: Path) -> None:
    if not Path(path).exists():
        pytest.skip("there is none")
    (tmp_path / "link.json").symlink_to(path)
    for file in (path, tmp_path / "link.json"):
        with pytest.raises(DocumentError, match="not a regular file"):
            read_bytes(file)


def test_a_file_of_a_folder_is_regular_and_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "private.json").write_text('{"a": "secret"}')
    (tmp_path / "other").symlink_to(folder)
    (folder / "inside.json").symlink_to("config.json")
    (folder / "outside.json").symlink_to("../private.json")
    (folder / "nothing.json").symlink_to("../nothing.json")
    (folder / "itself.json").symlink_to("itself.json")
    os.mkfifo(folder / "pipe.json")
    assert read_document(tmp_path / "other/inside.json", folder=tmp_path / "other").data == {}
    assert read_document(folder / "outside.json").data == {"a": "secret"}  # which a person has named
    for name, reason in (
        ("outside.json", "leads out of its folder"),
        ("../private.json", "leads out of its folder"),
        ("nothing.json", "leads out of its folder"),
        ("pipe.json", "is a pipe, not a regular file"),
    ):
        assert unreadable_reason(folder / name, folder) == reason
        with pytest.raises(DocumentError, match=reason):
            read_document(folder / name, folder=folder)
    for name in ("itself.json", "deep", "absent.json", "inside.json"):
        assert unreadable_reason(folder / name, folder) is None
    assert first_unreadable(folder) == (folder / "nothing.json", "leads out of its folder")


@pytest.mark.parametrize(
    ("blob", "is_read"),
    [
        ("model/blobs/" + "ab" * 20, True),
        ("model/blobs/" + "ab" * 32, True),
        ("model/blobs/notes.txt", False),
        ("other/blobs/" + "ab" * 20, False),
        ("model/snapshots/cd/config.json", False),
    ],
)
def test_links_of_the_hub_cache_lead_to_blobs_of_their_own_repository(
    blob: str, is_read: bool, tmp_path: Path
) -> None:
    snapshot = tmp_path / "model/snapshots" / ("12" * 20)
    for folder in (snapshot / "additional_chat_templates", (tmp_path / blob).parent):
        folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / blob).write_text("{}")
    for name in ("config.json", "additional_chat_templates/tool.jinja"):
        link = snapshot / name
        link.symlink_to(os.path.relpath(tmp_path / blob, link.parent))
        assert (unreadable_reason(link, snapshot) is None) == is_read


@pytest.mark.parametrize(
    ("target", "is_read"),
    [
        ("hub/models--a--b/blobs/" + "ab" * 32, True),
        ("hub/models--a--b/snapshots/cd/model.safetensors", True),
        ("hub/models--a--b/blobs/notes.txt", False),
        ("hub/models--a--b/refs/" + "ab" * 20, False),
        ("hub/datasets--a--b/blobs/" + "ab" * 32, False),
        ("other/models--a--b/blobs/" + "ab" * 32, False),
        ("hub/deep/models--a--b/blobs/" + "ab" * 32, False),
    ],
)
@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_links_of_any_folder_lead_to_blobs_of_models_in_the_own_hub_cache(
    variable: str, target: str, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    homes = {"HF_HUB_CACHE": "real/hub", "HF_HOME": "real", "XDG_CACHE_HOME": "cache"}
    for folder in ("real", "cache", "model"):
        (tmp_path / folder).mkdir()
    (tmp_path / "cache/huggingface").symlink_to("../real")
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv(
        variable, str(tmp_path / homes[variable]) if variable[0] == "X" else f"$PLACE/{homes[variable]}"
    )
    file = tmp_path / "real" / target
    file.parent.mkdir(parents=True)
    if "snapshots" in target:
        blob = file.parents[2] / "blobs" / ("cd" * 20)
        blob.parent.mkdir()
        blob.touch()
        file.symlink_to(blob)
    else:
        file.touch()
    link = tmp_path / "model/model.safetensors"
    link.symlink_to(file)
    assert (unreadable_reason(link, link.parent) is None) == is_read


@pytest.mark.parametrize("stdin", ["< a.json", "< /dev/null", "<<< ''", "< <(cat a.json)"])
def test_standard_input_by_another_name_is_read(stdin: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    code = "from zerokit.documents import read_bytes; print(read_bytes('/dev/stdin'))"
    command = ["bash", "-c", f'{sys.executable} -c "{code}" {stdin}']
    expected = {"a.json": "{}", "< /dev/null": "", "<<< ''": "\\n"}
    printed = processes.checked(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert printed == f"b'{next(text for word, text in expected.items() if word in stdin)}'\n"
