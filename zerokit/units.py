"""Reads and prints bytes, counts and durations.

1 GiB is 2**30 bytes. 1 GB is 10**9 bytes, which is read but never printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from zerokit.errors import ZerokitError

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_SECONDS = {
    name: seconds
    for names, seconds in (
        ("ms msec msecs millisecond milliseconds", 0.001),
        ("s sec secs second seconds", 1.0),
        ("m min mins minute minutes", 60.0),
        ("h hr hrs hour hours", 3600.0),
        ("d day days", 86400.0),
    )
    for name in names.split()
}
LARGEST_NUMBER = 2**63 - 1
"""Largest number of an option: larger ones are mistakes, and overflow floats and 64-bit integers."""
# Patterns that few commands need are compiled where they are used.
_SECONDS_ALONE = r"\s*(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})\s*"
_PART_OF_DURATION = rf"{_SECONDS_ALONE}({'|'.join(sorted(_SECONDS, key=len, reverse=True))})(?![a-z])\s*"
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_QUANTITY = re.compile(
    r"\s*(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,5})?|\.[0-9]+)"
    r"\s*(?P<unit>[A-Za-z]*)\s*"
)
"""A comma separates thousands, so "2,5" is no number."""
_LIKE_A_COUNT = re.compile(r"\s*[+-]?(?:\.?\d[\d.,_]*(?:e[+-]?\d+)?[a-z\s]*|(?:nan|inf|infinity)\s*)", re.IGNORECASE)
"""Matches no name of a model: a name that begins with a digit, such as 3b-model, has a hyphen or a slash."""


def parse_bytes(text: str) -> int:
    """Read a size in bytes: ``"80GiB"``, ``"23.65GiB"``, ``"1024"``; a part of a byte is rounded.

    Raises:
        ZerokitError: not a size, or a part of a byte without a larger unit.
    """
    return _parse(text, _BYTE_UNITS, kind="size in bytes", example="80GiB", rounded=True)


def parse_count(text: str) -> int:
    """Read a count: ``"7.5B"``, ``"5e8"``, ``"1k"``, ``"4096"``.

    Raises:
        ZerokitError: not a count, or not a whole number.
    """
    return _parse(text, _COUNT_UNITS, kind="count", example="7.5B")


def is_like_count(text: str) -> bool:
    """Whether a text is a count, or was meant as a count: ``"7.5B"``, ``"7bn"``, ``"-7B"``, ``"0.5"``, ``"nan"``."""
    return _LIKE_A_COUNT.fullmatch(text) is not None


def interpret_number(text: str, *, of_tokens: bool = False) -> int | None:
    """The whole number that ``"4k"`` or ``"4,096"`` means; None for other text.

    For tokens, k is 1024 and M 1024².
    """
    text = text.strip()
    try:
        if of_tokens and text.lower().endswith(("k", "m")):
            return _parse(f"{text}iB", _BYTE_UNITS, kind="count", example="4k")
        return parse_count(text)
    except ZerokitError:
        return None


def format_bytes(num_bytes: int | float) -> str:
    """Print a size in binary units with three to four significant digits: ``"14.90 GiB"``."""
    magnitude = abs(num_bytes)
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # 0.9995 keeps 1023.9 MiB from printing as "1023.90 MiB" one step below "1.00 GiB".
        if magnitude >= size * 0.9995:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def format_span(low_bytes: int, high_bytes: int) -> str:
    """Print an interval of sizes: ``"53.06 to 61.19 GiB"``, ``"900.00 GiB to 1.76 TiB"``, ``"1.76 TiB"``."""
    low, high = format_bytes(low_bytes), format_bytes(high_bytes)
    if low == high:
        return low
    number, unit = low.split()
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def format_count(count: int | float) -> str:
    """Print a count in short scale with three significant digits: ``"7.50B"``, ``"4.72M"``."""
    magnitude = abs(count)
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if magnitude >= size * 0.9995:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def parse_seconds(text: str) -> float:
    """Read a duration in seconds: ``"60s"``, ``"90"``, ``"5 min"``, ``"1.5h"``, ``"500ms"``, ``"1h30m"``.

    Raises:
        ZerokitError: not a duration.
    """
    if re.fullmatch(_SECONDS_ALONE, text):
        return float(text)
    if not re.fullmatch(f"(?:{_PART_OF_DURATION})+", text, re.IGNORECASE):
        raise ZerokitError(f"{text!r} is not a duration", hint="Write it like 60s, 5min, or 1h30m")
    parts = re.findall(_PART_OF_DURATION, text, re.IGNORECASE)
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)


def parse_network(text: str) -> float:
    """Read the network of one node in Gbit/s: ``"400Gbit"``, ``"3.2Tbit"``, ``"400"``.

    Raises:
        ZerokitError: not a speed.
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?(?:e[0-6])?)\s*(?:([gt])(?:bit(?:/s)?|bps))?\s*", text.lower())
    if match is None or float(match[1]) == 0:
        hint = "Write the bits per second of one node, as in 400Gbit or 3.2Tbit"
        raise ZerokitError(f"'{text}' is no network speed", hint=hint)
    return float(match[1]) * (1000 if match[2] == "t" else 1)


def is_time_unit(word: str) -> bool:
    """Whether a word is a unit of :func:`parse_seconds`."""
    return word.lower() in _SECONDS


def format_seconds(seconds: float) -> str:
    """Print a duration: ``"12.3 s"``, ``"4 min 05 s"``, ``"2 h 10 min"``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_rate(per_second: float) -> str:
    """``"1,234 tokens/s"``, with a decimal below ten."""
    return f"{per_second:,.{int(per_second < 10)}f} tokens/s"


def quantity(number: int, noun: str) -> str:
    """``"1 rank"``, ``"2 ranks"``, ``"1,024 ranks"``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(words: Sequence[str]) -> str:
    """``"a"``, ``"a and b"``, ``"a, b and c"``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _parse(text: str, units: dict[str, int], *, kind: str, example: str, rounded: bool = False) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match["unit"].lower() not in units:
        raise ZerokitError(f"'{text}' is not a {kind}", hint=f"Write it like {example}")
    number = match["number"].replace("_", "").replace(",", "")
    scale = units[match["unit"].lower()]
    # Decimal, because 2.01 * 1000 is not 2010 in binary floating point.
    value = Decimal(number) * scale
    if value > LARGEST_NUMBER:
        raise ZerokitError(f"'{text}' is too large", hint=f"Write it like {example}")
    if rounded and scale > 1:
        value = value.quantize(Decimal(1))
    if value != value.to_integral_value():
        raise ZerokitError(f"'{text}' is not a whole {kind}", hint=f"Write it like {example}")
    return int(value)
