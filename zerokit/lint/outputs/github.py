"""Annotations of a GitHub workflow: lines that its runner turns into marks beside the code.

The form is that of GitHub's "workflow commands for GitHub Actions".
"""

from collections.abc import Iterator, Sequence

from zerokit.documents import dotted
from zerokit.errors import visible
from zerokit.findings import Finding
from zerokit.lint.outputs.checked import CheckedFile

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def to_github(files: Sequence[CheckedFile]) -> str:
    """One workflow command a line."""
    return "".join(f"{line}\n" for file in files for line in _lines(file))


def _lines(file: CheckedFile) -> Iterator[str]:
    if file.error is not None:
        message = file.error.message + (f". {file.error.hint}" if file.error.hint else "")
        yield _command("error", file.name, *file.error_place, "zerokit", message)
    for finding in file.report.findings:
        title = f"zerokit {finding.rule}"
        command = _COMMANDS[finding.severity]
        yield _command(command, file.name, finding.line, finding.column, title, _message(finding))


def _message(finding: Finding) -> str:
    place = f"{dotted(finding.path)}: " if finding.path else ""
    return place + finding.message + (f"\n{finding.hint}" if finding.hint else "")


def _command(command: str, file: str, line: int | None, column: int | None, title: str, message: str) -> str:
    properties = {"file": file, "line": line, "col": column, "title": title}
    written = ",".join(f"{name}={_escape(str(value), ':,')}" for name, value in properties.items() if value)
    return f"::{command} {written}::{_escape(message)}"


def _escape(text: str, also: str = "") -> str:
    for char in "%\r\n" + also:
        text = text.replace(char, f"%{ord(char):02X}")
    return visible(text)
