"""What C++ sources declare: functions, kernels, constants, and what they show to Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zerokit.rehearsal.stand_ins.cuda_sources.brackets import after, closing, closing_angle, depth_of, split
from zerokit.rehearsal.stand_ins.cuda_sources.tokens import Token, UnreadError, arguments_at

_QUALIFIERS = {"const", "volatile", "__restrict__", "__restrict", "restrict", "typename", "register"}
_SHOWING = ("TORCH_LIBRARY", "STABLE_TORCH_LIBRARY", "PYBIND11_")
"""What names of macros begin with that show something to Python."""
_LIBRARIES = ("TORCH_LIBRARY", "TORCH_LIBRARY_FRAGMENT", "TORCH_LIBRARY_IMPL", "PYBIND11_MODULE")
_PASSED = {"inline", "static", "constexpr", "__host__", "__device__", "__forceinline__", "extern", "friend"}
_NO_NAMES = ("__launch_bounds__", "noexcept", "__attribute__", "__align__", "alignas", "decltype")
"""What parentheses follow that are not a function's."""
_NO_CONSTANTS = {"(", "[", "*", "__device__", "__constant__", "__shared__"}


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
    source: int = -1
    """Which of the sources that are compiled, with what it includes."""


class Function(NamedTuple):
    """Its body is read when it is called."""

    name: str
    result: str
    parameters: list[Parameter]
    templates: list[tuple[str, str | None]]
    """Its template parameters, and the types of those that are values."""
    body: list[Token]
    origin: Origin


class Constant(NamedTuple):
    """A variable outside functions, which nothing is assigned to."""

    name: str
    type: str
    body: list[Token]
    """Its value, unread."""
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
    kernels: dict[str, list[list[Parameter]]] = field(default_factory=dict)
    constants: dict[str, list[Constant]] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)
    """Names that the sources give types."""
    aliases: dict[str, str | None] = field(default_factory=dict)
    """What other types they are; None for one that is more than one."""
    bindings: list[Bindings] = field(default_factory=list)
    _around: list[str] = field(default_factory=list)
    """The namespaces that are open; "" for one without a name."""
    _count: int = 0

    def add(self, words: list[Token]) -> None:
        """Read the declarations of a source and of what it includes."""
        place = 0
        self._count += 1
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
            if given is None or _needed(one) <= given <= len(one.parameters)
        ]
        meant = _meant(found, name, seen_from)
        if len({_words(one) for one in meant}) > 1:
            raise UnreadError(f"more than one function {name} that takes as many arguments")
        return meant[0] if meant else None

    def constant(self, name: str, seen_from: Origin) -> Constant | None:
        """The constant that `name` means there; None if there is none.

        Raises:
            UnreadError: more than one may be meant.
        """
        meant = _meant(self.constants.get(name.rpartition("::")[2], []), name, seen_from)
        if len({(one.type, _words(one)) for one in meant}) > 1:
            raise UnreadError(f"more than one constant {name}")
        return meant[0] if meant else None

    def _origin(self, *inner: str) -> Origin:
        return Origin("::".join(filter(None, (*self._around, *inner))), self._count)

    def _one(self, words: list[Token], place: int) -> int:
        word = words[place]
        if word.text in (";", "}"):
            if word.text == "}" and self._around:
                self._around.pop()
            return place + 1
        opened = [one.text for one in words[place + 2 : place + 3]]
        if word.text == "namespace" or (
            word.text == "extern" and words[place + 1].kind == "string" and opened == ["{"]
        ):
            begin = place
            while words[place].text not in "{;=":
                place += 1
            if words[place].text != "{":
                return after(words, place, ";")
            said = [one.text for one in words[begin + 1 : place] if one.kind != "string"]
            self._around.append("".join(one for one in said if one != "inline"))
            return place + 1
        if word.text in _LIBRARIES:
            arguments, place = arguments_at(words, place + 1)
            end = closing(words, place)
            said = ["".join(one.text for one in part) for part in arguments]
            self.bindings.append(Bindings(word.text, said, words[place + 1 : end], self._origin()))
            return end + 1
        if word.text.startswith(_SHOWING):
            raise UnreadError(f"the macro {word.text}", word)
        templates: list[tuple[str, str | None]] = []
        if word.text == "template":
            templates, place = self._templates(words, place + 1)
        return self._declared(words, place, templates)

    def _templates(self, words: list[Token], place: int) -> tuple[list[tuple[str, str | None]], int]:
        if words[place].text != "<":
            return [], place
        end = closing_angle(words, place)
        found: list[tuple[str, str | None]] = []
        for part in split(words[place + 1 : end]):
            named = [one for one in split(part, "=")[0] if one.kind == "name"]
            if named and named[0].text in ("typename", "class"):
                found.append((named[-1].text, None))
                self.types.add(named[-1].text)
            elif named:
                found.append((named[-1].text, _spelled(named[:-1])))
        return found, end + 1

    def _declared(self, words: list[Token], place: int, templates: list[tuple[str, str | None]]) -> int:
        """A function, a type or a variable: its head goes up to the first of these signs."""
        begin = place
        while place < len(words) and words[place].text not in (";", "{", "="):
            place = closing(words, place) + 1 if words[place].text in ("(", "[") else place + 1
        if place >= len(words):
            return place
        head = words[begin:place]
        first = head[0].text if head else ""
        if first in ("using", "typedef"):
            end = after(words, begin, ";")
            self._alias(words[begin : end - 1], is_template=bool(templates))
            return end
        if words[place].text == "{":
            end = closing(words, place)
            if first in ("struct", "class", "enum", "union") and head[-1].text != ")":
                self._named_type(head, words[place + 1 : end])
                return after(words, end, ";")
            self._function(head, words[place + 1 : end], templates)
            return end + 1
        if words[place].text == "=":
            end = after(words, place, ";")
            if not {one.text for one in head} & _NO_CONSTANTS and not templates and len(head) > 1:
                kind = _spelled(head[:-1])
                for part in split([head[-1], *words[place : end - 1]]):
                    if len(part) > 2 and part[0].kind == "name" and part[1].text == "=" and kind[-1:] != ":":
                        self._constant(part[0].text, kind, part[2:], self._origin())
            return end
        return place + 1

    def _constant(self, name: str, kind: str, body: list[Token], origin: Origin) -> None:
        self.constants.setdefault(name, []).append(Constant(name, kind, body, origin))

    def _alias(self, said: list[Token], is_template: bool) -> None:
        """``using name = type`` or ``typedef type name``."""
        if said[0].text == "using" and (len(said) < 3 or said[2].text != "="):
            return
        name, kind = (said[1], said[3:]) if said[0].text == "using" else (said[-1], said[1:-1])
        if name.kind == "name":
            self._name_type(name.text, None if is_template else _spelled(kind))

    def _name_type(self, name: str, kind: str | None) -> None:
        self.types.add(name)
        self.aliases[name] = kind if self.aliases.get(name, kind) == kind else None

    def _named_type(self, head: list[Token], body: list[Token]) -> None:
        """A structure, of which the name is kept; of an enumeration its values, too."""
        said = [one.text for one in head if one.text not in ("class", "struct", "union", "enum", "final")]
        name = said[0] if said else ""
        self.types |= {name} - {""}
        if head[0].text != "enum":
            return
        kind = "".join(said[said.index(":") + 1 :]) if ":" in said else "int"
        is_scoped = len(head) > 1 and head[1].text in ("class", "struct")
        if name not in ("", ":"):
            self._name_type(name, kind)
        value: list[Token] = []
        for part in split(body):
            if not part:
                continue
            one, *given = split(part, "=")
            first = one[0]
            value = given[0] if given else [*value, *_plus_one(first)] if value else [_number(first, "0")]
            value = [first._replace(kind="sign", text="("), *value, first._replace(kind="sign", text=")")]
            for inner in ([name], []) if not is_scoped else ([name],):
                self._constant(first.text, kind, value, self._origin(*inner))

    def _function(
        self, head: list[Token], body: list[Token], templates: list[tuple[str, str | None]]
    ) -> None:
        # The parameters are what stands in the last parentheses of the head.
        opens = [
            place
            for place, one in enumerate(head)
            if one.text == "(" and depth_of(head[:place]) == 0 and place
        ]
        opens = [place for place in opens if head[place - 1].text not in _NO_NAMES]
        if not opens:
            return
        at = opens[-1] - 1
        given, past = arguments_at(head, opens[-1])
        is_special = head[at].text == ">"
        if is_special:
            at = max((place for place in range(at) if head[place + 1].text == "<"), default=0)
        if head[at].kind != "name" or any(one.text == ":" for one in head):
            return
        name = head[at].text
        parameters = [_parameter(part) for part in _joined(given) if _is_parameter(part)]
        begin = at
        while begin > 1 and head[begin - 1].text == "::" and head[begin - 2].kind == "name":
            begin -= 2
        before = [one.text for one in head[:begin]]
        if "__global__" in before:
            self.kernels.setdefault(name, []).append(parameters)
            return
        if "__device__" in before and "__host__" not in before:
            return
        result = _spelled(head[:begin])
        if head[past : past + 1] and head[past].text == "->":
            result = _spelled(head[past + 1 :])
        origin = self._origin(*(one.text for one in head[begin:at] if one.kind == "name"))
        if is_special:  # which is told from its template by types
            body = [head[at], *body]
        self.functions.setdefault(name, []).append(
            Function(name, result, parameters, templates, body, origin)
        )


def _meant(found: list[Any], name: str, seen_from: Origin) -> list[Any]:
    """Which functions or constants, that are all called so, `name` means there."""
    found = [one for one in found if f"::{_full(one)}".endswith(f"::{name.removeprefix('::')}")]
    spaces = seen_from.space.split("::") if seen_from.space and not name.startswith("::") else []
    for count in range(len(spaces), -1, -1):
        full = "::".join([*spaces[:count], name.removeprefix("::")])
        nearest = [one for one in found if _full(one) == full]
        if nearest:
            found = nearest
            break
    return [one for one in found if one.origin.source == seen_from.source] or found


def _words(declared: Function | Constant) -> tuple[str, ...]:
    return tuple(word.text for word in declared.body)


def _number(like: Token, text: str) -> Token:
    return like._replace(kind="number", text=text)


def _plus_one(like: Token) -> list[Token]:
    return [like._replace(kind="sign", text="+"), _number(like, "1")]


def _spelled(words: list[Token]) -> str:
    """A type without blanks and what does not matter to the values that it holds."""
    return "".join(
        one.text for one in words if one.text not in _PASSED | _QUALIFIERS and one.kind != "string"
    )


def _is_parameter(words: list[Token]) -> bool:
    return bool(words) and [one.text for one in words] != ["void"]


def _full(declared: Function | Constant) -> str:
    """Its name with its namespaces."""
    return "::".join(filter(None, (declared.origin.space, declared.name)))


def _needed(function: Function) -> int:
    return sum(not parameter.default for parameter in function.parameters)


def _parameter(words: list[Token]) -> Parameter:
    words, *default = split(words, "=")
    is_read = words[0].text == "const" or (len(words) > 1 and words[1].text == "const")
    said = [one for one in words if one.text not in _QUALIFIERS]
    has_name = len(said) > 1 and said[-1].kind == "name" and said[-2].text != "::"
    name = said[-1].text if has_name else ""
    kinds = "".join(one.text for one in (said[:-1] if has_name else said))
    pointer = kinds.endswith("*")
    return Parameter(
        name,
        kinds,
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
