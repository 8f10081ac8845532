"""What ended a script: a limit of zerokit or of this environment, or the script itself; and what to do.

A failure is a limit if a stand-in takes part in it, or if something is missing on this machine that the
cluster may have (`_LIMITS`: errors that show this by their text). A deliberate `raise` in a stand-in is
what the cluster would raise.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import platform
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple

from zerokit import patches
from zerokit.code_origin import is_installed, is_no_file, is_stdlib
from zerokit.errors import LaunchError, ZerokitError
from zerokit.exits.causes import EXIT_CODE
from zerokit.exits.explain import explain_log
from zerokit.exits.log import Log
from zerokit.rehearsal.call_sites import OWN, folder_of, in_words, is_in, is_of_script, short_path, tree_of
from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.nvml import NVMLNotSupportedError
from zerokit.rehearsal.stand_ins.package_imports import is_a_stand_in, stands_in_for
from zerokit.rehearsal.stand_ins.packages import REFUSED, is_folder_without_code
from zerokit.rehearsal.watching.hub_files import NotFetched, Repository, requested_of
from zerokit.rehearsal.watching.suppressed_writes import not_written
from zerokit.rehearsal.watching.zero_init import advice_on_zero_init
from zerokit.tables import table_of

_ENDS_A_RANK = "zerokit.distributed.exit_reports"
"""The module by which zerokit's own commands end a rank, from a room that this one does not import."""
_GAP = "zerokit cannot stand in for"
"""What native/dispatch.cpp reports of an operator."""
_NO_NAME = re.compile(r"cannot import name '(\w+)'")
"""What Python reports of a name that a module lacks."""
_RAISED = re.compile(r"[\w.]*(?:Error|Exception): (.+)")
"""The line of a traceback that says what was raised."""
_OFFLINE = re.compile(
    r"outgoing traffic has been disabled|offline mode is enabled|locate the files? on the Hub,? and we"
    r"|Couldn't reach '[^']+' on the Hub",
    re.IGNORECASE,
)
"""What huggingface_hub and datasets report of what is not in their cache, where there is no network."""
_ELSEWHERE = "Choose a setting that does not use it, or measure this run on a GPU"


class _Limit(NamedTuple):
    """A limit that the text of an error shows.

    In `message` and `hint`, `{error}` is the error's type and first line, `{line}` its first line, and other
    names are groups of `pattern`.
    """

    pattern: re.Pattern[str]
    message: str
    hint: str
    errors: tuple[type[BaseException], ...] = (BaseException,)
    """The types of errors to search."""


_LIMITS = tuple(
    _Limit(
        re.compile(row["pattern"]),
        row["message"],
        row["hint"],
        tuple(getattr(builtins, name) for name in row.get("errors", ["BaseException"])),
    )
    for row in table_of(__file__)
)
_UNEXPECTED = (TypeError, ValueError, AttributeError, LookupError)
"""What Python raises of names that are not there, and of values other than expected."""


def hint_for(failure: BaseException | None) -> str | None:
    """What to do if the script failed, or ended without training; None if nothing is known."""
    known = None if failure is None else advice_on_zero_init(failure) or _advice_of_log(failure)
    return known or rank_context().state(NotFetched).hint()


def _advice_of_log(failure: BaseException) -> str | None:
    """What `zerokit explain-exit` advises for an error with these words; None if it does not know them."""
    words = "".join(traceback.format_exception_only(failure))
    known = explain_log(Log("stderr", words))
    # The traceback, which has been printed, says more than these causes do.
    return None if known.cause in ("exception", "unknown", EXIT_CODE) else known.fix


def limit_of(failure: BaseException | None, left_out: Collection[str] = ()) -> ZerokitError | None:
    """What the rehearsal or its environment lacks, if that caused `failure`, with what to do.

    `left_out` are files and folders that were not written.
    """
    if failure is None:
        return None
    try:
        return _found_in(failure, left_out)
    except Exception as error:  # an explanation never replaces the failure
        failure.add_note(
            "zerokit could not determine whether the rehearsal caused this, and takes it for the script's "
            f"own ({_type_and_line(error)}): please report it"
        )
        return None


def _found_in(failure: BaseException, left_out: Collection[str]) -> ZerokitError | None:
    found: ZerokitError | None = None
    for error, is_cause in _chain(failure):
        if isinstance(error, RehearsalGap):
            return error
        first = _first_line(str(error))
        if _GAP in first:
            return RehearsalGap(first[first.index(_GAP) + len(_GAP) :].strip(), where=_line_of(error))
        if not is_cause:
            continue
        if cause := _cause(error, left_out):
            message, hint = cause
            found = LaunchError(message, where=_place_of(error, failure), hint=hint)
            if not isinstance(error, ImportError | RuntimeError):
                return found
            # Imports where a name is used wrap each other's errors: the innermost one tells what fails.
        elif isinstance(found, LaunchError) and _is_raised_by_script(error):
            found = None
    return found


def _chain(failure: BaseException | None) -> Iterator[tuple[BaseException, bool]]:
    """`failure` and the errors behind it, and whether each is a cause.

    An error that was only being handled is no cause, unless the clause that handles it raises the other
    error: a script that works without a CUDA library may fail there for another reason.
    """
    is_cause = True
    seen: list[BaseException] = []
    while failure is not None and failure not in seen:
        seen.append(failure)
        yield failure, is_cause
        below = failure.__cause__ or failure.__context__ or _hidden_below(failure)
        is_stated = failure.__cause__ is not None or below is not failure.__context__
        is_cause = is_cause and (is_stated or _raises_in_handler(failure))
        failure = below


def _hidden_below(error: BaseException) -> BaseException | None:
    """Why a module's `__getattr__` found no name: Python drops that error where the name is imported."""
    name = _NO_NAME.match(str(error)) if isinstance(error, ImportError) else None
    module = sys.modules.get(error.name or "") if isinstance(error, ImportError) else None
    if name is None or module is None or is_of_script(getattr(module, "__file__", None) or "<"):
        return None
    try:
        getattr(module, name[1])
    except Exception as again:
        return again.__cause__ or again.__context__
    return None


def _raises_in_handler(error: BaseException) -> bool:
    """Whether `error` is raised, or the script ended, by the very clause that handles another one."""
    handled, last = error.__context__, _innermost(error)
    if last is None or handled is None or handled.__traceback__ is None:
        return False
    if last.tb_frame is not handled.__traceback__.tb_frame:
        return False
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)  # else the script reports success
    return _raises(last)


def _cause(error: BaseException, left_out: Collection[str]) -> tuple[str, str] | None:
    """What of the rehearsal or its environment takes part in `error`, and what to do."""
    found = (
        _not_fetched(error) or _known_limit(error) or _not_written(error, left_out) or _library_with_stand_in(error)
    )
    if found is not None:
        return found
    if _is_of_a_stand_in(error):
        return (
            f"the rehearsal's stand-in is not like what it stands for ({_type_and_line(error)})",
            "Please report this with the output above; " + _ELSEWHERE[0].lower() + _ELSEWHERE[1:],
        )
    if isinstance(error, ImportError):
        return None if _is_of_own_module(error) else _not_importable(error)
    return _not_compatible(error)


def _known_limit(error: BaseException) -> tuple[str, str] | None:
    text = str(error)
    for limit in _LIMITS:
        found = limit.pattern.search(text) if isinstance(error, limit.errors) else None
        if found is not None:
            named = {name: value for name, value in found.groupdict().items() if value}
            names = {"library": "a CUDA driver", **named}
            message = limit.message.format(error=_type_and_line(error), line=_first_line(text), **names)
            return message, limit.hint.format(**names)
    return None


def _not_fetched(error: BaseException) -> tuple[str, str] | None:
    """Which file of the Hub is not here, if that caused `error`."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, OSError) and _OFFLINE.search(str(error)):
        repository, file, _ = requested_of(reversed(frames)) or (_of_datasets(frames), None, None)
        files = [file] if file else []
    elif found := rank_context().state(NotFetched).find(error):
        repository, files = found
    else:
        return None
    which = f"{', '.join(dict.fromkeys(files))} of " if files else ""
    asked = f"{which}{repository.name}, which" if repository else "what"
    command = repository.download if repository else "hf download"
    how = f"Fetch it here first ({command})"
    if repository and "/" not in repository.name:
        how = f"If {repository.name} is meant to be a folder, there is none of that name here. {how}"
    if any(is_in(frame.f_code.co_filename, "datasets/") for frame in frames):
        how = "Load it here once with a network (datasets.load_dataset), which keeps it in the cache"
    return (
        f"the script asks the Hub for {asked} this machine has not fetched, and cannot ask the network "
        f"({_type_and_line(error)})",
        f"{how}, or rehearse with a network and without HF_HUB_OFFLINE",
    )


def _of_datasets(frames: Iterable[FrameType]) -> Repository | None:
    """The data set that the library datasets was to load."""
    of_library = (frame for frame in frames if is_in(frame.f_code.co_filename, "datasets/"))
    names = (frame.f_locals.get("path") for frame in of_library)
    return next((Repository(name, "dataset") for name in names if isinstance(name, str)), None)


def _not_written(error: BaseException, left_out: Collection[str]) -> tuple[str, str] | None:
    missing = not_written(error, left_out)
    if missing is None:
        return None
    return (
        f"the rehearsal did not write {missing}, since what it holds has no values, and the script reads "
        f"it ({_first_line(str(error))})",
        "Leave out what comes after saving, or read it only where ZEROKIT_REHEARSAL is not set",
    )


def _library_with_stand_in(error: BaseException) -> tuple[str, str] | None:
    """The library that `error` is about, if it has a stand-in, which is like one release only."""
    trace = _innermost(error)
    modules: Iterable[str | None]
    if isinstance(error, ImportError):
        modules = (error.name,)
    elif isinstance(error, TypeError) and trace is not None and _raises(trace):
        modules = (getattr(error, "module", trace.tb_frame.f_globals.get("__name__")),)
    else:
        modules = map(_module_of, _objects_of_line(error))
    used = next((words for one in modules if one and (words := stands_in_for(one))), None)
    if used is None:
        return None
    library, hint = used
    return (
        f"the rehearsal stands in for {library}, and the script fails at what that has, takes or "
        f"gives ({_type_and_line(error)})",
        hint,
    )


def _not_compatible(error: BaseException) -> tuple[str, str] | None:
    """Which installed module fails while it is imported, for example with a release that it was not made for.

    Other errors, such as a missing file, may be of a project that its owner has installed.
    """
    text = _first_line(str(error))
    is_of_a_library = isinstance(error, OSError) and "undefined symbol" in text
    if (
        isinstance(error, ZerokitError)
        or advice_on_zero_init(error)
        or not (is_of_a_library or isinstance(error, RuntimeError | AttributeError | TypeError))
    ):
        return None
    shadowed = error.obj if isinstance(error, AttributeError) else None
    if isinstance(shadowed, ModuleType) and is_of_script(getattr(shadowed, "__file__", None) or "<"):
        return None  # a module of the script's that is called like one of Python's
    module = _imported_module(error)
    if module is None:
        return None
    return (
        f"the installed module {module} fails here while it is imported ({_type_and_line(error)})",
        f"If python -c 'import {module}' shows the same, it is the module, often of a release that does not "
        "fit torch's; if it does not, please report this with the output above",
    )


def _imported_module(error: BaseException) -> str | None:
    """The innermost installed module whose import raised `error`, with no code of the script's within."""
    found, own = None, ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        path, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__") or "")
        if module == "__main__":  # a module that is run as the script, whose package is the script's, too
            own = str(frame.f_globals.get("__package__") or "").partition(".")[0] or own
        if path.startswith(OWN):
            continue
        if is_installed(path) and module.partition(".")[0] not in ("", "__main__", own):
            found = module if frame.f_code.co_name == "<module>" else found
        elif not is_stdlib(path):
            found = None
    return found


def _not_importable(error: ImportError) -> tuple[str, str]:
    """What the environment lacks, and what to do."""
    package = (error.name or "").partition(".")[0]
    installed = patches.version(package) if package in sys.modules else "0"
    what = "the script needs what this environment does not have"  # as a package's own check reports
    needed = "the rehearsal cannot go on without it"
    hint = f"Install it here, too, if the cluster has it, or fix the import; {needed}"
    if package in REFUSED:
        compiled = "which is compiled with CUDA's toolkit and is not installed here"
        what, hint = f"the rehearsal cannot stand in for {package}, {compiled}", _ELSEWHERE
    elif package in sys.stdlib_module_names:
        what = f"the script imports what Python {platform.python_version()} does not have"
        hint = "Rehearse with the Python that the script was written for, or that the cluster has"
    elif installed != "0" and _is_code(package):
        what = f"the script imports what {package} {installed} does not have"
        hint = f"Install the {package} that the script was written for, or that the cluster has; {needed}"
    elif isinstance(error, ModuleNotFoundError) or (package and not _is_code(package)):
        what = "the script imports what is not installed in this environment"
    elif _NO_NAME.match(str(error)):
        what = "the script imports what the packages do not have in this environment"
    return f"{what} ({_type_and_line(error)})", hint


def _is_code(package: str) -> bool:
    """Whether an imported package is more than a folder without code."""
    spec = getattr(sys.modules.get(package), "__spec__", None)
    return spec is None or not is_folder_without_code(spec)


def _type_and_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    first, *further = text.strip().split("\n")
    if further and further[0].startswith("Original Traceback "):  # of a worker's error, raised again
        first = next((raised[1] for line in reversed(further) if (raised := _RAISED.match(line))), further[-1])
    return first[:300]


def _is_of_a_stand_in(error: BaseException) -> bool:
    """Whether one of the rehearsal's objects or packages lacks a name, or its own code fails unintended."""
    if isinstance(error, AttributeError) and type(error.obj).__module__.startswith("zerokit.rehearsal"):
        return True
    if isinstance(error, NVMLNotSupportedError):  # by a GPU it mostly is
        return True
    if isinstance(error, ImportError) and error.name is not None and is_a_stand_in(error.name):
        return True
    trace = _innermost(error)
    if trace is not None and isinstance(error, TypeError) and patches.refuses(trace.tb_frame):
        return True
    return (
        trace is not None
        and isinstance(error, NameError | AttributeError | NotImplementedError)
        and not isinstance(error, ZerokitError)
        and trace.tb_frame.f_code.co_filename.startswith(OWN)
        and _fails_unintended(trace)
    )


def _module_of(value: object) -> str | None:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else None


def _is_of_own_module(error: ImportError) -> bool:
    """Whether one of the script's own modules lacks what is imported, as it does on the cluster."""
    package = sys.modules.get((error.name or "").partition(".")[0])
    path = error.path or getattr(package, "__file__", None)
    return path is not None and is_of_script(path)


def _is_raised_by_script(error: BaseException) -> bool:
    trace = _innermost(error)
    return trace is not None and is_of_script(trace.tb_frame.f_code.co_filename)


def _fails_unintended(trace: TracebackType) -> bool:
    """Whether it neither raises nor calls, in C, what a patch has put this code around."""
    failing = _instruction(trace)
    if failing is None or _raises(trace):
        return False
    frame = trace.tb_frame
    called = [
        frame.f_locals.get(node.func.id)
        for node in ast.walk(tree_of(frame.f_code.co_filename))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == failing.positions
    ]
    return not any(patches.is_original(function) for function in called)


def _place_of(error: BaseException, failure: BaseException) -> str:
    """`file:line` outside torch where `error` was raised, and of the script's line that led to `failure`."""
    frames = reversed(traceback.extract_tb(failure.__traceback__))
    lines = (f"{short_path(one.filename)}:{one.lineno}" for one in frames if is_of_script(one.filename))
    line = _line_of(error)
    return in_words(line, next(lines, None)) or line


def _line_of(error: BaseException) -> str:
    frames = list(traceback.extract_tb(error.__traceback__))
    if not frames:
        return "an unknown line"
    frame = ([frame for frame in frames if not _passes_on(frame.filename)] or frames)[-1]
    return f"{short_path(frame.filename)}:{frame.lineno}"


def _passes_on(path: str) -> bool:
    """Whether a file is torch's, zerokit's or Python's own, or none."""
    own = (folder_of("torch"), folder_of("zerokit"))
    return is_no_file(path) or is_stdlib(path) or path.startswith(own)


# ---- the line that failed


def _innermost(error: BaseException) -> TracebackType | None:
    """Where `error` was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _instruction(trace: TracebackType) -> dis.Instruction | None:
    """None where compiled code, such as Cython's, has made a frame that has no instructions of its own."""
    instructions = dis.get_instructions(trace.tb_frame.f_code)
    return next((one for one in instructions if one.offset == trace.tb_lasti), None)


def _raises(trace: TracebackType) -> bool:
    """Whether the instruction is a ``raise``."""
    found = _instruction(trace)
    return found is not None and found.opname in ("RAISE_VARARGS", "RERAISE")


def is_deliberate(error: BaseException) -> bool:
    """Whether a `raise` of the script's own made it."""
    trace = _innermost(error)
    return trace is not None and is_of_script(trace.tb_frame.f_code.co_filename) and _raises(trace)


def is_error_of_zerokit(error: BaseException) -> bool:
    """Whether a command of zerokit has ended this process after a `ZerokitError`, which says all."""
    ended = isinstance(error, SystemExit) and error.code == ZerokitError.exit_code
    frames = traceback.walk_tb(error.__traceback__)
    return ended and any(frame.f_globals.get("__name__") == _ENDS_A_RANK for frame, _ in frames)


def _objects_of_line(error: BaseException) -> Iterator[Any]:
    """Objects that the line names at which Python raised `error`, and those that its variables come from.

    None if that line is a ``raise``.
    """
    trace = _innermost(error)
    if trace is None or not isinstance(error, _UNEXPECTED):
        return
    path = trace.tb_frame.f_code.co_filename
    if path.startswith(OWN) or _raises(trace):
        return
    inside = [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.stmt) and node.lineno <= trace.tb_lineno <= (node.end_lineno or 0)
    ]
    if not inside:
        return
    line = max(inside, key=lambda node: node.lineno)  # the innermost
    within = next((node for node in reversed(inside) if isinstance(node, ast.FunctionDef)), None)
    variables = _variables(line)
    sources = [
        node.value
        for node in ast.walk(within or ast.Module([], []))
        if isinstance(node, ast.Assign) and any(variables & _variables(target) for target in node.targets)
    ]
    for part in (part for node in (line, *sources) for part in ast.walk(node)):
        if isinstance(part, ast.Name | ast.Attribute):
            yield _value(part, trace.tb_frame)


def _variables(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name, None if that takes running code."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_value(node.value, frame), node.attr, None)
    return None
