"""Going through words of C++, and the types that they name."""

from __future__ import annotations

from typing import Any, NoReturn

from zerokit.rehearsal.stand_ins.cuda_sources.declarations import closing_angle
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError

BUILT_IN = {
    *(
        "void",
        "auto",
        "bool",
        "char",
        "short",
        "int",
        "long",
        "float",
        "double",
        "unsigned",
        "signed",
        "uint",
    ),
    *("int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "size_t"),
    *("half", "__half", "__nv_bfloat16", "nv_bfloat16", "cudaStream_t", "cudaError_t", "scalar_t", "dim3"),
}
_WHOLE = {
    *("int", "long", "short", "size_t", "unsigned", "uint", "int8_t", "int16_t", "int32_t", "int64_t"),
    *("uint8_t", "uint16_t", "uint32_t", "uint64_t"),
}
_FRACTIONAL = {"float", "double"}
NUMBERS = _WHOLE | _FRACTIONAL | {"bool"}
"""Types that C++ turns numbers into."""
_WORDS = {"const", "constexpr", "static", "typename", "volatile", "unsigned", "signed", "long", "inline"}


class Words:
    """The words of one body, and the place that has been read up to.

    Args:
        words: the body, without its braces.
    """

    def __init__(self, words: list[Token]) -> None:
        last = words[-1] if words else Token("end", "", "", 0)
        self._words = [*words, Token("end", "the end of a function", last.file, last.line)]
        self._place = 0

    @property
    def _next(self) -> Token:
        return self._words[self._place]

    def _at(self, *texts: str) -> bool:
        return self._next.kind != "string" and self._next.text in texts

    def _take(self, *texts: str) -> Token:
        word = self._next
        if texts and not self._at(*texts):
            self._refuse()
        self._place += 1
        return word

    def _took(self, *texts: str) -> bool:
        if self._at(*texts):
            self._place += 1
            return True
        return False

    def _refuse(self) -> NoReturn:
        raise UnreadError(str(self._next))

    def _type(self) -> str | None:
        """The name of the type that begins here, after it; None, and nothing read, if none does."""
        begin, said = self._place, ""
        while self._next.kind == "name":
            word = self._take().text
            if word in _WORDS:
                said = said or (word if word in _WHOLE else "")
                continue
            if said and said not in ("unsigned", "long"):
                self._place -= 1
                break
            said = word
            while self._at("::"):
                self._take()
                said += "::" + self._take().text
            if self._at("<"):
                try:
                    self._place = closing_angle(self._words, self._place) + 1
                except UnreadError:
                    self._place = begin
                    return None
                said += "<>"
        if not said:
            self._place = begin
            return None
        while self._at("*", "&", "&&", "const", "__restrict__"):
            said += self._take().text
        return said


def of_type(value: Any, kind: str) -> Any:
    """`value` as a variable of that type holds it."""
    name = kind.split("::")[-1]
    if isinstance(value, bool | int | float):
        if name in _WHOLE:
            return int(value)
        if name in _FRACTIONAL:
            return float(value)
        if name == "bool":
            return bool(value)
    return value
