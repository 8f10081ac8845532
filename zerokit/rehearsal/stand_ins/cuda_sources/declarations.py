"""What C++ sources declare: functions, kernels, constants, and what they show to Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError, arguments_at

_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "restrict", "typename", "register"}
_LIBRARIES = ("TORCH_LIBRARY", "TORCH_LIBRARY_FRAGMENT", "TORCH_LIBRARY_IMPL", "PYBIND11_MODULE")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


class Parameter(NamedTuple):
    """Of a function or a kernel."""

    name: str
    type: str
    """Its words, without spaces, `const` and such."""
    is_reference: bool
    """To what the caller has, which may be changed."""
    is_read: bool
    """A pointer to const, through which nothing is written."""
    default: list[Token]


class Origin(NamedTuple):
    """Where code stands, by which it sees names."""

    space: str = ""
    """The namespaces around it, as `a::b`; those without a name are left out."""
    file: str = ""


class Function(NamedTuple):
    """Its body is read when it is called."""

    name: str
    result: str
    parameters: list[Parameter]
    templates: list[tuple[str, bool]]
    """Its template parameters, and whether each is a value."""
    body: list[Token]
    origin: Origin


class Bindings(NamedTuple):
    """A block that shows functions to Python: TORCH_LIBRARY and its like, and PYBIND11_MODULE."""

    macro: str
    arguments: list[str]
    body: list[Token]
    origin: Origin


@dataclass
class Sources:
    """All that is declared."""

    functions: dict[str, list[Function]] = field(default_factory=dict)
    kernels: dict[str, list[Parameter]] = field(default_factory=dict)
    constants: dict[str, list[Token]] = field(default_factory=dict)
    """Their values, unread."""
    types: set[str] = field(default_factory=set)
    """Names that the sources give types."""
    bindings: list[Bindings] = field(default_factory=list)
    _around: list[str] = field(default_factory=list)
    """The namespaces that are open; "" for one without a name."""

    def add(self, words: list[Token]) -> None:
        """Read the declarations of a file."""
        place = 0
        self._around.clear()
        while place < len(words):
            place = self._one(words, place)

    def function(self, name: str, seen_from: Origin, given: int | None = None) -> Function | None:
        """The function that `name` means there; None if there is none that takes so many arguments.

        Raises:
            UnreadError: more than one may be meant: what sets them apart is not followed.
        """
        found = [
            one
            for one in self.functions.get(name.rpartition("::")[2], ())
            if f"::{_full(one)}".endswith(f"::{name.removeprefix('::')}")
            and (given is None or _needed(one) <= given <= len(one.parameters))
        ]
        spaces = seen_from.space.split("::") if seen_from.space and not name.startswith("::") else []
        for count in range(len(spaces), -1, -1):
            full = "::".join([*spaces[:count], name.removeprefix("::")])
            nearest = [one for one in found if _full(one) == full]
            if nearest:
                found = nearest
                break
        found = [one for one in found if one.origin.file == seen_from.file] or found
        if len({tuple(word.text for word in one.body) for one in found}) > 1:
            raise UnreadError(f"more than one function {name} that takes as many arguments")
        return found[0] if found else None

    def _origin(self, word: Token) -> Origin:
        return Origin("::".join(filter(None, self._around)), word.file)

    def _one(self, words: list[Token], place: int) -> int:
        word = words[place]
        if word.text in (";", "}"):
            if word.text == "}" and self._around:
                self._around.pop()
            return place + 1
        if word.text == "namespace" or (word.text == "extern" and words[place + 1].kind == "string"):
            begin = place
            while words[place].text not in "{;=":
                place += 1
            if words[place].text != "{":
                return _after(words, place, ";")
            said = [one.text for one in words[begin + 1 : place] if one.kind != "string"]
            self._around.append("".join(one for one in said if one != "inline"))
            return place + 1
        if word.text in _LIBRARIES:
            arguments, place = arguments_at(words, place + 1)
            end = closing(words, place)
            said = ["".join(one.text for one in part) for part in arguments]
            self.bindings.append(Bindings(word.text, said, words[place + 1 : end], self._origin(word)))
            return end + 1
        templates: list[tuple[str, bool]] = []
        if word.text == "template":
            templates, place = self._templates(words, place + 1)
        return self._declared(words, place, templates)

    def _templates(self, words: list[Token], place: int) -> tuple[list[tuple[str, bool]], int]:
        if words[place].text != "<":
            return [], place
        end = closing_angle(words, place)
        found = []
        for part in split(words[place + 1 : end]):
            named = [one for one in split(part, "=")[0] if one.kind == "name"]
            if named:
                found.append((named[-1].text, named[0].text not in ("typename", "class")))
                if not found[-1][1]:
                    self.types.add(named[-1].text)
        return found, end + 1

    def _declared(self, words: list[Token], place: int, templates: list[tuple[str, bool]]) -> int:
        """A function, a type or a variable: its head goes up to the first of these signs."""
        begin = place
        while place < len(words) and words[place].text not in (";", "{", "="):
            place = closing(words, place) + 1 if words[place].text in ("(", "[") else place + 1
        if place >= len(words):
            return place
        head = words[begin:place]
        first = head[0].text if head else ""
        if first in ("using", "typedef"):
            end = _after(words, begin, ";")
            said = words[begin : end - 1]
            self.types.add(said[1].text if first == "using" else said[-1].text)
            return end
        if words[place].text == "{":
            end = closing(words, place)
            if first in ("struct", "class", "enum", "union"):
                self.types |= {one.text for one in head[1:2] if one.kind == "name"}
                return _after(words, end, ";")
            self._function(head, words[place + 1 : end], templates)
            return end + 1
        if words[place].text == "=":
            end = _after(words, place, ";")
            if "(" not in {one.text for one in head} and head[-1].kind == "name":
                self.constants[head[-1].text] = words[place + 1 : end - 1]
            return end
        return place + 1

    def _function(self, head: list[Token], body: list[Token], templates: list[tuple[str, bool]]) -> None:
        # The parameters are what stands in the last parentheses of the head.
        opens = [
            place for place, one in enumerate(head) if one.text == "(" and _depth(head[:place]) == 0 and place
        ]
        opens = [place for place in opens if head[place - 1].text not in ("__launch_bounds__", "noexcept")]
        if not opens or head[opens[-1] - 1].kind != "name":
            return
        name = head[opens[-1] - 1].text
        given, _ = arguments_at(head, opens[-1])
        parameters = [_parameter(part) for part in _joined(given) if part and part[0].text != "void"]
        begin = opens[-1] - 1
        while begin > 1 and head[begin - 1].text == "::" and head[begin - 2].kind == "name":
            begin -= 2
        before = [one.text for one in head[:begin]]
        if "__global__" in before:
            self.kernels[name] = parameters
            return
        if "__device__" in before and "__host__" not in before:
            return
        passed = {"inline", "static", "constexpr", "__host__", "__device__", "__forceinline__", "extern"}
        result = "".join(one for one in before if one not in passed | _QUALIFIERS)
        around = [*self._around, *(one.text for one in head[begin : opens[-1] - 1] if one.kind == "name")]
        origin = Origin("::".join(filter(None, around)), head[0].file)
        self.functions.setdefault(name, []).append(
            Function(name, result, parameters, templates, body, origin)
        )


def _full(function: Function) -> str:
    """The name of a function with its namespaces."""
    return "::".join(filter(None, (function.origin.space, function.name)))


def _needed(function: Function) -> int:
    return sum(not parameter.default for parameter in function.parameters)


def _parameter(words: list[Token]) -> Parameter:
    words, *default = split(words, "=")
    is_read = words[0].text == "const" or (len(words) > 1 and words[1].text == "const")
    said = [one for one in words if one.text not in _QUALIFIERS]
    has_name = len(said) > 1 and said[-1].kind == "name" and said[-2].text != "::"
    name = said[-1].text if has_name else ""
    kinds = "".join(one.text for one in (said[:-1] if has_name else said))
    pointer, bare = kinds.endswith("*"), kinds.rstrip("*&")
    return Parameter(
        name,
        bare,
        is_reference=kinds.endswith("&") and not is_read,
        is_read=is_read and pointer,
        default=default[0] if default else [],
    )


def _joined(parts: list[list[Token]]) -> list[list[Token]]:
    """Parameters whose types' angle brackets have commas in them, put together again."""
    joined: list[list[Token]] = []
    for part in parts:
        if joined and sum((one.text == "<") - (one.text == ">") for one in joined[-1]) > 0:
            joined[-1] = [*joined[-1], part[0]._replace(kind="sign", text=","), *part]
        else:
            joined.append(part)
    return joined


def _depth(words: list[Token]) -> int:
    return sum((one.text in "([{") - (one.text in ")]}") for one in words if one.kind == "sign")


def _after(words: list[Token], place: int, sign: str) -> int:
    """The place after the next `sign` that stands in no brackets."""
    while place < len(words) and words[place].text != sign:
        place = closing(words, place) + 1 if words[place].text in _BRACKETS else place + 1
    return place + 1


def closing(words: list[Token], place: int) -> int:
    """Where the bracket that opens at `place` is closed."""
    depth = 0
    for at in range(place, len(words)):
        if words[at].kind == "sign":
            depth += (words[at].text in "([{") - (words[at].text in ")]}")
            if depth == 0:
                return at
    raise UnreadError(f"a bracket that does not close {words[place]}")


def closing_angle(words: list[Token], place: int) -> int:
    """Where the angle bracket that opens at `place` is closed."""
    depth = 0
    while place < len(words):
        text = words[place].text
        if text in _BRACKETS:
            place = closing(words, place)
        elif text in ("<", ">"):
            depth += 1 if text == "<" else -1
            if depth == 0:
                return place
        elif text in (";", "<<<", "&&", "||", "?"):
            break
        place += 1
    raise UnreadError("an angle bracket that does not close")


def split(words: list[Token], sign: str = ",") -> list[list[Token]]:
    """`words` by the `sign`s that stand in no brackets, angle brackets included."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for one in words:
        if one.kind == "sign":
            depth += (one.text in "([{<") - (one.text in ")]}>")
        if one.text == sign and depth == 0:
            parts.append([])
        else:
            parts[-1].append(one)
    return parts if words else []
