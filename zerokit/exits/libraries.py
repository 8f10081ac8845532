"""Exceptions that a library raised about what another one gave it: versions, or a defect, not the script."""

import re
from collections.abc import Mapping

from zerokit.code_origin import is_in_library
from zerokit.errors import visible
from zerokit.exits.causes import ADVICE
from zerokit.exits.tracebacks import Raised, package
from zerokit.tables import table_of

_MISSING_NAME = re.compile(
    r"cannot import name '(?P<name>[^']{1,100})' from '(?P<module>[\w.]{1,200})' \((?P<path>[^)]{1,400})\)"
    r"|module '(?P<module_2>[\w.]{1,200})' has no attribute '(?P<name_2>\w{1,100})'"
)
_MISSING_MODULE = re.compile(r"No module named '(?P<module>[\w.-]{1,200})'")
_CIRCULAR = re.compile(r"partially initialized module '(?P<module>[\w.]{1,200})'")
_MISSING_ATTRIBUTE = re.compile(
    r"(?:type object )?'(?P<owner>\w{1,100})' (?:object )?has no attribute '(?P<name>\w{1,100})'"
)
_CALL = re.compile(
    r"(?P<name>[\w.<>]{1,200})\(\) (?P<how>got an unexpected keyword argument '\w{1,100}'"
    r"|got multiple values for [a-z ]{0,20}argument '\w{1,100}'"
    r"|missing \d{1,3} required (?:positional|keyword-only) arguments?: .{1,200}"
    r"|takes (?:from )?\d{1,3} (?:to \d{1,3} )?positional arguments? but \d{1,3} (?:was|were) given)"
)
_OF_PYTHON = frozenset(
    [
        *("NoneType", "bool", "int", "float", "complex", "str", "bytes", "object", "property", "type"),
        *("list", "tuple", "dict", "set", "frozenset", "slice", "range", "ellipsis", "module"),
        *("function", "method", "builtin_function_or_method", "generator", "coroutine"),
    ]
)
"""Classes of values that any caller may have given."""
_ZERO_OPTIMIZER = ADVICE["ZERO_OPTIMIZER"][0].lower() + ADVICE["ZERO_OPTIMIZER"][1:]
_STATES = ("KeyError", "IndexError", "AttributeError", "UnboundLocalError", "NameError")
"""Exceptions about a state that a library did not expect; others explain themselves."""


_TEXTS: Mapping[str, str] = table_of(__file__)


def _text(row: str, /, **words: str) -> str:
    return _TEXTS[row].format(**words)


def where_to_look(raised: Raised) -> str:
    """What to do about an exception without a better explanation."""
    frame = visible(raised.frame) if raised.frame else None
    if raised.is_optimizer:
        place = visible(raised.library or raised.frame or "")
        return _text("optimizer", place=place, advice=_ZERO_OPTIMIZER)
    if raised.library is None:
        look = f"Look at {frame}" if frame else "Give the lines above it too: this log has no traceback of it"
        advice = _of_versions(raised)
        if advice is None:
            return look
        return f"{look}; {advice}" if frame else f"{advice[0].upper()}{advice[1:]}. {look}"
    look = f"Look at {frame}" if frame else "Read the traceback"
    at = visible(raised.library)
    advice = _because(raised, package(raised.library))
    if advice is None:
        return f"{look}; it was raised in {at}"
    callers = f", called by {', '.join(map(visible, raised.callers))}" if raised.callers else ""
    led = f". The script led there at {frame}" if frame else ""
    return f"{advice}. It was raised in {at}{callers}{led}"


def _because(raised: Raised, library: str) -> str | None:
    """What an exception inside a library says about versions; None if it says nothing."""
    text, kind = raised.text, raised.kind
    if (advice := _missing(text, library)) is not None:
        return advice
    unfit = _text("unfit", library=library)
    attribute, call = _MISSING_ATTRIBUTE.match(text), _CALL.match(text)
    if kind == "AttributeError" and attribute is not None and attribute["owner"] not in _OF_PYTHON:
        return _text("attribute", library=library, unfit=unfit, **attribute.groupdict())
    if kind == "TypeError" and call is not None:
        name = call["name"].rpartition(".")[2]
        if name == "forward":
            return _text("forward")
        return _text("call", library=library, call=call["name"], name=name, unfit=unfit)
    if kind in _STATES or (kind == "AssertionError" and text.startswith("assert")) or not text:
        return _text("state", library=library)
    return None


def _missing(text: str, library: str) -> str | None:
    """What a missing module or name means for the library that imports it."""
    if (found := _MISSING_MODULE.search(text)) is not None:
        whole, top = found["module"], found["module"].partition(".")[0]
        if whole == top:
            return _text("module", library=library, module=top)
        return _unfit(library, top, f"the module '{whole}'")
    if _CIRCULAR.search(text) is not None or (found := _MISSING_NAME.search(text)) is None:
        return None
    if _is_own(found["path"]):
        return f"{visible(found['path'])} has the name of a library's module: rename it"
    module, name = found["module"] or found["module_2"], found["name"] or found["name_2"]
    return _unfit(library, module.partition(".")[0], f"'{name}' of {module}")


def _is_own(path: str | None) -> bool:
    """Whether a module that Python imported is the user's; it is unknown for some."""
    return path is not None and "/" in path and not is_in_library(path.replace("\\", "/"))


def _unfit(library: str, other: str, what: str) -> str:
    return _text("own_part" if library == other else "other_part", library=library, other=other, what=what)


def _of_versions(raised: Raised) -> str | None:
    """What an exception outside of libraries says about the release of one that the script uses."""
    attribute, call = _MISSING_ATTRIBUTE.match(raised.text), _CALL.match(raised.text)
    if (found := _CIRCULAR.search(raised.text)) is not None:
        return f"if a file of yours has the name of the module '{found['module']}', rename it"
    if (found := _MISSING_NAME.search(raised.text)) is not None and not _is_own(found["path"]):
        other = (found["module"] or found["module_2"]).partition(".")[0]
        return _text("moved", other=other)
    if raised.kind == "TypeError" and call is not None and "unexpected keyword" in call["how"]:
        what, missing = f"{call['name']}()", "is called in a way that its release does not accept"
    elif raised.frame is None and attribute is not None and attribute["owner"] not in _OF_PYTHON:
        what, missing = attribute["owner"], f"has no '{attribute['name']}' in its release"
    else:
        return None
    return _text("release", what=what, missing=missing)
