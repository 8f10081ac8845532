"""Going through words of C++, and the types that they name."""

from __future__ import annotations

from typing import NoReturn

from zerokit.rehearsal.stand_ins.cuda_sources.arithmetic import SPECIFIERS, kind_named
from zerokit.rehearsal.stand_ins.cuda_sources.brackets import closing_angle
from zerokit.rehearsal.stand_ins.cuda_sources.conversions import bare
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError

_BUILT_IN = {
    *("void", "auto", "half", "__half", "__nv_bfloat16", "nv_bfloat16", "cudaStream_t", "cudaError_t"),
    *("scalar_t", "dim3"),
}
QUALIFIERS = {"const", "constexpr", "static", "typename", "volatile", "inline", "register"}


def is_built_in(kind: str) -> bool:
    """Whether a type is one of C++ and CUDA."""
    said = bare(kind)
    return kind_named(said) is not None or said in _BUILT_IN


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
        return self._next.kind not in ("string", "character") and self._next.text in texts

    def _take(self, *texts: str) -> Token:
        word = self._next
        if word.kind == "end" or (texts and not self._at(*texts)):
            self._refuse()
        self._place += 1
        return word

    def _took(self, *texts: str) -> bool:
        if self._at(*texts):
            self._place += 1
            return True
        return False

    def _refuse(self) -> NoReturn:
        raise UnreadError(f"'{self._next.text}'", self._next)

    def _type(self) -> str | None:
        """The type that begins here, without blanks and qualifiers, after it; None, and nothing read, if none
        does.
        """
        begin, said, is_specified = self._place, "", False
        while self._next.kind == "name":
            if self._took(*QUALIFIERS):
                continue
            if self._at(*SPECIFIERS) or (is_specified and self._at("double")):
                if said and not is_specified:
                    break
                said += self._take().text
                is_specified = True
                continue
            if said:
                break
            said = self._qualified()
            if not said:
                self._place = begin
                return None
        if not said:
            self._place = begin
            return None
        while self._at("*", "&", "&&", "const", "__restrict__"):
            sign = self._take().text
            said += sign if sign[0] in "*&" else ""
        return said

    def _qualified(self) -> str:
        """A name with its namespaces and templates; "" if its angle bracket does not close."""
        said = self._take().text
        while self._at("::", "<"):
            if self._took("::"):
                said += "::" + self._take().text
                continue
            try:
                end = closing_angle(self._words, self._place)
            except UnreadError:
                return ""
            said += "".join(
                one.text for one in self._words[self._place : end + 1] if one.text not in QUALIFIERS
            )
            self._place = end + 1
        return said
