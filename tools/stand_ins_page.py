"""The page docs/stand-ins.md: what a rehearsal replaces, from what is registered and its docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

REHEARSAL = Path(__file__).resolve().parents[1] / "zerokit" / "rehearsal"
_HEAD = """# Stand-ins

A rehearsal runs PyTorch, DeepSpeed and transformers as they are. It replaces what needs a GPU, a compiler,
other ranks or values. This page says what is replaced, and by which file below `zerokit/rehearsal/`.
`python -m tools.site` writes it from the code.

A stand-in is a function with the decorator `@stand_in(NAMES)` in a file of `stand_ins/` or `contrib/`; the
rehearsal finds it there. `contrib/` holds packages that few scripts need, each with an owner. Names of other
packages are replaced through one registry, `zerokit/patches.py`, with the versions that have them; the report
names those that an installed version lacks.
"""


def stand_ins_page() -> str:
    """The page, in Markdown."""
    from zerokit.rehearsal.stand_ins.packages import known_packages
    from zerokit.rehearsal.stand_ins.registry import registered

    names: dict[str, list[str]] = {}
    for one in registered():
        file = f"{one.module.removeprefix('zerokit.rehearsal.').replace('.', '/')}.py"
        names.setdefault(file, []).extend(one.replaces)
    registered_rows = [(_code(found), _first_line(file), _code([file])) for file, found in names.items()]
    packages = []
    for package in known_packages():
        sources = {f"{source.replace('.', '/')}.py" for source in package.modules.values() if source}
        versions = package.newest if not package.oldest else f"{package.oldest} to {package.newest}"
        packages.append((_code([package.distribution]), versions, _code(package.modules), _code(sorted(sources))))
    operators = []
    for source in sorted(REHEARSAL.glob("native/*.cpp")):
        kernels = re.findall(r'library\.(?:impl|kernel)\("([^"]+)"', source.read_text(encoding="utf-8"))
        if kernels:
            operators.append((_code(sorted(set(kernels))), _code([f"native/{source.name}"])))
    files = [
        str(file.relative_to(REHEARSAL))
        for folder in ("stand_ins", "contrib")
        for file in sorted(REHEARSAL.glob(f"{folder}/**/*.py"))
        if file != REHEARSAL / folder / "__init__.py"
    ]
    others = [(_code([file]), _first_line(file)) for file in files if file not in names]
    sections = [
        _HEAD,
        "## Replaced while a script runs\n",
        _table("name | what the stand-in does | file", registered_rows),
        "## Packages that compile with CUDA's toolkit\n",
        "They need not be installed. `--has PKG[==VERSION]` names one that the cluster has.\n",
        _table("package | versions | modules | files", packages),
        "## Operators of the virtual GPU\n",
        "Every operator gets its shapes from the Meta kernel, its results are allocated and nothing is\n"
        "computed (`native/dispatch.cpp`). These have a kernel of their own:\n",
        _table("operators | file", operators),
        "## What is in the other files\n",
        _table("file | what", others),
    ]
    return "\n".join(sections)


def _first_line(file: str) -> str:
    text = ast.get_docstring(ast.parse((REHEARSAL / file).read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: str, rows: Iterable[Sequence[str]]) -> str:
    columns = head.count("|") + 1
    lines = [f"| {head} |", "|" + "---|" * columns, *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"
