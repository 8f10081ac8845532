import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.documents import Document, dotted, parse_json, parse_scalar, parse_yaml, read_document
from zerokit.errors import DocumentError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_json_is_read_as_the_standard_library_reads_it(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
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
        assert not valid or any(reason in refusal.message for reason in ("stands twice", "does not fit"))


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


def test_yaml_refuses_duplicate_keys_too() -> None:
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


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ('{"a": 1,}', "f:1:9", "Remove it"),
        ("{'a': 1}", "f:1:2", "double quotes"),
        ('{"a": True}', "f:1:7", "true, false"),
        ('{"a": NaN}', "f:1:7", "finite"),
        ('{"a": 1 "b": 2}', "f:1:9", "Add it"),
        ('{\n// no\n"a": 1}', "f:2:1", "_comment"),
        ('{"a": 1} x', "f:1:10", "Remove it"),
        ("", "f:1:1", "Complete it"),
        ('{"a": 1e999}', "f:1:12", "smaller"),
    ],
)
def test_syntax_errors_say_where_and_how_to_mend(text: str, where: str, hint: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_json(text, "f")
    assert caught.value.where == where
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_files_are_told_apart_by_their_ending(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}')
    (tmp_path / "a.yaml").write_text("a: 1e-5\n")
    assert read_document(tmp_path / "a.json").data == {"a": 1}
    assert read_document(tmp_path / "a.yaml").data == {"a": 1e-5}


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", b"{}"), ("a.json", b"\xff{}"), ("absent.json", None)]
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError, match=name):
        read_document(tmp_path / name)


def test_a_folder_and_deep_nesting_are_errors_not_crashes(tmp_path: Path) -> None:
    (tmp_path / "d.json").mkdir()
    with pytest.raises(DocumentError, match="folder"):
        read_document(tmp_path / "d.json")
    with pytest.raises(DocumentError, match="deeply"):
        parse_json("[" * 100_000)


def test_scalars_and_dotted_paths() -> None:
    assert math.isclose(parse_scalar("1e-5"), 1e-5)
    assert parse_scalar("[1, 2]") == [1, 2]
    assert dotted(("a", 0, "b")) == "a[0].b"
