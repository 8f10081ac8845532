from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit import console
from zerokit.reporting.tables import aligned, table
from zerokit.reporting.terminal import BAD, GOOD, show, show_lines

STYLE = re.compile(r"\x1b\[[\d;]*m")
Printed = Callable[[], list[str]]

ROWS = st.lists(st.tuples(*[st.text(st.characters(codec="ascii", exclude_categories=["Cc"]))] * 4))


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Printed]:
    """The lines printed on a terminal of 80 columns, without their styles."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    console.stdout.cache_clear()
    yield lambda: [line.rstrip() for line in STYLE.sub("", capsys.readouterr().out).splitlines()]
    console.stdout.cache_clear()


@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_a_table_is_never_wider_than_the_terminal(printed: Printed, rows: list[tuple[str, ...]]) -> None:
    show([table("Memory", ["", "Bytes", "Phase", "How sure"], rows)])
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in printed())


@pytest.mark.parametrize(
    ("length", "row"),
    [
        (40, f"  parameters   14.96 GiB   {'x' * 40}   modelled"),
        (43, f"  parameters  14.96 GiB  {'x' * 43}  modelled"),
        (46, f"  parameters 14.96 GiB {'x' * 46} modelled"),
        (47, f"      Where: {'x' * 47}"),
        (90, f"          {'x' * 90}"),
    ],
)
def test_a_table_that_is_too_wide_is_set_closer_then_written_row_by_row(
    length: int, row: str, printed: Printed
) -> None:
    cells = ("parameters", "14.96 GiB", "x" * length, "modelled")
    show([table("Terms", ["", "Bytes", "Where", "How sure"], [cells])])
    assert row in printed()


def test_long_words_of_the_first_or_the_last_column_stand_on_lines_of_their_own(printed: Printed) -> None:
    name = f"{'A' * 40}.{'b' * 30} (stage3.py:1234)"
    rows = [(name, "2.00 GiB", "43.2%"), ("Mlp.forward (llama.py:12)", "1.00 GiB", "21.2%")]
    show([table("", ["Line", "Bytes", "Share"], rows)])
    line, _, *lines, _ = printed()[1:]
    assert line.split() == ["Line", "Bytes", "Share"]
    at = line.index("Bytes")
    assert lines == [
        f"  {'A' * 40}.{'b' * 30}",
        "      (stage3.py:1234)",
        f"{' ' * at}2.00 GiB  43.2%",
        f"  {'Mlp.forward (llama.py:12)':{at - 2}}1.00 GiB  21.2%",
    ]
    show([table("", ["Bytes", "Category", "What"], [(size, "buffers", what) for what, size, _ in rows])])
    assert [line.strip() for line in printed()[3:-1]] == [
        "2.00 GiB  buffers",
        f"{'A' * 40}.{'b' * 30}",
        "(stage3.py:1234)",
        "1.00 GiB  buffers   Mlp.forward (llama.py:12)",
    ]


def test_cells_are_folded_between_words_and_sizes_keep_their_unit(printed: Printed) -> None:
    cells = ("parameters", "57.29 to 65.93 GiB", "a word " * 9)
    show([table("", ["", "Bytes of a GPU", "Where"], [cells])])
    assert printed()[1:] == [
        "              Bytes of a GPU      Where",
        f" {'─' * 78}",
        "  parameters  57.29 to 65.93 GiB  a word a word a word a word a word a word a",
        "                                  word a word a word",
        "",
    ]


def test_a_table_without_rows_is_not_printed(printed: Printed) -> None:
    show([table("Peak by phase", ["Phase", "GPU, allocated"], [])])
    assert printed() == []


def test_a_number_in_a_table_is_a_size_in_bytes(printed: Printed) -> None:
    show([table("", ["", "Bytes", "Calls"], [("all_gather", 3 * 2**30, "3"), ("none", 0, "0")])])
    assert printed()[-3:-1] == ["  all_gather   3.00 GiB   3", "  none         0 B        0"]


def test_where_stdout_is_no_terminal_nothing_is_folded_and_nothing_is_markup(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR")
    line = "[bold]a/b.json[/bold]: " + "word " * 30 + "end"
    show([line, table("", ["Term", "Formula"], [("logits", line)])])
    first, *_, row, _ = printed()
    assert first == line
    assert row == f"  logits   {line}"


def test_aligned_rows_are_one_line_each_and_long_cells_push_only_their_own() -> None:
    rows = [("key", "value", "from"), ("a" * 70, "1", "x"), ("stage", "3", "file, line 12")]
    assert list(aligned(rows)) == ["key    value  from", f"{'a' * 70}  1      x", "stage  3      file, line 12"]
    assert list(aligned([])) == []


def test_styled_lines_are_plain_where_stdout_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [("ds.json: ", "bold"), ("error", BAD), (": wrong", "")]
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    console.stdout.cache_clear()
    show_lines([line, [("no problems", GOOD)]])
    assert capsys.readouterr().out == "ds.json: error: wrong\nno problems\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console.stdout.cache_clear()
    show_lines([line])
    assert capsys.readouterr().out == "\x1b[1mds.json: \x1b[0m\x1b[1;31merror\x1b[0m: wrong\n"
    console.stdout.cache_clear()
