"""Finds exceptions: the ends of tracebacks, also of cut or interleaved ones."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from zerokit.code_origin import INSTALLED, is_in_library, is_no_file
from zerokit.exits.log import Log
from zerokit.exits.log_lines import WIDEST_PREFIX, beginning, is_below_frame, is_quoted

_MOST = 2000
"""Maximum tracebacks: a thousand ranks may raise the same exception."""
_MOST_FRAMES = 400
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_RAISED = re.compile(r"(?P<kind>[A-Za-z_][\w.]{0,200}(?:\(\w{1,100}\))?)(?:: (?P<text>.*)|:)?$")
_CLASS = re.compile(r"[A-Z.]")
"""An exception's name has its module or a capital letter."""
_NAMED = re.compile(r"(?:Error|Exception)(?=[:(\r\n]|$)", re.MULTILINE)
_DECORATION = (
    r"(?:(?:\[[^\]\n]{1,60}\]:?|\([^)\n]{1,60}\) ?:?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,Z+-]{0,14}"
    r"|[A-Za-z][\w.-]{0,60}:|\d{1,6}:|[|>-]|std(?:err|out) [FP])[ \t]?){0,8}?"
)
"""Prefixes that launchers, schedulers and loggers write."""
_ALONE = re.compile(
    rf"(?P<prefix>(?:[^\n]{{0,100}}?\[rank\d{{1,7}}\]: ?)?{_DECORATION})"
    r"(?P<kind>(?:[A-Za-z_]\w{0,60}\.){0,12}(?:[A-Z]\w{0,80}?)?(?:Error|Exception)(?:\(\w{1,100}\))?)"
    r"(?:: (?P<text>.*)|:)?$"
)
_LEVEL = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG|NOTICE)\b")
_ORIGINAL = "Original "
"""torch.utils.data prints it before the traceback of a worker, below the exception that passes it on."""
_PASSED_ON = re.compile(r"Caught \w{1,80} (?P<where>in [\w -]{1,80})\.\s*$")
_OF_POOL = '"""'
"""multiprocess prints it around the traceback of a worker process, which it then raises again."""
_OF_RAY = re.compile(r"\bray::[\w.<>]{1,200}\(\) \(pid=\d")
"""ray's name of the process whose frames and exception follow."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_SURVIVED = re.compile(r"Exception ignored (?:in|while)|Exception in thread |--- Logging error ---")
"""Above a traceback after which the process goes on."""
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,8})(?:, in (?P<function>[\w<>.]{1,200}))?')
_READS = ("__getattr__", "__getattribute__")
"""Functions that raise for the line that reads an attribute."""
_ZERO = ("deepspeed/runtime/zero/stage", "deepspeed/runtime/bf16_optimizer.py")
_STEPS = ("step", "_optimizer_step")
"""ZeRO's functions that call the optimizer."""
_REPEATS = re.compile(
    r"Failed to import [\w.]{1,200} because of the following error"
    r"|DatasetGenerationError: An error occurred while generating the dataset"
)
"""Messages of transformers and datasets about an exception above them, which has the reason."""
_OF_TRACEBACKS = ("    ", "\t", "╰")
"""Starts of the line above an exception: source code, or the end of rich's box."""
_OF_TORCH = "[rank"
"""torch starts each line of the exception that ends a rank with it."""
_OF_LAUNCHERS = (
    *("SystemExit", "ChildFailedError", "KeyboardInterrupt", "SignalException"),
    *("ProcessRaisedException", "RemoteTraceback", "_RemoteTraceback"),
)


@dataclass(frozen=True)
class Raised:
    """An unhandled exception."""

    offset: int
    kind: str
    """Without its module."""
    text: str
    """Its message; for an assertion without message, its source line."""
    frame: str | None
    """The innermost line outside of libraries: ``/w/train.py:7``."""
    library: str | None
    """The innermost line of an installed library below `frame`: ``deepspeed/runtime/engine.py:9``."""
    is_survived: bool
    """Whether the process went on: an exception in a destructor, or one that was handled before another."""
    is_bare: bool = False
    """Whether it is a single line, as programs print for handled exceptions."""
    where: str = ""
    """The process that raised it, if another one printed it: ``in DataLoader worker process 0``."""
    callers: tuple[str, ...] = ()
    """The libraries between `frame` and `library`, outermost first, each once."""
    is_optimizer: bool = False
    """Whether ZeRO called the step of an optimizer that is neither torch's nor DeepSpeed's."""


def exceptions(log: Log) -> Iterator[Raised]:
    """What is raised in a log, of which the first may be the cause of others; not in order."""
    seen = set()
    for number, match in enumerate(_TRACEBACK.finditer(log.text)):
        if number >= _MOST:
            break
        found = _below(log, match.start())
        if found is not None:
            seen.add(log.bounds(found.offset)[0])
            if found.kind not in _OF_LAUNCHERS:
                yield found
    for number, match in enumerate(_NAMED.finditer(log.text)):
        if number >= _MOST:
            break
        begin, end = log.bounds(match.start())
        if begin in seen or match.start() - begin > WIDEST_PREFIX:
            continue
        seen.add(begin)
        found = _alone(log, begin, log.text[begin : min(end, begin + 2000)])
        if found is not None and found.kind not in _OF_LAUNCHERS:
            yield found


def _below(log: Log, offset: int) -> Raised | None:
    """The exception at the end of the traceback that starts at an offset."""
    begin, _ = log.bounds(offset)
    prefix = log.text[begin:offset].removesuffix(_ORIGINAL)
    if len(prefix) > WIDEST_PREFIX:
        return None
    above = next((line for _, line in log.lines_above(begin, 2) if line.strip()), "")
    passed_on = _PASSED_ON.search(above) if len(prefix) < offset - begin else None
    frames, source = _Frames(), ""
    is_own = beginning(prefix)
    for at, line in log.lines_from(offset, _MOST_FRAMES):
        if at == begin or not is_own(line):
            continue  # another rank's
        rest = line[len(prefix) :]
        if rest.startswith((" ", "\t")) or not rest.strip():
            found = _FRAME.search(rest[:1000])
            if found is None:
                source = rest.strip() if rest.strip(" ^~\t") else source
            else:
                frames.add(found)
            continue
        raised = _RAISED.match(rest[:2000])
        if raised is None:
            return None
        if not _CLASS.search(raised["kind"]):
            return None
        kind = raised["kind"].rpartition(".")[2]
        text = raised["text"] or _next(log, at, prefix) or (source if kind == "AssertionError" else "")
        is_handled = is_chained(log, at, prefix) and not (_OF_POOL in above or _is_repeated_below(log, at))
        is_repeated = any(words.search(f"{kind}: {text}") for words in (_PASSED_ON, _REPEATS, _OF_RAY))
        is_survived = _SURVIVED.search(above) is not None or is_handled or is_repeated
        return Raised(
            *(at, kind, text, frames.own, frames.library, is_survived),
            where=passed_on["where"] if passed_on else "",
            callers=frames.callers(),
            is_optimizer=frames.is_optimizer,
        )
    return None


def _is_repeated_below(log: Log, offset: int) -> bool:
    """Whether the exception below another one only says that something failed."""
    return any(_REPEATS.search(line) for _, line in log.lines_from(offset, _MOST_FRAMES))


class _Frames:
    """What the frames of a traceback, outermost first, say about where it was raised."""

    def __init__(self) -> None:
        self.own: str | None = None
        """The innermost line outside of libraries."""
        self._below: list[str] = []
        """Lines of installed libraries below it."""
        self._is_in_step = False
        self.is_optimizer = False

    def add(self, frame: re.Match[str]) -> None:
        if frame["function"] in _READS:
            return
        library = _library(frame)
        if library is not None and library.startswith(_ZERO) and frame["function"] in _STEPS:
            self._is_in_step = True
        if (own := _own(frame)) is not None:
            self.own, self._below = own, []
        elif library is not None:
            self._below.append(library)
        is_other = own is not None or (library is not None and package(library) not in ("torch", "deepspeed"))
        self.is_optimizer = self._is_in_step and (self.is_optimizer or is_other)

    @property
    def library(self) -> str | None:
        return self._below[-1] if self._below else None

    def callers(self) -> tuple[str, ...]:
        names = dict.fromkeys(map(package, self._below))
        return tuple(name for name in names if name != package(self._below[-1]))


def package(file: str) -> str:
    """The package of a file below site-packages."""
    return re.split(r"[/:]", file)[0].removesuffix(".py")


def _alone(log: Log, begin: int, line: str) -> Raised | None:
    """An exception whose traceback is cut off or interleaved."""
    raised = _ALONE.match(line)
    if raised is None or raised["kind"] == "Error":  # which is a word of any text
        return None
    prefix = raised["prefix"]
    is_own = beginning(prefix)
    is_below = is_below_frame(log, begin, prefix)
    # A class name alone may be any text.
    text = raised["text"] or _next(log, begin, prefix)
    if not (text or is_below) or is_quoted(log, begin, line) or is_chained(log, begin, prefix):
        return None
    above_it: list[re.Match[str]] = []
    right_above = ""
    for _, above in log.lines_above(begin, 40):
        if is_own(above):
            right_above = right_above or above[len(prefix) :]
            found = _FRAME.search(above[:1000])
            if found is not None:
                above_it.insert(0, found)
        if (above_it and _own(above_it[0]) is not None) or _TRACEBACK.search(above):
            break
    frames = _Frames()
    for found in above_it:
        frames.add(found)
    is_logged = not is_below and _LEVEL.search(prefix) is not None
    is_bare = not (is_below or right_above.startswith(_OF_TRACEBACKS) or _OF_TORCH in prefix)
    kind = raised["kind"].rpartition(".")[2]
    place = (frames.own, frames.library)
    return Raised(
        *(begin, kind, text, *place, is_logged, is_bare), callers=frames.callers(), is_optimizer=frames.is_optimizer
    )


def frames_above(log: Log, begin: int, line: str) -> list[str]:
    """Lines of the traceback that ends at a line, without those of other ranks."""
    raised = _ALONE.match(line)
    is_own = beginning(raised["prefix"] if raised else "")
    found = []
    for _, above in log.lines_above(begin, _MOST_FRAMES):
        if is_own(above):
            if _TRACEBACK.search(above):
                break
            found.append(above)
    return found[::-1]


def _next(log: Log, begin: int, prefix: str) -> str:
    """The message below an exception's line, if that line ends with a colon."""
    lines = log.lines_from(begin, 5)
    if not next(lines)[1].rstrip().endswith(":"):
        return ""
    is_own = beginning(prefix)
    below = (line[len(prefix) :].strip() for _, line in lines if is_own(line))
    return next((line for line in below if line), "")


def _own(frame: re.Match[str]) -> str | None:
    """The location of a frame outside of libraries; a script may come from stdin."""
    file = frame["file"].replace("\\", "/")
    no_script = is_no_file(file) and file != "<stdin>"
    return None if no_script or is_in_library(file) else f"{frame['file']}:{frame['line']}"


def _library(frame: re.Match[str]) -> str | None:
    """The location of a frame in an installed library, relative to site-packages."""
    file = frame["file"].replace("\\", "/")
    below = [file.partition(folder)[2] for folder in INSTALLED if folder in file]
    return f"{below[0]}:{frame['line']}" if below else None


def is_chained(log: Log, offset: int, prefix: str) -> bool:
    """Whether another exception follows, which has more information."""
    after = [line[len(prefix) :].strip() for _, line in log.lines_from(offset, 4)][1:]
    return any(line.startswith(_CHAINED) for line in after)
