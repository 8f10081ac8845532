import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.errors import ZerokitError
from zerokit.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_bytes,
    format_count,
    format_seconds,
    interpret_number,
    parse_bytes,
    parse_count,
    parse_network,
    parse_seconds,
)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_plain_numbers_are_read_exactly(number: int) -> None:
    assert parse_bytes(str(number)) == number
    assert parse_count(f"{number:,}") == number


@given(st.integers(min_value=0, max_value=2**60))
def test_printed_bytes_are_read_back_to_the_digits_shown(num_bytes: int) -> None:
    printed = format_bytes(num_bytes)
    number, unit = printed.split()
    size = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}[unit]
    assert abs(float(number) * size - num_bytes) <= size * 0.005 + 1e-6 * num_bytes


@given(st.integers(min_value=1, max_value=10**15))
def test_printed_counts_are_read_back_within_three_digits(count: int) -> None:
    assert parse_count(format_count(count)) == pytest.approx(count, rel=0.0051)


@given(st.integers(1, 10**6), st.sampled_from(["KiB", "MiB", "GiB", "kb", " MB", "gb", "B", "TiB"]))
def test_units_scale_and_ignore_case(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == number * parse_bytes(f"1{unit}")
    assert parse_bytes(f"{number}{unit.lower()}") == parse_bytes(f"{number}{unit.upper()}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GiB", 80 * GIB),
        ("1.5 MB", 1_500_000),
        ("1024", 1024),
        ("0.5KiB", 512),
        (".5 kb", 500),
        ("23.65GiB", 25_393_994_138),
        ("24576MiB", 24 * GIB),
        ("0.3KiB", 307),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("7.5B", 7_500_000_000), ("5e8", 500_000_000), ("1k", 1000), ("1_000", 1000)]
)
def test_counts(text: str, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["2,5", "0,1", "1,5k", "1,00,000", "1234,567", "1,000,", ",5"])
def test_commas_stand_between_thousands_alone(text: str) -> None:
    for parse in (parse_count, parse_bytes):
        with pytest.raises(ZerokitError):
            parse(text)
    assert interpret_number(text) is None
    assert interpret_number(text, of_tokens=True) is None


@pytest.mark.parametrize(
    ("text", "number", "tokens"),
    [("4k", 4000, 4096), ("1.5 K", 1500, 1536), ("4,096", 4096, 4096), ("1,024k", 1_024_000, 1024**2),
     ("1M", 10**6, 1024**2), ("1.3k", 1300, None), ("a", None, None), ("k", None, None)],
)  # fmt: skip
def test_what_a_person_means_by_a_number(text: str, number: int | None, tokens: int | None) -> None:
    assert interpret_number(text) == number
    assert interpret_number(text, of_tokens=True) == tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60s", 60), ("90", 90), ("5 min", 300), ("1.5H", 5400), ("500ms", 0.5), ("1h30m", 5400), ("0", 0),
     (" 1 h 30 min ", 5400), (" 1.5 ", 1.5), (".5s", 0.5)],
)  # fmt: skip
def test_durations_are_read(text: str, expected: float) -> None:
    assert parse_seconds(text) == expected


MISREAD = ["1,000", "1,5s", "1h, 30m", "1.5.5", "5 6", "1h30", "5 1h", "1 h 30 m 5"]
"""Of which a part is a duration."""


@pytest.mark.parametrize("text", ["", "min", "-3s", "60 bananas", "5 mm", "1e3", "inf", *MISREAD])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ZerokitError, match="Write it like 60s"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1.5", "80 GiBs", "1e400", "0x10", "1 2"])
def test_what_is_no_size_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        parse_bytes(text)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@given(st.text(max_size=12))
def test_reading_any_text_gives_a_size_or_a_clear_error(text: str) -> None:
    refusal = ""
    try:
        assert parse_bytes(text) >= 0
    except ZerokitError as error:
        refusal = str(error)
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("seconds", "expected"), [(12.34, "12.3 s"), (245, "4 min 05 s"), (7800, "2 h 10 min"), (3600, "1 h 00 min")]
)
def test_durations(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected


@pytest.mark.parametrize(("text", "gbit"), [("400Gbit", 400), ("3.2Tbit", 3200), ("100 gbps", 100), ("25", 25)])
def test_networks_are_read(text: str, gbit: float) -> None:
    assert parse_network(text) == gbit


@pytest.mark.parametrize("text", ["", "fast", "0Gbit", "-1", "400GB", "1e9Gbit"])
def test_a_network_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(ZerokitError, match="is no network speed"):
        parse_network(text)
