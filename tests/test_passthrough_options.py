"""The reader of options that a library names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import ZerokitError
from zerokit.passthrough_options import PassthroughOption, parse_passthrough_options

NAMES = st.from_regex(r"[a-z][a-z_.-]{0,8}", fullmatch=True).map(lambda name: f"--{name}")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.lists(st.tuples(NAMES, TEXTS | st.none(), st.booleans())))
def test_what_is_written_is_read(options: list[tuple[str, str | None, bool]]) -> None:
    words: list[str] = []
    for option, text, with_equals in options:
        if text is None:
            words.append(option)
        elif with_equals or text.startswith("--"):
            words.append(f"{option}={text}")
        else:
            words += [option, text]
    assert list(parse_passthrough_options(words, hint=lambda _: "")) == [
        PassthroughOption(option, text) for option, text, _ in options
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-5", 1e-5), ("true", True), ("null", None), ("", None), ("[1, a]", [1, "a"]), ("'1'", "1"), ("x=y", "x=y")],
)
def test_values_are_yaml(text: str, value: Any) -> None:
    assert PassthroughOption("--x", text).value() == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["word"], "command line: 'word' belongs to no option. Write it"),
        (["--a", "1", "2=3"], "command line: '2=3' belongs to no option. Write it"),
        (["--"], "command line: '--' belongs to no option. Write it"),
        (["--a"], "--a: has no value. Write --a=VALUE"),
        (["--a", "--b"], "--a: has no value. Write --a=VALUE"),
        (["--a", "[1"], "--a: the value '[1' is not YAML"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        [given.value() for given in parse_passthrough_options(words, hint=lambda _: "Write it")]
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
