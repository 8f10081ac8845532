"""Rewrites CUDA C++ into C++ that any compiler accepts: kernels keep their parameters and lose their bodies.

Host code stays as it is: checks, allocations and launches. A kernel becomes a function that reports its
arguments (`launched` in cuda_host.h). A function for the device alone is emptied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerokit.files import write_file

_OPAQUE = re.compile(
    r'R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)
"""Comments and literals, in which no code is."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_CUDA_HEADER = re.compile(
    r"(cuda|cub/|cublas|curand|cusparse|cusolver|thrust/|cooperative_groups|nvtx|nvToolsExt|mma\.h|sm_\d|THC/)"
    r"|((ATen|c10)/cuda/)|(vector_types|device_launch_parameters|math_constants|driver_types)"
)
"""Headers of CUDA's toolkit; cuda_host.h has the names that host code uses."""
_QUALIFIER = re.compile(
    r"\b(__global__|__device__|__host__|__shared__|__constant__|__managed__|__forceinline__|__noinline__"
    r"|__grid_constant__|__launch_bounds__|__cluster_dims__|__maxnreg__)\b"
)
_WITH_ARGUMENTS = ("__launch_bounds__", "__cluster_dims__", "__maxnreg__")
_NO_PARAMETERS = re.compile(
    r"\b(__launch_bounds__|C10_LAUNCH_BOUNDS_\d|__cluster_dims__|__maxnreg__|__attribute__|operator)\s*$"
)
"""Words before parentheses that hold no parameters."""
_CLOSING = {"(": ")", "{": "}"}


class Rewriter:
    """Writes rewritten copies of sources, and of the headers of their project that they include.

    Args:
        folder: for the copies.
        include_paths: folders of headers, besides that of the source.
    """

    def __init__(self, folder: Path, include_paths: Sequence[Path]) -> None:
        self._folder, self._include_paths = folder, include_paths
        self._copies: dict[Path, Path] = {}

    def copy(self, source: Path, first: str = "") -> Path:
        """The rewritten copy of `source`, which begins with the lines `first`.

        Raises:
            OSError: it cannot be read.
        """
        source = source.resolve()
        if source not in self._copies:
            suffix = ".cpp" if source.suffix in (".cu", ".cpp", ".cc", ".cxx", ".c") else source.suffix
            copy = self._folder / f"{len(self._copies)}_{source.stem}{suffix}"
            self._copies[source] = copy
            text = self._with_copies(host_code(source.read_text(encoding="utf-8", errors="replace")), source)
            text = f'{first}#line 1 "{source}"\n{text}'
            if not copy.is_file() or copy.read_text(encoding="utf-8") != text:  # else it is compiled again
                write_file(copy, text)
        return self._copies[source]

    def _with_copies(self, text: str, source: Path) -> str:
        def included(match: re.Match[str]) -> str:
            folders = [source.parent] if match[1] == '"' else []
            for folder in (*folders, *self._include_paths):
                if (folder / match[2]).is_file():
                    return f'#include "{self.copy(folder / match[2])}"'
            return "" if _CUDA_HEADER.match(match[2]) else match[0]

        return _INCLUDE.sub(included, text)


def host_code(text: str) -> str:
    """`text` for a compiler of C++, with the same lines."""
    code = _OPAQUE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for begin, end, instead in sorted(_changes(code), reverse=True):
        lines = "\n" * (code.count("\n", begin, end) - instead.count("\n"))
        text = text[:begin] + instead + lines + text[end:]
    return text


def _changes(code: str) -> Iterator[tuple[int, int, str]]:
    """Ranges in `code` and their replacements. The ranges do not overlap."""
    bodies = list(_bodies(code))
    yield from bodies
    # Headers of torch would include CUDA's own if nvcc's macro was set.
    changes = [(*found.span(), "ZEROKIT_CUDACC") for found in re.finditer(r"\b__(CUDACC|NVCC)__\b", code)]
    changes += [(found.start(), _end_of_qualifier(code, found), "") for found in _QUALIFIER.finditer(code)]
    changes += [(found.start(), _end_of_launch(code, found.end()), "") for found in re.finditer("<<<", code)]
    for change in changes:
        if not any(begin <= change[0] < end for begin, end, _ in bodies):
            yield change


def _end_of_launch(code: str, begin: int) -> int:
    """The place after the ``>>>`` that ends a launch's configuration."""
    depth = 0
    for place in range(begin, len(code)):
        depth += (code[place] in "([{") - (code[place] in ")]}")
        if depth == 0 and code.startswith(">>>", place):
            return place + 3
    return len(code)


def _end_of_qualifier(code: str, found: re.Match[str]) -> int:
    if found[0] not in _WITH_ARGUMENTS:
        return found.end()
    return _closing(code, code.index("(", found.end()))


def _bodies(code: str) -> Iterator[tuple[int, int, str]]:
    """The bodies of device functions, and their replacements."""
    past = 0
    for found in re.finditer(r"\b__(global|device)__\b", code):
        if found.start() < past:
            continue
        around = code[max(code.rfind(end, 0, found.start()) for end in ";}{") + 1 : found.start()]
        head = _head(code, found.end())
        if head is None or "__host__" in around or "__host__" in code[found.end() : head[0]]:
            continue
        opening, after = head
        body = re.match(r"[^;{}:=]*", code[after:])
        assert body is not None
        begin = after + body.end()
        if code[begin : begin + 1] != "{" or "constexpr" in around + code[found.end() : opening]:
            continue
        past = _closing(code, begin)
        if found[1] == "global":
            names = ", ".join(["__func__", *_parameters(code[opening + 1 : after - 1])])
            yield begin, past, f"{{ ::zerokit::launched({names}); }}"
        else:
            yield begin, past, "{ __builtin_trap(); }"


def _head(code: str, begin: int) -> tuple[int, int] | None:
    """Where the parentheses of a function's parameters open and end; None for a variable."""
    found = re.compile(r"[(;={]").search(code, begin)
    if found is None or found[0] != "(":
        return None
    after = _closing(code, found.start())
    if _NO_PARAMETERS.search(code[begin : found.start()]):
        return _head(code, after)
    return found.start(), after


def _closing(code: str, begin: int) -> int:
    """The place after the bracket that closes the one at `begin`; the end if none does."""
    opens, closes, depth = code[begin], _CLOSING[code[begin]], 0
    for place in range(begin, len(code)):
        depth += (code[place] == opens) - (code[place] == closes)
        if depth == 0:
            return place + 1
    return len(code)


def _parameters(text: str) -> Iterator[str]:
    """The names of a kernel's named parameters."""
    depth, parts = 0, [""]
    for sign in text.replace("->", "  "):
        depth += (sign in "(<[{") - (sign in ")>]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    for part in parts:
        named = re.search(
            r"[\w>*&]\s*[\s*&]\s*(?<!:)([A-Za-z_]\w*)\s*(\[[^]]*\]\s*)*$", part.partition("=")[0]
        )
        if named and named[1] not in ("int", "long", "char", "float", "double", "short", "unsigned", "const"):
            yield named[1]
