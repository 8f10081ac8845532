"""The outputs of commands on a page: ``python -m tests.docs.outputs`` rewrites them.

On such a page each block of ``bash`` is one command, and the block of ``text`` after it is what it prints.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path

from tests import command_lines
from tests.tiny import REPOSITORY

PAGES = ["explanation/where-the-bytes-go.md"]
WITH_EXAMPLES = [*PAGES, "../README.md"]
"""Pages with other blocks and figures, too."""
FILES = ["explanation/where-the-bytes-go.svg"]
"""What the commands write."""
WIDTH = 110

PAIR = re.compile(r"^```bash\n(?P<command>.*?)\n```\n\n```text\n(?P<output>.*?)```$", re.MULTILINE | re.DOTALL)


@cache
def output_of(command: str, folder: Path) -> str:
    """What a command prints on a terminal of `WIDTH` columns, in `folder`.

    Raises:
        AssertionError: it writes to stderr, or ends with another code than 0 or 1.
    """
    run = command_lines.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "COLUMNS": str(WIDTH),
            "HF_HUB_OFFLINE": "1",
        },
    )
    assert run.returncode in (0, 1), run.stderr
    assert not run.stderr, run.stderr
    return "".join(f"{line.rstrip()}\n" for line in run.stdout.splitlines()).strip("\n") + "\n"


def rewrite(page: Path) -> None:
    """Put what the commands print today in place of what the page has."""

    def pair(match: re.Match[str]) -> str:
        printed = output_of(match["command"], page.parent)
        return f"```bash\n{match['command']}\n```\n\n```text\n{printed}```"

    page.write_text(PAIR.sub(pair, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for name in FILES:  # which the commands do not replace
        (REPOSITORY / "docs" / name).unlink(missing_ok=True)
    for name in WITH_EXAMPLES:
        rewrite(REPOSITORY / "docs" / name)
