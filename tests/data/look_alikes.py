"""Texts that look like dates, numbers, missing values and the like, and any others."""

from __future__ import annotations

from hypothesis import strategies as st

_WORDS = (
    *("NA", "N/A", "nan", "NaN", "null", "NULL", "None", "none", "<NA>", "#N/A", "", " ", "-", "\0"),
    *("True", "false", "TRUE", "yes", "01", "1", "001", "1.0", "1e5", "-0", "0x1F", "1_000", "1,5", "+1"),
    *("2021-05-01", "2021-05-01T10:00:00", "2021-05-01 10:00:00Z", "10:00", "05/01/2021", "1e999", "inf"),
    *("9007199254740993", "123456789012345678901234567890", '"', '""', "'", "a,b", "a\tb", "\\", "\\u0041"),
    *("{}", "[]", '{"a": 1}', "a\u2028b", "\x85", "\x1c", "e\u0301", "\U0001f600", " padded ", "=1+1"),
    *("\ufeff", "a;b", "a\r\nb", "\r"),
)

text = st.one_of(
    st.sampled_from(_WORDS),
    st.text(max_size=20),
    st.dates().map(str),
    st.datetimes().map(str),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.integers().map(str),
    st.floats().map(str),
)
