"""``zerokit report``: the page of a plan, an estimate, a rehearsal or a finished run."""

from __future__ import annotations

from pathlib import Path

from zerokit.cli.command import described


@described("report")
def report(file: Path, output: Path = Path("report.html"), force: bool = False) -> None:
    """Write a page of a plan, an estimate, a rehearsal or a finished run: one HTML file that needs no other.

    It can be read without JavaScript and without a network.
    """
    from zerokit.console import note
    from zerokit.files import write_file
    from zerokit.reporting.page import page_of_file

    write_file(output, page_of_file(file), force=force, follow_links=True)
    note(f"wrote {output}")
