import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.documents import Document, KeyPath, parse_json
from zerokit.findings import Edit, Move, Remove, ReplaceText, SetValue
from zerokit.lint.rewrite import EditError, apply_edits, edit_data

KEYS = st.sampled_from(["a", "b", "stage", "bf16", 'q"uote', "", "ü", "_comment"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
DATA = st.dictionaries(KEYS, VALUES, max_size=5)
INDENTS = st.sampled_from([None, 0, 2, 4, "\t"])


def paths_of(data: Any, path: KeyPath = ()) -> list[KeyPath]:
    found: list[KeyPath] = [path]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += paths_of(value, (*path, key))
    return found


@st.composite
def edits_of(draw: st.DrawFn, data: Any) -> Edit:
    path = draw(st.sampled_from(paths_of(data)))
    kind = draw(st.sampled_from(["set", "new", "remove", "move", "rename"]))
    if kind == "set":
        return SetValue(path, draw(VALUES))
    if kind == "new":
        return SetValue((*path, *draw(st.lists(KEYS, min_size=1, max_size=2))), draw(VALUES))
    if kind == "remove":
        return Remove(path)
    if kind == "rename":
        return Move(path, (*path[:-1], draw(KEYS)))
    return Move(path, (*draw(st.sampled_from(paths_of(data))), draw(KEYS)))


@st.composite
def texts_and_edits(draw: st.DrawFn) -> tuple[str, Edit]:
    data = draw(DATA)
    separators = draw(st.sampled_from([None, (",", ":"), (", ", " : ")]))
    text = json.dumps(data, indent=draw(INDENTS), ensure_ascii=False, separators=separators)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\n", "\n\n  "])) + text + draw(st.sampled_from(["", "\n"])), draw(edits_of(data))


def ordered(data: Any) -> str:
    return json.dumps(data)


@examples(400)
@given(texts_and_edits())
def test_the_edited_text_holds_the_edited_data(drawn: tuple[str, Edit]) -> None:
    text, edit = drawn
    document = parse_json(text)
    try:
        expected = edit_data(document.data, edit)
    except EditError:
        with pytest.raises(EditError):
            apply_edits(document, [edit])
        return
    edited = apply_edits(document, [edit])
    assert edited.text is not None
    assert ordered(parse_json(edited.text).data) == ordered(expected)  # still strict JSON
    assert ordered(edited.data) == ordered(expected)


@examples(200)
@given(DATA, st.sampled_from([None, 2, 4, "\t"]), st.sampled_from(["\n", "\r\n"]), st.data())
def test_what_the_edit_does_not_speak_of_keeps_its_bytes(data: Any, indent: Any, newline: str, drawn: Any) -> None:
    text = (json.dumps(data, indent=indent, ensure_ascii=False) + "\n").replace("\n", newline)
    document = parse_json(text)
    edit = drawn.draw(edits_of(data))
    try:
        edited = apply_edits(document, [edit])
    except EditError:
        return
    assert edited.text is not None
    match edit:
        case SetValue(path) if path in document.spans:
            span = document.spans[path]
            assert edited.text.startswith(text[: span.value])
            assert edited.text.endswith(text[span.end :])
        case SetValue(path):
            new = next(path[:end] for end in range(len(path) + 1) if path[:end] not in document.spans)
            assert apply_edits(edited, [Remove(new)]).text == text
        case Remove() | Move():
            # Every entry has lines of its own, or all stand on one: either way json.dumps writes the same.
            expected = json.dumps(edit_data(data, edit), indent=indent, ensure_ascii=False) + "\n"
            assert edited.text == expected.replace("\n", newline)


COMMENTS = st.sampled_from(["", "  // said of it", "  # said of it", " /* said of it */"])


@st.composite
def commented(draw: st.DrawFn, data: Any, indent: str = "") -> str:
    """Text that only DeepSpeed reads: comments, commas missing or after the last entry."""
    if not isinstance(data, dict):
        return json.dumps(data)
    lines = ["{" + draw(COMMENTS)]
    for at, (key, value) in enumerate(data.items()):
        if draw(st.booleans()):
            lines.append(f"{indent}  // above {at}")
        value = draw(commented(value, indent + "  "))
        comma = draw(st.sampled_from([",", ",", ""]))
        lines.append(f"{indent}  {json.dumps(key)}: {value}{comma}{draw(COMMENTS)}")
    return "\n".join([*lines, indent + "}"])


@examples(200)
@given(DATA.flatmap(lambda data: st.tuples(commented(data), edits_of(data))))
def test_text_with_comments_is_edited_too(drawn: tuple[str, Edit]) -> None:
    text, edit = drawn
    document = parse_json(text, lenient=True)
    try:
        expected = edit_data(document.data, edit)
    except EditError:
        return
    edited = apply_edits(document, [edit])
    assert edited.text is not None
    assert ordered(edited.data) == ordered(expected)
    if isinstance(edit, SetValue) and edit.path not in document.spans:
        before = [found for found in document.departures if found.kind == "comment"]
        after = [found for found in edited.departures if found.kind == "comment"]
        assert len(before) == len(after)


EXAMPLE = """{
    "train_batch_size" : 8, // of all GPUs
    "zero_optimization": {
        // the stage
        "stage": 2,
        "cpu_offload": true, # old
        "overlap_comm": true
    },
    "betas": [0.9, 0.999]
}
"""


@pytest.mark.parametrize(
    ("edits", "old", "new"),
    [
        ([SetValue(("train_batch_size",), "auto")], '" : 8,', '" : "auto",'),
        ([SetValue(("betas", 1), 0.95)], "0.999", "0.95"),
        ([Remove(("train_batch_size",))], '    "train_batch_size" : 8, // of all GPUs\n', ""),
        ([Remove(("betas",))], '},\n    "betas": [0.9, 0.999]', "}"),
        (
            [
                SetValue(("zero_optimization", "cpu_offload"), {"device": "cpu"}),
                Move(("zero_optimization", "cpu_offload"), ("zero_optimization", "offload_optimizer")),
            ],
            '"cpu_offload": true,',
            '"offload_optimizer": {\n            "device": "cpu"\n        },',
        ),
        (
            [SetValue(("zero_optimization", "reduce_scatter"), True)],
            '"overlap_comm": true\n',
            '"overlap_comm": true,\n        "reduce_scatter": true\n',
        ),
        (
            [SetValue(("bf16", "enabled"), True)],
            "0.999]\n",
            '0.999],\n    "bf16": {\n        "enabled": true\n    }\n',
        ),
        (
            [Move(("zero_optimization", "overlap_comm"), ("overlap_comm",))],
            '# old\n        "overlap_comm": true\n    },\n    "betas": [0.9, 0.999]',
            '# old\n    },\n    "betas": [0.9, 0.999],\n    "overlap_comm": true',
        ),
    ],
)
def test_edits_by_example(edits: list[Edit], old: str, new: str) -> None:
    assert EXAMPLE.count(old) == 1
    expected = EXAMPLE.replace(old, new)
    if "old\n    }" in new:  # the comma before the entry that went
        expected = expected.replace('"cpu_offload": true,', '"cpu_offload": true')
    assert apply_edits(parse_json(EXAMPLE, lenient=True), edits).text == expected


def test_a_moved_section_takes_on_the_indentation_of_its_new_place() -> None:
    text = '{\n  "offload_param": {\n    "device": "cpu"\n  },\n  "zero_optimization": {\n    "stage": 3\n  }\n}'
    edited = apply_edits(parse_json(text), [Move(("offload_param",), ("zero_optimization", "offload_param"))])
    data = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    assert edited.text == json.dumps(data, indent=2)


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        (
            '{\n  "stage": 2, // two\n  "zero_optimization": {\n    "overlap_comm": true // yes\n  }\n}',
            '{\n  "zero_optimization": {\n    "overlap_comm": true, // yes\n    "stage": 2 // two\n  }\n}',
        ),
        (
            '{\n  "zero_optimization": {\n    "a": 1\n  },\n  // above\n  "stage": 2 /* two */\n}',
            '{\n  "zero_optimization": {\n    "a": 1,\n    "stage": 2 /* two */\n  }\n  // above\n}',
        ),
        (
            '{\n  "zero_optimization": {"a": 1},\n  "stage": 2 // two\n}',
            '{\n  "zero_optimization": {"a": 1, "stage": 2}\n  // two\n}',
        ),
        (
            '{\n "stage": 2 // two\n , "zero_optimization": {\n "a": 1}}',
            '{\n // two\n "zero_optimization": {\n "a": 1,\n "stage": 2}}',
        ),
    ],
)
def test_what_is_said_beside_an_entry_moves_with_it_or_stays(text: str, moved: str) -> None:
    edited = apply_edits(parse_json(text, lenient=True), [Move(("stage",), ("zero_optimization", "stage"))])
    assert edited.text == moved


def test_text_is_replaced_where_it_is_no_json() -> None:
    document = parse_json('{"a": 1,}', lenient=True)
    assert apply_edits(document, [ReplaceText(7, 8, "")]).text == '{"a": 1}'
    with pytest.raises(EditError, match="f:1:"):
        apply_edits(parse_json('{"a": 1}', "f"), [ReplaceText(0, 1, "")])


@pytest.mark.parametrize(
    "edit",
    [
        Remove(("absent",)),
        Remove(()),
        SetValue(("a", "b"), 1),
        SetValue(("list", 5), 1),
        SetValue(("list", "x"), 1),
        Move(("a",), ("b",)),
        Move(("a",), ("a", "b")),
        Move(("list", 0), ("c",)),
        Move(("absent",), ("c",)),
    ],
)
def test_edits_that_do_not_suit_are_refused(edit: Edit) -> None:
    with pytest.raises(EditError):
        apply_edits(parse_json('{"a": 1, "b": 2, "list": [1]}'), [edit])


def test_data_without_text_cannot_be_edited() -> None:
    with pytest.raises(EditError):
        apply_edits(Document({"a": 1}, "x"), [Remove(("a",))])
