"""Exceptions that a library raised about what another one gave it: versions, or a defect, not the script."""

from __future__ import annotations

import re

from zerokit.code_origin import is_in_library
from zerokit.errors import visible
from zerokit.exits.causes import ADVICE
from zerokit.exits.tracebacks import Raised, package

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


def where_to_look(raised: Raised) -> str:
    """What to do about an exception without a better explanation."""
    frame = visible(raised.frame) if raised.frame else None
    if raised.is_optimizer:
        place = visible(raised.library or raised.frame or "")
        return (
            f"An optimizer that ZeRO calls raised it at {place}. ZeRO gives it flat fp32 partitions in place "
            f"of the parameters. If it reads their shapes or keeps states by parameter: {_ZERO_OPTIMIZER}"
        )
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
    unfit = (
        f"the versions of two libraries do not fit, or one has a defect: try another release of {library} "
        "('pip list', 'pip check')"
    )
    attribute, call = _MISSING_ATTRIBUTE.match(text), _CALL.match(text)
    if kind == "AttributeError" and attribute is not None and attribute["owner"] not in _OF_PYTHON:
        owner = attribute["owner"]
        return f"{library} expects '{attribute['name']}' of {owner}. If {owner} is no class of yours, {unfit}"
    if kind == "TypeError" and call is not None:
        name = call["name"].rpartition(".")[2]
        if name == "forward":
            return (
                "The model does not accept what its caller passes: a column of the batch, or an argument of "
                "another version than that of the model's code"
            )
        return (
            f"{library} calls {call['name']}() in a way that it does not accept. If you wrote {name}(), "
            f"give it the arguments that {library} passes; else {unfit}"
        )
    if kind in _STATES or (kind == "AssertionError" and text.startswith("assert")) or not text:
        return (
            f"{library} met a state that it does not expect: an input that it cannot use, versions that "
            f"do not fit, or a defect. Search the issues of {library} for this line"
        )
    return None


def _missing(text: str, library: str) -> str | None:
    """What a missing module or name means for the library that imports it."""
    if (found := _MISSING_MODULE.search(text)) is not None:
        whole, top = found["module"], found["module"].partition(".")[0]
        if whole == top:
            return f"{library} needs the module '{top}': install its package for this Python"
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
    if library == other:
        return (
            f"{library} does not find {what}, its own: files of two versions are mixed, or "
            "a compiled part is missing. Reinstall it: pip install --force-reinstall --no-deps "
            f"{library}==VERSION"
        )
    return (
        f"{library} needs {what}, which the installed {other} does not have: their versions do not fit. "
        "Update the older of the two ('pip list', 'pip check')"
    )


def _of_versions(raised: Raised) -> str | None:
    """What an exception outside of libraries says about the release of one that the script uses."""
    attribute, call = _MISSING_ATTRIBUTE.match(raised.text), _CALL.match(raised.text)
    if (found := _CIRCULAR.search(raised.text)) is not None:
        return f"if a file of yours has the name of the module '{found['module']}', rename it"
    if (found := _MISSING_NAME.search(raised.text)) is not None and not _is_own(found["path"]):
        other = (found["module"] or found["module_2"]).partition(".")[0]
        return f"the installed {other} does not have it: it may have been moved or removed in another version"
    if raised.kind == "TypeError" and call is not None and "unexpected keyword" in call["how"]:
        what, missing = f"{call['name']}()", "is called in a way that its release does not accept"
    elif raised.frame is None and attribute is not None and attribute["owner"] not in _OF_PYTHON:
        what, missing = attribute["owner"], f"has no '{attribute['name']}' in its release"
    else:
        return None
    return (
        f"if {what} is a library's, it {missing}: update that library, or install the release that the "
        "script's requirements name ('pip list' shows yours)"
    )
